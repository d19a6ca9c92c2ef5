"""Payloads that one process writes once and many processes of its node read without a copy.

A writer copies an object's bytes into a file in memory and makes one hard link to it for each
reader. A reader maps the file copy-on-write: it gets a writable payload of its own, which costs
memory only where it is written to. The kernel counts the users of a file, so the count stays right
when a process is killed at any instruction.

The steps (a process may die after each of them):

1. The writer takes a file *that no reader can see* and copies the payload into it.
2. It makes the links, each under a name that is used only once, and sends each reader its name.
3. A reader opens its link, takes a shared `flock`, maps the file privately, closes the descriptor
   and unlinks the link, in this order. The lock belongs to the open file, which the mapping keeps
   open until the last view of it is gone or the process is dead. (On file systems where the
   mapping does not keep the opened file open, the descriptor stays open instead; `Pool` detects
   that.)
4. The writer reuses the file for step 1 after two tests, in this order: the link count is 1, so
   only the base name is left; and an exclusive `flock` succeeds.

*The bytes of a reader never change.* Only the writer makes links, so after a link count of 1 this
payload gets no new reader until the next step 2. A reader holds its link (link count above 1) until
it has the lock, and the lock until its mapping is gone. So a reader between the creation of its
link and its `unlink` makes the first test fail. A reader between its `unlink` and the end of its
mapping had the lock before the first test, and makes the second test fail. A reader that holds
neither link nor lock has no mapping. The opposite order of the tests would be wrong: a reader could
take its lock and remove its link between them. A process that considers the reader dead may remove
the link while a forked child of the reader opens it. The child's own `unlink` then fails, and the
child raises an error instead of using the bytes: an `unlink` that succeeds proves that the link
existed until then, also when the lock was taken.

*No announced payload is lost.* The links keep the bytes when the writer dies, and when its base
name is removed. A reader that fails before its `unlink` can open the same link again.

*All memory is reclaimed.* The lock and mapping of a reader end with its process. If it had not
taken the payload, its link is removed by `PayloadWriter.forget`, by the writer when it looks for a
free file, or by `sweep`. The base names of a dead writer are removed by the `sweep` of the next
writer that starts in the folder; the bytes then go with the last link and mapping. Links that a
writer made but did not announce before it died stay until their readers are dead or the folder is
removed. So do links whose reader is alive but whose user, a forked child of the reader, died. All
of this also holds for the fallback folder, which is not removed with a session: the next writer
that needs it sweeps it.
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
from shoal.process import Origin, ProcessId
from shoal.shm import timing
from shoal.shm.shared_files.names import sweep
from shoal.shm.shared_files.pool import NoRoomError, Pool, lock_and_map

__all__ = ["PayloadRef", "PayloadWriter", "open_payload", "sweep", "withdraw"]

PayloadRef = tuple[str, int, int]
"""One reader's reference to a payload: the path of its link, the size in bytes, and 1 if the
descriptor must stay open, else 0. It is valid for one `open_payload`."""

_ALIGNMENT = 64
_KEPT_BYTES = 512 * 2**20
_KEPT_FILES = 2


class PayloadWriter:
    """Writes payloads for other processes of this node; one object for each process and folder.

    Free files are kept for the next payload, because fresh memory is several times slower: up to
    512 MiB or 2 files, for 30 s. The methods may be called from any thread. A forked child that
    uses the object starts with files of its own.

    Args:
        folder: A folder of this user in memory, such as `Session.token`.
        fallback: The folder for payloads that find no room in `folder`; None for `SHOAL_SHM_DIR`,
            else the temporary folder.

    Raises:
        ChannelNotFoundError: `folder` does not exist.
        ChannelError: Its file system lacks the locks or link counts that show whether a file is in
            use.
    """

    def __init__(self, folder: str, fallback: str | None = None) -> None:
        self._folder = folder
        self._fallback = fallback
        self._begin()

    def _begin(self) -> None:
        self._origin = Origin()
        self._lock = threading.Lock()
        self._closed = False
        self._warned = False
        self._timer: threading.Timer | None = None
        sweep(self._folder)
        self._pools = [Pool(self._folder)]
        weakref.finalize(self, _close, self._origin, self._pools)

    def write(
        self, head: Any, buffers: Sequence[Any], readers: Sequence[ProcessId]
    ) -> list[PayloadRef]:
        """Write a payload once, for several readers.

        Args:
            head: The pickle that `shoal.pickling.dumps` returned.
            buffers: The contiguous buffers that it returned. They may change after this call.
            readers: The processes of this node that will open the payload.

        Returns:
            One reference for each reader, in the order of `readers`. Pass a reference that cannot
            be sent to `withdraw`.

        Raises:
            ChannelMemoryError: There is no room, not even in the fallback folder.
            ChannelNotFoundError: The folder was removed.
            ChannelClosed: `close` was called.
        """
        self._check()
        if not readers:
            return []
        parts, size = _laid_out(head, buffers)
        # Only the texts: an error would keep its frames alive, and with them files.
        refused: list[str] = []
        for pool in self._with_room(refused):
            try:
                return self._write(pool, parts, size, readers)
            except NoRoomError as error:
                refused.append(f"{pool.folder}: {error}")
        raise ChannelMemoryError(
            f"a payload of {size} bytes has no room: {'; '.join(dict.fromkeys(refused))}"
        )

    def forget(self, reader: ProcessId) -> None:
        """Remove a reader's links to payloads that it has not opened and will not open."""
        self._check()
        with self._lock:
            for file in [file for pool in self._pools for file in pool.files]:
                file.withdraw([path for path, its in list(file.links.items()) if its == reader])

    def trim(self) -> None:
        """Release the memory of all files that no reader uses."""
        self._check()
        with self._lock:
            for pool in self._pools:
                pool.trim(0)

    def close(self) -> None:
        """Remove the files. Readers can still open their references. Idempotent."""
        if not self._origin.is_here:
            return
        with self._lock:
            self._closed = True
            _close(self._origin, self._pools)
            if self._timer is not None:
                self._timer.cancel()

    def _check(self) -> None:
        if not self._origin.is_here:
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
                    pool.trim(timing.TIMING.idle_s, _KEPT_BYTES, _KEPT_FILES)
                    self._trim_later()

    def _trim_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(timing.TIMING.idle_s, _trim_idle, (weakref.ref(self),))
            self._timer.daemon = True
            self._timer.start()

    def _trim_idle(self) -> None:
        with self._lock:
            self._timer = None
            if self._closed:
                return
            for pool in self._pools:
                pool.trim(timing.TIMING.idle_s, _KEPT_BYTES, _KEPT_FILES)
            if any(pool.files for pool in self._pools):
                self._trim_later()


def open_payload(ref: PayloadRef) -> tuple[memoryview, list[memoryview]]:
    """Open a payload: map it for this process only.

    Args:
        ref: A reference that was made for this process. It can be opened once.

    Returns:
        The head and the buffers, for `shoal.pickling.loads`: writable views that start at multiples
        of 64 bytes. They keep the memory of the whole payload as long as any of them is in use.

    Raises:
        ChannelNotFoundError: The payload was already opened or withdrawn, or its folder removed.
        ChannelMemoryError: There is no memory for the mapping; the reference stays valid.
        ChannelCorruptError: The file does not hold the payload.
    """
    path, size, keeps = ref
    try:
        view = lock_and_map(path, size, keep=bool(keeps))
        # Last, and it must succeed: it proves that the link existed when the lock was taken, so
        # the writer cannot have reused the file.
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
    """Cancel a reference that was not sent, by removing its link. Idempotent."""
    Path(ref[0]).unlink(missing_ok=True)


def _laid_out(head: Any, buffers: Sequence[Any]) -> tuple[list[tuple[int, Any]], int]:
    """Return each part with its offset, and the total size; the first part is a table of sizes."""
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


def _close(origin: Origin, pools: list[Pool]) -> None:
    if not origin.is_here:
        return
    for pool in pools:
        pool.close()
    for pool in pools[1:]:
        with contextlib.suppress(OSError):
            pool.folder.rmdir()  # succeeds only for the last of the writers that share it


def _trim_idle(writer: "weakref.ref[PayloadWriter]") -> None:
    found = writer()
    if found is not None:
        found._trim_idle()  # noqa: SLF001  (a function, so that the timer keeps no writer alive)
