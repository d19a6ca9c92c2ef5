"""Versions in the memory of GPUs, which other processes of the node map (CUDA IPC).

The publisher allocates one buffer on each GPU, copies the tensors of that GPU into it, and waits for the
copy. Then it gives the version's file its name, so readers find complete buffers. The file has the
handles of the buffers, and names their publisher. A reader locks the file, as that of any version,
opens the buffers, and unlocks the file after it has closed them. Once the file has no name and no lock,
the publisher uses its buffers for another version, or frees them. When the publisher ends, the driver
frees its buffers, and each use of a snapshot of them raises an error.
"""

import asyncio
import contextlib
import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.context import describe_self
from shoal.errors import (
    DependencyError,
    PeerLostError,
    ShoalValueError,
    TransportError,
    WeightsError,
    WeightsMemoryError,
)
from shoal.fork import ChildStage, in_child
from shoal.loop import submit
from shoal.process import Origin, own_process
from shoal.reused_threads import result_from_thread
from shoal.shm.shared_files.names import Key, is_dead, key_of
from shoal.transport.torch.ipc import device_index, device_uuid
from shoal.weights import timing
from shoal.weights.cuda import CudaError, Gpu, refusal
from shoal.weights.description import Description, names_of
from shoal.weights.layout import ALIGNMENT, StateLayout
from shoal.weights.version import FilePart, Version

if TYPE_CHECKING:
    import torch

__all__ = [
    "DeviceOwner",
    "Devices",
    "copy_to_devices",
    "keep_devices",
    "open_devices",
    "owner_of",
    "release_devices",
]

_NOTE = "devices"
"""The note of a version's description that has a `DeviceOwner`."""


class DeviceOwner(NamedTuple):
    """The process that published a version, and the buffers in which its tensors are.

    Attributes:
        process: The process.
        who: Its name, for messages.
        buffers: The UUID of the GPU, the handle and the size of each buffer.
    """

    process: Key
    who: str
    buffers: tuple[tuple[str, bytes, int], ...]

    def check(self, version: Version) -> None:
        """Check that the process runs, because the driver frees its buffers when it ends.

        Args:
            version: The version, for the error.

        Raises:
            PeerLostError: The process has ended.
        """
        if is_dead(self.process):
            raise PeerLostError(
                f"{describe_self()}: version {version} of weights was in the memory of a GPU of {self.who}, "
                "which has ended: drop the snapshot, and wait for a newer version"
            )


class _Memory:
    """A buffer that this process has allocated, or has opened by its handle.

    Args:
        gpu: Its GPU.
        address: Its address in this process.
        nbytes: Its size.
        handle: The handle by which other processes open it.
        end: Frees or closes the address, when Python deletes this object.
    """

    def __init__(
        self, gpu: Gpu, address: int, nbytes: int, handle: bytes, end: Callable[[int], None]
    ) -> None:
        self.gpu, self.address, self.nbytes, self.handle = gpu, address, nbytes, handle
        # At the exit of the process the driver frees and closes all buffers.
        weakref.finalize(self, _end, Origin(), end, address).atexit = False


def _end(origin: Origin, end: Callable[[int], None], address: int) -> None:
    if origin.is_here:
        with contextlib.suppress(CudaError):  # the driver has ended
            end(address)


class DeviceBlock:
    """A part of a buffer, which `torch.as_tensor` accepts.

    Args:
        gpu: The GPU of the buffer.
        address: The address of the part.
        size: Its number of bytes.
        keep: An object that lives as long as a tensor on the part does.
    """

    def __init__(self, gpu: Gpu, address: int, size: int, keep: Any) -> None:
        self._gpu, self._address, self._size, self._keep = gpu, address, size, keep

    def __len__(self) -> int:
        return self._size

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        where = self._address, False  # torch knows no memory that cannot be written to
        return {"shape": (self._size,), "typestr": "|u1", "data": where, "version": 3}

    def tensor(self) -> "torch.Tensor":
        """Return the bytes as a tensor."""
        import torch

        device = torch.device("cuda", self._gpu.index)
        if not self._size:
            return torch.empty(0, dtype=torch.uint8, device=device)
        return torch.as_tensor(self, device=device)


class Devices:
    """A buffer of a snapshot. A snapshot slices it as it slices the mapped memory of a file.

    The snapshot and each tensor on the buffer refer to this object. When the last of them is deleted, this
    process closes the buffer, and then unlocks the version's file.

    Args:
        memory: The buffer.
        lock: The mapped memory of the version's file, which holds the lock of this process.
    """

    def __init__(self, memory: _Memory, lock: memoryview) -> None:
        self._gpu, self._address = memory.gpu, memory.address
        # Only this list refers to the buffer and the lock, so `_close` decides which ends first.
        weakref.finalize(self, _close, Origin(), memory.gpu, [memory, lock]).atexit = False

    def __getitem__(self, place: slice) -> DeviceBlock:
        size = place.stop - place.start
        return DeviceBlock(self._gpu, self._address + place.start, size, self)

    def synchronize(self) -> None:
        """Wait for all that this process has begun on the GPU."""
        self._gpu.synchronize()


_not_closed: list[Any] = []
"""Buffers and locks that this process keeps: the driver did not say that the GPU is done with them."""


def _close(origin: Origin, gpu: Gpu, memory_and_lock: list[Any]) -> None:
    """Wait for the GPU, which may still read the buffer; close the buffer; unlock the file."""
    if origin.is_here:
        try:
            gpu.synchronize()
        except CudaError:
            _not_closed.append(memory_and_lock)
            return
    del memory_and_lock[0]
    memory_and_lock.clear()


# The publisher.


class _Published(NamedTuple):
    """A version that this process has published, and whose buffers readers may use.

    Attributes:
        paths: The two names that its file has, one after the other; see `keep_devices`.
        descriptor: Its file.
        memories: Its buffers.
    """

    paths: tuple[Path, Path]
    descriptor: int
    memories: Sequence[_Memory]


_own: "weakref.WeakValueDictionary[bytes, _Memory]" = weakref.WeakValueDictionary()
"""The buffers that this process has allocated, by their handles."""

_published: list[_Published] = []
_free: list[_Memory] = []
"""Allocated buffers that no version uses."""

_looks = threading.Event()
"""Set while `_look_around` runs."""

_lock = threading.RLock()
"""A thread that uses one of these holds it."""


def _forget() -> None:
    global _lock  # noqa: PLW0603  (another thread of the parent may have held it)
    _lock = threading.RLock()
    for one in _published:
        os.close(one.descriptor)
    _published.clear()
    _free.clear()
    _looks.clear()
    _own.clear()


in_child(ChildStage.FORGET, _forget)


Placed = tuple[dict[int, tuple[FilePart, int]], dict[str, Any], list[_Memory]]


def copy_to_devices(layout: StateLayout, version: Version, name: str) -> Placed:
    """Copy the blocks of a state that are on GPUs into buffers, and wait for the copies.

    Args:
        layout: The state.
        version: The version.
        name: The weights, for messages.

    Returns:
        The place of each block, the notes of the version's description, and the buffers.

    Raises:
        ShoalValueError: A tensor is on another device.
        WeightsError: This process cannot share memory of its GPUs.
        WeightsMemoryError: A GPU has no room.
    """
    devices = sorted({piece.device for piece in layout.pieces if piece.device})
    if not devices:
        return {}, {}, []
    import torch

    for number, piece in enumerate(layout.pieces):
        if piece.device and torch.device(piece.device).type != "cuda":
            first = names_of(layout.entries, number)[0]
            raise ShoalValueError(
                f"publish: {first!r} is on {piece.device}: weights with device_memory=True take "
                "tensors of CUDA devices and of the CPU"
            )
    why = refusal(torch)
    if why is not None:
        raise _cannot_share(name, why)
    places: dict[int, tuple[FilePart, int]] = {}
    memories = []
    for number, device in enumerate(devices):
        end = 0
        for block, piece in enumerate(layout.pieces):
            if piece.device == device:
                places[block] = FilePart(*version, -1 - number), end
                end = -(-(end + piece.size) // ALIGNMENT) * ALIGNMENT
        memories.append(_take_buffer(torch.device(device).index or 0, max(1, end), name))
    with _lock:
        _free.clear()  # the next version will have the sizes of this one
    for number, (part, start) in places.items():
        piece = layout.pieces[number]
        if piece.size:
            memory = memories[-1 - part.file]
            target = DeviceBlock(memory.gpu, memory.address + start, piece.size, memory)
            piece.source(target.tensor())
    for memory in memories:
        torch.cuda.current_stream(memory.gpu.index).synchronize()
    buffers = tuple((device_uuid(one.gpu.index), one.handle, one.nbytes) for one in memories)
    owner = DeviceOwner(key_of(own_process()), describe_self(), buffers)
    return places, {_NOTE: tuple(owner)}, memories


def _cannot_share(name: str, why: str) -> WeightsError:
    return WeightsError(
        f"{describe_self()}: publish: {name} have device_memory=True, and this process cannot share memory "
        f"of its GPU: {why}; create them without it, then versions go through the memory of the CPU"
    )


def _take_buffer(index: int, nbytes: int, name: str) -> _Memory:
    """Return a free buffer of this size, or allocate one.

    Args:
        index: The number of the GPU.
        nbytes: The size.
        name: The weights, for messages.

    Raises:
        WeightsError: This process cannot share memory of the GPU.
        WeightsMemoryError: The GPU has no room.
    """
    with _lock:
        for memory in _free:
            if (memory.gpu.index, memory.nbytes) == (index, nbytes):
                _free.remove(memory)
                return memory
    try:
        gpu = Gpu.of(index)
    except CudaError as error:
        raise _cannot_share(name, str(error)) from None
    try:
        address, handle = _allocate(gpu, nbytes)
    except CudaError as error:
        if not error.is_out_of_memory:
            raise _cannot_share(name, str(error)) from None
        raise WeightsMemoryError(
            f"{describe_self()}: publish: no room for a version of {name} in the memory of cuda:{index}: "
            f"it needs {nbytes:,} bytes, and {gpu.room():,} are free. Let readers drop old snapshots, use "
            "a smaller keep=, or create the weights without device_memory="
        ) from None
    memory = _Memory(gpu, address, nbytes, handle, gpu.free)
    _own[handle] = memory
    return memory


def _allocate(gpu: Gpu, nbytes: int) -> tuple[int, bytes]:
    """Allocate memory; if the GPU has no room, free what this process does not use, and try again."""
    try:
        return gpu.allocate(nbytes)
    except CudaError as error:
        if not error.is_out_of_memory:
            raise
    with _lock:
        _free.clear()
    import torch

    torch.cuda.empty_cache()
    return gpu.allocate(nbytes)


@contextlib.contextmanager
def keep_devices(
    file: Path, paths: tuple[Path, Path], memories: Sequence[_Memory]
) -> Iterator[None]:
    """Keep the buffers of a version until no reader can use them; the block names the version's file.

    Args:
        file: The file of the version.
        paths: The name that the block gives the file, and the name of the file of a retired version.
        memories: The buffers.
    """
    with _lock:  # before the file has its name, `release_devices` would take it for a removed one
        if memories:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            _published.append(_Published(paths, descriptor, memories))
            if not _looks.is_set():
                _looks.set()
                submit(_look_around())
        yield


async def _look_around() -> None:
    while _looks.is_set():
        await asyncio.sleep(timing.TIMING.look_s)  # no event says that a reader has unlocked a file
        await result_from_thread(_look)  # the driver may wait for the GPU before it frees memory


def _look() -> None:
    with _lock:
        with contextlib.suppress(OSError):  # the next look may succeed
            release_devices()
        if not _published:
            _free.clear()
            _looks.clear()


def release_devices() -> None:
    """Find the buffers that no reader can use any more, and make them free for the next version."""
    with _lock:
        for one in list(_published):
            # A publisher renames the file from the first name to the second, so the first is tested first.
            if any(path.exists() for path in one.paths):
                continue
            # A publisher removes a name after the last reader has unlocked the file. The end of a job
            # removes the whole folder, and readers may still have their locks then.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(one.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(one.descriptor, fcntl.LOCK_UN)
                os.close(one.descriptor)
                _published.remove(one)
                _free.extend(one.memories)


# Readers.


def owner_of(description: Description) -> DeviceOwner | None:
    """Return the publisher of a version that has buffers; None if the version has none."""
    found = description.notes.get(_NOTE)
    return None if found is None else DeviceOwner(*found)


def open_devices(
    owner: DeviceOwner, version: Version, name: str, lock: memoryview
) -> Sequence[Devices]:
    """Open the buffers of a version.

    Args:
        owner: The process that published it.
        version: The version.
        name: The weights, for messages.
        lock: The mapped memory of the version's file, which holds the lock of this process.

    Raises:
        DependencyError: torch is not installed.
        PeerLostError: The process has ended.
        WeightsError: This process cannot open them.
    """
    owner.check(version)
    what = (
        f"{describe_self()}: version {version} of {name} is in the memory of a GPU of {owner.who}, which "
        "this process cannot read"
    )
    if owner.process[0] != key_of(own_process())[0]:
        raise WeightsError(f"{what}: it would not see the end of a process of another container")
    try:
        import torch
    except ModuleNotFoundError:
        raise DependencyError(
            f"{what}: torch is not installed here; run: pip install torch"
        ) from None
    why = refusal(torch)
    if why is not None:
        raise WeightsError(f"{what}: {why}")
    try:
        seen = [device_uuid(index) for index in range(torch.cuda.device_count())]
        return [Devices(_open(buffer, seen), lock) for buffer in owner.buffers]
    except (CudaError, TransportError) as error:
        owner.check(version)
        raise WeightsError(f"{what}: {error}") from None


def _open(buffer: tuple[str, bytes, int], seen: list[str]) -> _Memory:
    """Open a buffer of `DeviceOwner`, given the UUIDs of the GPUs that this process sees."""
    uuid, handle, nbytes = buffer
    own = _own.get(handle)
    if own is not None:  # CUDA refuses to open a buffer of the same process
        return own
    gpu = Gpu.of(device_index(uuid, seen))
    return _Memory(gpu, gpu.open(handle), nbytes, handle, gpu.close)
