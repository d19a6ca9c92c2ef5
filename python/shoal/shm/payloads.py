"""Payloads that are written once and read by many processes of a node without a copy.

A writer copies an object's bytes into a file in memory and makes one hard link to it for each
reader. A reader maps the file copy-on-write: what it gets is its own, writable, and costs memory
only where it writes. The kernel counts who still uses a file, so that a process that is killed at
any instruction leaves no wrong count behind.

The steps, and why each may be the last one of its process:

1. The writer takes a file *that no reader can see* and copies the payload into it.
2. It makes the links, each under a name that is used once, and sends each reader the name.
3. A reader opens its link, takes a shared `flock`, maps the file privately, closes the descriptor
   and unlinks the link, in this order. The lock belongs to the open file, which the mapping keeps
   open until the last view of it is gone or the process is dead. (Where a file system does not
   keep the opened file open, the descriptor stays open as long as the mapping; `Pool` finds out.)
4. The writer takes the file again for step 1 after two tests, in this order: its link count is 1,
   which is the base name alone, and then an exclusive `flock` can be had.

*No reader's bytes change.* Only the writer makes links, so that after a link count of 1 there is
no further reader of this payload until the next step 2. A reader holds its link (count above 1)
until it has the lock, and the lock until its mapping is gone. So a reader that is anywhere between
the creation of its link and its `unlink` fails the first test; one that is between the `unlink`
and the end of its mapping had its lock before the first test, and fails the second. The opposite
order of the tests would be wrong: a reader could take its lock and drop its link between them.
One that holds neither has no mapping. If a link is removed by a process that takes the reader for
dead while another process opens it (a forked child of the reader), the opener finds at its own
`unlink` that the link is gone, and raises an error instead of using the bytes: an `unlink` that
succeeds proves that the link was there the whole time before, when the lock was taken.

*Nothing that was announced is lost.* The links keep the bytes when the writer dies, and when its
base name is removed. A reader that fails before its `unlink` can open the same link again.

*Everything is given back.* A dead reader's lock and mapping go with it; its link, if it had not
taken the payload, is removed by `PayloadWriter.forget`, by the writer when it looks for a free
file, or by `sweep`. A dead writer's base names are removed by the `sweep` of the next writer that
starts in the folder; the bytes then go with the last link and mapping. Links that a writer made
but did not announce before it died stay until their readers are dead or the folder is removed. So
do links whose reader is alive but whose user, a forked child of it, died. All of this holds for the
fallback folder too, which is not removed with a session: the next writer that needs it sweeps it.
"""

import array
import contextlib
import errno
import os
import stat
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import (
    ChannelClosed,
    ChannelCorruptError,
    ChannelError,
    ChannelMemoryError,
    ChannelNotFoundError,
)
from shoal.process import ProcessId, is_running
from shoal.shm.payload_names import sweep
from shoal.shm.payload_pool import NoRoomError, Pool, lock_and_map

__all__ = ["PayloadRef", "PayloadWriter", "open_payload", "sweep", "withdraw"]

PayloadRef = tuple[str, int, int]
"""One reader's reference: the path of its link, the size in bytes, and 1 where the descriptor must
stay open, else 0. It is valid for one `open_payload`."""

_ALIGNMENT = 64
_IDLE_S = 30.0
_KEPT_BYTES = 512 * 2**20
_KEPT_FILES = 2


class PayloadWriter:
    """Writes payloads for other processes of this node; one for each process and folder.

    Free files are kept for the next payload, because fresh memory is several times slower: up to
    512 MiB or 2 files, for 30 s. The methods may be called from any thread. A forked child that
    uses the object begins with files of its own.

    Args:
        folder: A folder of this user in memory, as `Session.token` names one.
        fallback: Where payloads go that have no room there; None for `SHOAL_SHM_DIR`, else the
            temporary folder.

    Raises:
        ChannelNotFoundError: `folder` does not exist.
        ChannelError: Its file system has no locks or links that tell who uses a file.
    """

    def __init__(self, folder: str, fallback: str | None = None) -> None:
        self._folder = folder
        self._fallback = fallback
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._warned = False
        self._timer: threading.Timer | None = None
        sweep(self._folder)
        self._pools = [Pool(self._folder)]
        weakref.finalize(self, _close, self._pid, self._pools)

    def write(
        self, head: Any, buffers: Sequence[Any], readers: Sequence[ProcessId]
    ) -> list[PayloadRef]:
        """Write a payload once, for several readers.

        Args:
            head: Bytes, as `shoal.pickling.dumps` returns them first.
            buffers: Contiguous buffers, as it returns them second. They may change afterwards.
            readers: The processes that will open the payload, of this node.

        Returns:
            One reference for each reader, in their order. Pass a reference that cannot be sent to
            `withdraw`.

        Raises:
            ChannelMemoryError: There is no room, in the fallback folder either.
            ChannelNotFoundError: The folder was removed.
            ChannelClosed: `close` was called.
        """
        self._check()
        if not readers:
            return []
        parts, size = _laid_out(head, buffers)
        # The texts alone: an error would hold the frames that it passed, and with them files.
        refused: list[str] = []
        for pool in self._with_room(refused):
            try:
                return self._write(pool, parts, size, readers)
            except NoRoomError as error:
                refused.append(f"{pool.folder}: {error}")
        raise ChannelMemoryError(
            f"a payload of {size} bytes has no room: {'; '.join(dict.fromkeys(refused))}"
        )

    def untaken(self, reader: ProcessId | None = None) -> int:
        """Return the bytes of the payloads that some living reader has not opened yet.

        Args:
            reader: Count those that this one has not opened; None for any.
        """
        self._check()
        with self._lock:
            return sum(
                file.nbytes
                for pool in self._pools
                for file in pool.files
                if any(
                    os.path.lexists(path) and is_running(its)
                    for path, its in list(file.links.items())
                    if reader in (None, its)
                )
            )

    def forget(self, reader: ProcessId) -> None:
        """Remove what a reader has not opened: it is dead, or will not open it."""
        self._check()
        with self._lock:
            for file in [file for pool in self._pools for file in pool.files]:
                file.withdraw([path for path, its in list(file.links.items()) if its == reader])

    def trim(self) -> None:
        """Give back the memory of all files that no reader uses."""
        self._check()
        with self._lock:
            for pool in self._pools:
                pool.trim(0)

    def close(self) -> None:
        """Remove the files. Readers can still open what was announced to them. Idempotent."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed = True
            _close(self._pid, self._pools)
            if self._timer is not None:
                self._timer.cancel()

    def _check(self) -> None:
        if self._pid != os.getpid():
            self._begin()  # a forked child: the files and links are its parent's
        if self._closed:
            raise ChannelClosed(f"the writer of payloads in {self._folder} was closed")

    def _with_room(self, refused: list[str]) -> Iterator[Pool]:
        yield self._pools[0]
        with self._lock:
            for pool in self._pools:
                pool.trim(0)
        sweep(self._folder)
        yield self._pools[0]
        yield self._fallback_pool(refused[-1])

    def _fallback_pool(self, why: str) -> Pool:
        with self._lock:
            base = self._fallback or os.environ.get("SHOAL_SHM_DIR") or tempfile.gettempdir()
            folder = _own_folder(base)
            if len(self._pools) == 1:
                sweep(folder)
                self._pools.append(Pool(folder))
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"no room for a payload ({why}): it goes to {folder} "
                    "instead, which may be slower; in a container, raise --shm-size (Kubernetes: the "
                    "sizeLimit of an emptyDir of medium Memory), or set SHOAL_SHM_DIR",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return self._pools[1]

    def _write(
        self, pool: Pool, parts: list[tuple[int, Any]], size: int, readers: Sequence[ProcessId]
    ) -> list[PayloadRef]:
        with self._lock:
            file = pool.take(size)
        try:
            file.write(parts)
            file.nbytes = size
            file.links.clear()
            keeps = int(pool.keeps_descriptor)
            return [(pool.new_link(file, reader), size, keeps) for reader in readers]
        except BaseException:
            file.withdraw(list(file.links))
            raise
        finally:
            with self._lock:
                if self._closed:
                    file.remove()
                else:
                    pool.put_back(file)
                    pool.trim(_IDLE_S, _KEPT_BYTES, _KEPT_FILES)
                    self._trim_later()

    def _trim_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_IDLE_S, _trim_idle, (weakref.ref(self),))
            self._timer.daemon = True
            self._timer.start()

    def _trim_idle(self) -> None:
        with self._lock:
            self._timer = None
            if self._closed:
                return
            for pool in self._pools:
                pool.trim(_IDLE_S, _KEPT_BYTES, _KEPT_FILES)
            if any(pool.files for pool in self._pools):
                self._trim_later()


def open_payload(ref: PayloadRef) -> tuple[memoryview, list[memoryview]]:
    """Take a payload: map it for this process alone.

    Args:
        ref: A reference that was made for this process. It can be opened once.

    Returns:
        The head and the buffers, for `shoal.pickling.loads`: writable views that start at multiples
        of 64 bytes. They hold the memory of the whole payload as long as any of them is in use.

    Raises:
        ChannelNotFoundError: The payload was opened or withdrawn already, or its folder removed.
        ChannelMemoryError: There is no room for the mapping; the reference stays valid.
        ChannelCorruptError: The file does not hold the payload.
    """
    path, size, keeps = ref
    try:
        view = lock_and_map(path, size, keep=bool(keeps))
        # Last, and it has to succeed: that the link was there until now is what keeps the writer
        # from the file.
        Path(path).unlink()
    except FileNotFoundError as error:
        raise ChannelNotFoundError(
            f"no payload at {path}: it was opened or withdrawn, or its session was removed"
        ) from error
    except BlockingIOError as error:
        raise ChannelCorruptError(f"the payload at {path} is being written") from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise ChannelMemoryError(f"no room to map {size} bytes of {path}: {error}") from error
        raise ChannelError(f"the payload at {path} cannot be opened: {error}") from error
    return _parts_of(view, path)


def withdraw(ref: PayloadRef) -> None:
    """Give back a reference that was not sent. Idempotent."""
    Path(ref[0]).unlink(missing_ok=True)


def _laid_out(head: Any, buffers: Sequence[Any]) -> tuple[list[tuple[int, Any]], int]:
    """Return each part with its offset, and the end of the last; the first is a table of sizes."""
    views = [memoryview(head), *(memoryview(buffer) for buffer in buffers)]
    table = array.array("Q", [len(views), *(view.nbytes for view in views)])
    parts: list[tuple[int, Any]] = []
    end = 0
    for view in (memoryview(table).cast("B"), *views):
        start = _aligned(end)
        parts.append((start, view))
        end = start + view.nbytes
    return parts, end


def _parts_of(view: memoryview, path: str) -> tuple[memoryview, list[memoryview]]:
    count = int.from_bytes(view[:8], "little")
    end = 8 * (1 + count)
    if count < 1 or end > len(view):
        raise ChannelCorruptError(f"the payload at {path} has {count} parts in {len(view)} bytes")
    found = []
    for size in view[8:end].cast("Q").tolist():
        start = _aligned(end)
        end = start + size
        found.append(view[start:end])
    if end != len(view):
        raise ChannelCorruptError(f"the payload at {path} has {len(view)} bytes, expected {end}")
    return found[0], found[1:]


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _own_folder(base: str) -> str:
    folder = Path(base) / f"shoal-{os.getuid()}-payloads"
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
            raise ChannelError(
                f"{folder} cannot hold payloads: expected a folder of this user with mode 0700"
            ) from None
    except OSError as error:
        raise ChannelMemoryError(f"{folder} cannot be made for payloads: {error}") from error
    return str(folder)


def _close(pid: int, pools: list[Pool]) -> None:
    if pid != os.getpid():
        return
    for pool in pools:
        pool.close()
    for pool in pools[1:]:
        with contextlib.suppress(OSError):
            pool.folder.rmdir()  # shared with other writers: it goes with the last one


def _trim_idle(writer: "weakref.ref[PayloadWriter]") -> None:
    found = writer()
    if found is not None:
        found._trim_idle()  # noqa: SLF001  (a method in a function, so that the timer holds nothing)
