"""Sends tensors between different accelerators of one kind, by the vendor's library.

Frames travel over a `TorchPair`, with the sizes of the tensors. The tensors go directly from
device to device. `ipc` serves two processes on the same device.
"""

import contextlib
import importlib
import struct
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self

from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError, TransportError
from shoal.hardware.accelerators.nvidia import set_nccl_options
from shoal.process import Origin
from shoal.transport.torch.forks import keep_in_children
from shoal.transport.torch.pair import TorchPair
from shoal.transport.torch.store import connect_store, server_at
from shoal.transport.torch.watch import Watch

if TYPE_CHECKING:
    import torch

__all__ = [
    "AcceleratorOptions",
    "AcceleratorPair",
    "make_accelerator_group",
    "stage_to_pinned_cpu",
]

_FIRST_PAUSE_S = 0.00002
_LONGEST_PAUSE_S = 0.001
_LOOK_EVERY_S = 0.5
_REACH_S = 30.0
_SIZE = struct.Struct("<I")


class AcceleratorOptions(Protocol):
    """The options of a group, as in `shoal.collective.CollectiveGroupOptions`."""

    accel_cluster_size: int | None
    accel_max_ctas: int | None
    accel_min_ctas: int | None
    is_high_priority_stream: bool


def stage_to_pinned_cpu(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return a contiguous copy in pinned host memory; for a CPU tensor, `tensor.contiguous()`."""
    import torch

    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    staged = torch.empty(
        tensor.shape,
        dtype=tensor.dtype,
        device="cpu",
        pin_memory=True,
        memory_format=torch.contiguous_format,
    )
    staged.copy_(tensor)
    return staged


def make_accelerator_group(
    store: Any,
    rank: int,
    size: int,
    kind: str,
    options: AcceleratorOptions | None,
    timeout: float,
) -> Any:
    """Return a group of the vendor's backend class, independent of the user's default group.

    Args:
        store: A store with a prefix that no other group has used. The group keeps it alive.
        rank: The rank of this process.
        size: The number of ranks.
        kind: torch's name of the kind of device, for example `cuda`.
        options: Options of the vendor's library; None for the library's defaults.
        timeout: Seconds before the library gives up an operation.

    Raises:
        TransportError: The installed torch has no library for such devices.
    """
    backend = _find_backend(kind)
    if backend is None:
        raise TransportError(
            f"the installed torch cannot send between {kind} devices: it has no backend class for "
            "them; install the vendor's build of torch, or let tensors go through host memory"
        )
    limit = timedelta(seconds=min(timeout, 1e8))
    made = _vendor_options(backend, options)
    if made is None:
        return backend(store, rank, size, limit)
    made._timeout = limit  # noqa: SLF001  (torch has no other name for it)
    return backend(store, rank, size, made)


def _find_backend(kind: str) -> Any | None:
    """Return torch's process-group class for a kind of device, or None."""
    import torch.distributed as dist

    if kind == "cuda" and dist.is_nccl_available():
        return getattr(dist, "ProcessGroupNCCL", None)
    if kind == "xpu":
        return getattr(dist, "ProcessGroupXCCL", None)
    modules = {
        "npu": ("torch_npu._C._distributed_c10d", "ProcessGroupHCCL"),
        "musa": ("torch_musa._MUSAC", "ProcessGroupMCCL"),
    }
    if kind not in modules:
        return None
    name, attribute = modules[kind]
    try:
        return getattr(importlib.import_module(name), attribute, None)
    except ImportError:
        return None


def _vendor_options(backend: Any, options: AcceleratorOptions | None) -> Any | None:
    """Return an options object of the backend, or None if the backend has no such class."""
    kind = getattr(backend, "Options", None)
    if kind is None:
        return None
    made = kind()
    if options is not None:
        set_nccl_options(made, options)
    return made


class AcceleratorPair:
    """Sends tensors in one direction between two accelerators; used like a `TorchPair`.

    Both ends must be made with the same options. `send` and `recv_tensors` return when the device
    has done the transfer, so they also raise its errors and enforce its deadline.

    Args:
        host: This process's end of a pair in host memory, for frames.
        device: The device of this process.
        options: Options of the vendor's library.
    """

    def __init__(
        self,
        host: TorchPair,
        device: "torch.device",
        options: AcceleratorOptions | None,
    ) -> None:
        self.host = host
        self.device = device
        self._options = options
        self._group: Any = None
        self._origin = Origin("a pair of accelerators")
        self._sizes: tuple[int, ...] = ()
        keep_in_children(self)

    @classmethod
    def offer(
        cls,
        ip: str,
        me: str,
        peer: str,
        device: "torch.device",
        options: AcceleratorOptions | None = None,
    ) -> Self:
        """Make the sender's end; see `TorchPair.offer`."""
        return cls(TorchPair.offer(ip, me, peer), device, options)

    @classmethod
    def join(
        cls,
        address: dict[str, Any],
        ip: str,
        me: str,
        peer: str,
        device: "torch.device",
        deadline: Deadline,
        watch: Watch | None = None,
        options: AcceleratorOptions | None = None,
    ) -> Self:
        """Make the receiver's end; see `TorchPair.join`."""
        host = TorchPair.join(address, ip, me, peer, deadline, watch)
        pair = cls(host, device, options)

        def open_store() -> Any:
            limit = min(deadline.remaining, _REACH_S)
            return connect_store(address["host"], address["port"], limit)

        pair._connect(open_store, 1, deadline)
        return pair

    @property
    def address(self) -> dict[str, Any]:
        """The data that the receiver needs to join; same as `TorchPair.address`."""
        return self.host.address

    @property
    def closed(self) -> bool:
        """Whether the pair can no longer be used."""
        return self.host.closed

    def connect(self, deadline: Deadline, watch: Watch | None = None) -> None:
        """Wait for the receiver to join; see `TorchPair.connect`."""
        self.host.connect(deadline, watch)
        server = server_at(self.address["host"])
        self._connect(server.store.clone, 0, deadline)

    def _connect(self, open_store: Callable[[], Any], rank: int, deadline: Deadline) -> None:
        from torch._C._distributed_c10d import PrefixStore

        store = PrefixStore(f"{self.address['token']}/devices", open_store())
        try:
            self._group = make_accelerator_group(
                store, rank, 2, self.device.type, self._options, deadline.remaining
            )
        except BaseException:
            self.close()
            raise

    def send(
        self,
        frame: bytes,
        tensors: "Sequence[torch.Tensor]",
        deadline: Deadline,
        watch: Watch | None = None,
    ) -> None:
        """Send a frame and tensors of this device; see `TorchPair.send`."""
        self._origin.check()
        flat = self._flatten(tensors, "send to")
        sizes = [tensor.numel() for tensor in flat]
        head = _SIZE.pack(len(sizes)) + struct.pack(f"<{len(sizes)}Q", *sizes)
        self.host.send(head + frame, [], deadline, watch)
        self._run("send to", [(t, self._group.send, 1) for t in flat], deadline, watch)

    def recv_frame(self, deadline: Deadline, watch: Watch | None = None) -> bytes:
        """Receive the frame of the next message; see `TorchPair.recv_frame`."""
        if self._sizes:
            import torch

            # The tensors of the previous message were not received: drop them.
            dropped = [
                torch.empty(size, dtype=torch.uint8, device=self.device) for size in self._sizes
            ]
            self.recv_tensors(dropped, deadline, watch)
        frame = self.host.recv_frame(deadline, watch)
        (count,) = _SIZE.unpack_from(frame)
        self._sizes = struct.unpack_from(f"<{count}Q", frame, _SIZE.size)
        return frame[_SIZE.size + 8 * count :]

    def recv_tensors(
        self, into: "Sequence[torch.Tensor]", deadline: Deadline, watch: Watch | None = None
    ) -> None:
        """Receive the last frame's tensors into tensors of this device.

        See `TorchPair.recv_tensors`.
        """
        self._origin.check()
        flat = self._flatten(into, "receive from")
        sizes = tuple(tensor.numel() for tensor in flat)
        if sizes != self._sizes:
            raise TransportError(
                f"{self._what('receive from')}: tensors of {list(self._sizes)} bytes were sent; "
                f"those to receive into have {list(sizes)}"
            )
        self._run("receive from", [(t, self._group.recv, 0) for t in flat], deadline, watch)
        self._sizes = ()

    def close(self) -> None:
        """Close the pair: waits in it fail, the peer's too. Idempotent."""
        if not self._origin.is_here:
            return
        self.host.close()
        group, self._group = self._group, None
        if group is not None:
            with contextlib.suppress(RuntimeError, AttributeError):  # a library without abort
                group.abort()

    def _flatten(self, tensors: "Sequence[torch.Tensor]", verb: str) -> "list[torch.Tensor]":
        import torch

        flat = []
        for index, tensor in enumerate(tensors):
            if tensor.device.type != self.device.type or not tensor.is_contiguous():
                raise TransportError(
                    f"{self._what(verb)}: tensor {index} on {tensor.device} must be contiguous "
                    f"when using P2P communication, and on a {self.device.type} device"
                )
            flat.append(tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8))
        return flat

    def _run(
        self,
        verb: str,
        transfers: "list[tuple[torch.Tensor, Callable[..., Any], int]]",
        deadline: Deadline,
        watch: Watch | None,
    ) -> None:
        """Post transfers and wait until the device has completed them."""
        try:
            works = [post([t], rank, 0) for t, post, rank in transfers if t.numel()]
            self._wait(verb, works, deadline, watch)
        except BaseException:
            self.close()
            raise

    def _wait(self, verb: str, works: list[Any], deadline: Deadline, watch: Watch | None) -> None:
        pause, looked = _FIRST_PAUSE_S, time.monotonic()
        with LongWait(lambda: self._what(verb), deadline) as long:
            for work in works:
                while not work.is_completed():
                    if deadline.expired:
                        raise ShoalTimeoutError(
                            f"{self._what(verb)}: not done within {deadline.timeout:g} s; this pair "
                            "is closed"
                        )
                    if time.monotonic() - looked > _LOOK_EVERY_S:
                        looked = time.monotonic()
                        long.tick()
                        error = None if watch is None else watch()
                        if error is not None:
                            raise error
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
                work.wait()  # orders the caller's stream after the transfer; raises its error

    def _what(self, verb: str) -> str:
        return f"{self.host.me}: {verb} {self.host.peer} ({self.device})"
