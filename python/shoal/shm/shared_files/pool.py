"""The pool of files that a writer of payloads owns, and the test for reusing one.

`payloads` explains the steps of writers and readers, and why they are safe.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.errors import ChannelCorruptError, ChannelError, ChannelNotFoundError
from shoal.process import ProcessId, own_process
from shoal.shm.shared_files.mapping import (
    HUGE_PAGE,
    copy_into,
    map_private,
    map_shared,
    use_huge_page,
)
from shoal.shm.shared_files.names import FileName, LinkName, is_dead, key_of

__all__ = ["NoRoomError", "PayloadFile", "Pool", "is_locked", "lock_and_map"]

_STEP = HUGE_PAGE
"""Sizes of larger files are multiples of this, so that payloads of similar sizes reuse a file."""

_PAGE = 4096

_PIECE = 2**30
"""Maximum number of bytes that one call allocates: after a signal the kernel restarts the call."""

_numbers = itertools.count(secrets.randbits(40))
"""Numbers of files and links. Random start: a process keeps its identity across `exec`."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class NoRoomError(Exception):
    """The file system has no room for a payload."""


class PayloadFile:
    """One file of the pool, mapped for writing.

    Attributes:
        path: Its base path, which the writer owns.
        capacity: Its size in bytes.
        links: The links that were made for readers and are not known to be removed.
        used: The last time at which it was in use, in seconds of the monotonic clock.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        self._huge = 0  # up to this offset, the file has been put in huge pages where possible
        self._spare_s = 0.0  # time that may go into further ones; negative if one took longer
        self.links: dict[str, ProcessId] = {}
        self.used = time.monotonic()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # A page that cannot be allocated later would cause a SIGBUS during the copy.
            for start in range(0, capacity, _PIECE):
                os.posix_fallocate(descriptor, start, min(_PIECE, capacity - start))
            self.memory = map_shared(descriptor, capacity)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def write(self, parts: Sequence[tuple[int, Any]]) -> None:
        """Copy buffers to their offsets; see `fill`."""
        self.fill(lambda memory: copy_into(memory, parts))

    def fill(self, copy: Callable[[memoryview], None], share: float = 1.0) -> None:
        """Let a function copy into the memory, then spend some time on making huge pages.

        Args:
            copy: Copies into the memory of the file.
            share: Time for huge pages, as a share of the time of the copy.
        """
        start = time.monotonic()
        copy(self.memory)
        self.make_huge_pages(share * (time.monotonic() - start))

    def make_huge_pages(self, seconds: float) -> None:
        """Spend some time on making huge pages; readers may use the file meanwhile.

        The kernel may need far longer than a copy to find huge pages, even for one of them. So a large
        file gets them over several writes, and none in some writes after one that took long.
        """
        self._spare_s += seconds
        now = time.monotonic()
        while self._huge + HUGE_PAGE <= self.capacity and self._spare_s > 0:
            worth = use_huge_page(self.memory, self._huge)
            self._huge = self._huge + HUGE_PAGE if worth else self.capacity
            start, now = now, time.monotonic()
            self._spare_s -= now - start

    def is_idle(self) -> bool:
        """Whether no reader can see the file. The order of the tests matters; see `payloads`."""
        try:
            if self.path.stat().st_nlink != 1:
                return False
            return not is_locked(self.path)
        except FileNotFoundError:
            return False  # the folder was removed, so the file cannot be reused

    def link(self, path: str, reader: ProcessId) -> None:
        """Make a link for one reader."""
        os.link(self.path, path)
        self.links[path] = reader

    def withdraw(self, paths: Sequence[str]) -> None:
        """Remove links that their readers have not removed yet."""
        for path in paths:
            Path(path).unlink(missing_ok=True)
            self.links.pop(path, None)

    def drop_dead(self) -> None:
        """Forget links that were removed, and remove the links of dead readers."""
        for path, reader in list(self.links.items()):
            if not os.path.lexists(path):
                self.links.pop(path, None)
            elif is_dead(key_of(reader)):
                self.withdraw([path])

    def remove(self) -> None:
        """Remove the base name; the kernel frees the memory with the last link and mapping."""
        self.path.unlink(missing_ok=True)


class Pool:
    """The files of one writer in one folder.

    Args:
        folder: An existing folder.

    Raises:
        ChannelNotFoundError: The folder does not exist.
        ChannelError: Its file system lacks the locks or link counts that show whether a file is in
            use.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.files: list[PayloadFile] = []
        self._owner = key_of(own_process())
        self.keeps_descriptor = self._probe()

    def take(self, size: int) -> PayloadFile:
        """Remove a file from the pool that no reader can see and that has room for `size` bytes.

        Makes a new file if no file fits.

        Raises:
            NoRoomError: No file fits, and the file system has no room for a new one.
            ChannelNotFoundError: The folder was removed.
        """
        fitting = [f for f in self.files if size <= f.capacity <= max(4 * size, 2 * _STEP)]
        for attempt in range(2):
            for file in sorted(fitting, key=lambda f: f.capacity):
                if file.is_idle():
                    self.files.remove(file)
                    return file
            if attempt == 0:
                for file in fitting:
                    file.drop_dead()
        return self._create(size)

    def put_back(self, file: PayloadFile) -> None:
        """Return a file to the pool that `take` removed."""
        file.used = time.monotonic()
        self.files.append(file)

    def new_link(self, file: PayloadFile, reader: ProcessId) -> str:
        """Make a link of a file for one reader and return its path.

        Raises:
            NoRoomError: The file system has no inode for the link.
            ChannelNotFoundError: The folder was removed.
        """
        name = LinkName(FileName(self._owner, _number(file)), next(_numbers), key_of(reader))
        path = str(self.folder / str(name))
        with self._explained():
            file.link(path, reader)
        return path

    def trim(self, idle_s: float, keep_bytes: int = 0, keep_files: int = 0) -> None:
        """Remove files that no reader can see.

        Args:
            idle_s: Remove files that have been out of use for at least this many seconds.
            keep_bytes: Of the other files, keep the last used ones up to this many bytes together.
            keep_files: Keep at least this many of the other files, whatever their size.
        """
        now = time.monotonic()
        kept = count = 0
        for file in sorted(self.files, key=lambda f: -f.used):
            if not os.path.lexists(file.path):
                self.files.remove(file)  # the folder was removed
                continue
            if not file.is_idle():
                file.used = now
                continue
            file.links.clear()
            fresh = now - file.used < idle_s
            count += 1
            kept += file.capacity
            if fresh and (count <= keep_files or kept <= keep_bytes):
                continue
            file.remove()
            self.files.remove(file)

    def close(self) -> None:
        """Remove the base names. The links stay for their readers."""
        for file in self.files:
            file.remove()
        self.files.clear()

    def _create(self, size: int) -> PayloadFile:
        capacity = -(-size // _STEP) * _STEP if size > _STEP // 2 else -(-size // _PAGE) * _PAGE
        path = self.folder / str(FileName(self._owner, next(_numbers)))
        with self._explained():
            return PayloadFile(path, capacity)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise ChannelNotFoundError(
                f"no payload can be written to {self.folder}: the folder was removed"
            ) from error
        except OSError as error:
            if error.errno in _FULL:
                raise NoRoomError(str(error)) from error
            raise ChannelError(f"no payload can be written to {self.folder}: {error}") from error

    def _probe(self) -> bool:
        """Return whether readers must keep a descriptor open to hold the lock on a file.

        Usually the mapping holds the lock. Overlay file systems do not map the file that was opened
        and locked, but another one.
        """
        base = FileName(self._owner, next(_numbers))
        path = self.folder / str(base)
        link = self.folder / str(LinkName(base, next(_numbers), self._owner))
        with self._explained():
            file = PayloadFile(path, _PAGE)
            try:
                link.hardlink_to(path)
                counts = not file.is_idle()
                link.unlink()
                counts = counts and file.is_idle()
                for keeps in (False, True) if counts else ():
                    view = lock_and_map(str(path), 1, keep=keeps)
                    locked = is_locked(path)
                    view.release()
                    del view
                    if locked and file.is_idle():
                        return keeps
            finally:
                file.withdraw([str(link)])
                file.remove()
        raise ChannelError(
            f"{self.folder} cannot hold payloads: its file system has no hard links that are "
            "counted, or no flock; name a folder of another one in SHOAL_SHM_DIR"
        )


def lock_and_map(path: str, size: int, *, keep: bool) -> memoryview:
    """Open a link, lock the file for reading and map it privately.

    Raises:
        OSError: One of these steps failed; BlockingIOError if a writer has locked the file.
        ChannelCorruptError: The file is too short.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # The writer locks a file only when it has no links, so this lock is available at once.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        there = os.fstat(descriptor).st_size
        if there < size:
            raise ChannelCorruptError(f"the payload at {path} is shorter than {size} bytes")  # noqa: TRY301  (the descriptor is closed below)
        # Map the last huge page whole, as far as the file reaches.
        mapped = min(there, -(-size // HUGE_PAGE) * HUGE_PAGE)
        view = map_private(descriptor, mapped, keep=keep)[:size]
    except BaseException:
        os.close(descriptor)
        raise
    if not keep:
        os.close(descriptor)
    return view


def is_locked(path: Path) -> bool:
    """Whether a reader holds the lock on a file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # `close` would not unlock it if a child forked meanwhile has inherited the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _number(file: PayloadFile) -> int:
    return int(file.path.name.rpartition("-")[2])
