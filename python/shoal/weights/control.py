"""The control page of weights: the newest version, and the bell that wakes those who wait for one.

Processes map the page. It is written by the process that holds the publisher's lock, one word at a
time, so that a reader needs no lock and a death leaves no half-written word.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.deadline import LongWait
from shoal.errors import ShoalTimeoutError, WeightsCorruptError, WeightsNotFoundError
from shoal.fork import ChildStage, in_child
from shoal.weights import timing
from shoal.weights.version import Version

__all__ = ["CONTROL", "LOCK", "ControlPage", "publisher_lock"]

CONTROL = "weights"
LOCK = "publisher"

_MAGIC = 0x0001_5354_4857_4C53
"""The first word: the format of the page and of the versions beside it."""

_SIZE = 4096
_TEXT = 128
"""Where the reason of the end begins."""

# The place of each word.
_NEWEST, _KEEP, _MAX_BYTES, _DESCRIPTORS, _BELL, _CLOSED = 8, 16, 24, 32, 40, 44
_ANNOUNCED, _WANTED, _FOLLOWING, _EPOCH, _HOME, _SEEN, _KNOWN = 48, 56, 60, 64, 72, 80, 88

_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
"""The number of the system call `futex`; None on a machine where waits poll."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)


class ControlPage:
    """The control page of one folder in this process.

    Args:
        folder: The folder.

    Attributes:
        keep: Number of versions that stay.
        max_bytes: Maximum number of bytes of all versions; None for no bound.
        keeps_descriptors: Whether readers must keep the descriptor of a version open; see
            `shoal.shm.shared_files.pool`.

    Raises:
        WeightsNotFoundError: The folder has no weights.
        WeightsCorruptError: The page is not one of this format.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            descriptor = os.open(folder / CONTROL, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise WeightsNotFoundError(f"no weights in {folder}: {error.strerror}") from None
        try:
            found = os.fstat(descriptor)
            if found.st_size < _SIZE:
                raise WeightsCorruptError(f"{folder / CONTROL} is shorter than {_SIZE} bytes")
            self._memory = mmap.mmap(descriptor, _SIZE)
            self._file = found.st_dev, found.st_ino  # of no other file, as long as it is mapped
        finally:
            os.close(descriptor)
        if self._word(0).value != _MAGIC:
            raise WeightsCorruptError(
                f"{folder / CONTROL} begins with {self._word(0).value:#x}: expected {_MAGIC:#x}; "
                "another version of shoal made these weights, or the page is damaged"
            )
        self._newest = self._word(_NEWEST)
        self._bell = ctypes.c_uint32.from_buffer(self._memory, _BELL)
        self._closed = ctypes.c_uint32.from_buffer(self._memory, _CLOSED)
        self._announced = self._word(_ANNOUNCED)
        self._wanted = ctypes.c_uint32.from_buffer(self._memory, _WANTED)
        self._following = ctypes.c_uint32.from_buffer(self._memory, _FOLLOWING)
        self._home = ctypes.c_uint32.from_buffer(self._memory, _HOME)
        self.keep = self._word(_KEEP).value
        self.max_bytes: int | None = self._word(_MAX_BYTES).value or None
        self.keeps_descriptors = bool(self._word(_DESCRIPTORS).value)

    @staticmethod
    def create(
        folder: Path,
        keep: int,
        max_bytes: int | None,
        *,
        keeps_descriptors: bool,
        least_epoch: int = 0,
    ) -> None:
        """Make the page of a folder that has none; it appears complete.

        Raises:
            FileExistsError: The folder has one.
        """
        page = bytearray(_SIZE)
        words = {
            0: _MAGIC,
            _KEEP: keep,
            _MAX_BYTES: max_bytes or 0,
            _DESCRIPTORS: keeps_descriptors,
            _EPOCH: least_epoch,
        }
        for at, value in words.items():
            page[at : at + 8] = int(value).to_bytes(8, "little")
        path = folder / f"page-{os.getpid()}-{threading.get_ident()}"  # no name of a version
        path.write_bytes(page)
        try:
            path.chmod(0o600)
            os.link(path, folder / CONTROL)
        finally:
            path.unlink()

    def _word(self, at: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_buffer(self._memory, at)

    @property
    def newest(self) -> Version | None:
        """The newest version; None before the first."""
        return Version.unpacked(self._newest.value)

    @property
    def packed(self) -> int:
        """The newest version, as `Version.packed` returns it."""
        return self._newest.value

    def note(self, version: Version) -> None:
        """Make a version the newest, and wake all who wait."""
        self._newest.value = version.packed()
        self._ring()

    @property
    def least_epoch(self) -> int:
        """An epoch that processes may have seen before this memory was made, or 0.

        All epochs in which versions are published from now on have to be greater.
        """
        return self._word(_EPOCH).value

    @least_epoch.setter
    def least_epoch(self, epoch: int) -> None:
        self._word(_EPOCH).value = max(epoch, self.least_epoch)

    @property
    def end(self) -> str | None:
        """Why the weights were closed; None if they are open."""
        if not self._closed.value:
            return None
        text = bytes(self._memory[_TEXT:_SIZE])
        return text.partition(b"\0")[0].decode(errors="replace")

    def close(self, reason: str) -> None:
        """End all waits, and let no version follow; only the first reason counts."""
        if self._closed.value:
            return
        text = reason.encode()[: _SIZE - _TEXT - 1]
        self._memory[_TEXT : _TEXT + len(text)] = text
        self._closed.value = 1
        self._ring()

    def is_there(self) -> bool:
        """Whether the page was not removed, as it is at the end of a job, nor made anew."""
        try:
            found = (self.folder / CONTROL).stat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def wait(self, packed: int, announced: int, wait: LongWait, check: Callable[[], None]) -> bool:
        """Wait until the newest version or the announced one is another, or the weights end.

        Args:
            packed: The newest version that the caller knows, as `packed` returns it.
            announced: The announced version that it knows.
            wait: Describes the wait.
            check: Is called again and again, and ends the wait by raising.

        Returns:
            False if the deadline of the wait has passed.
        """
        with wait:
            while True:
                check()
                bell = self._bell.value
                known = self._newest.value, self._announced.value
                if known != (packed, announced) or self._closed.value or not self.is_there():
                    return True
                if wait.deadline.expired:
                    return False
                self._sleep(bell, wait.step(timing.TIMING.slice_s))
                wait.tick()

    # With several nodes; see `following`.

    @property
    def is_home(self) -> bool:
        """Whether versions are published on this node."""
        return bool(self._home.value)

    def make_home(self) -> None:
        """Say that versions are published on this node."""
        self._home.value = 1
        self._ring()

    @property
    def seen(self) -> int:
        """The newest version that nodes which follow this one have had, as `packed` returns it."""
        return self._word(_SEEN).value

    @seen.setter
    def seen(self, packed: int) -> None:
        self._word(_SEEN).value = max(packed, self.seen)

    @property
    def announced(self) -> int:
        """A version that is on its way to this node, as `packed` returns it; 0 for none."""
        return self._announced.value

    def announce(self, packed: int) -> None:
        """Announce a version that is on its way to this node; if none is, the newest one here."""
        self._announced.value = packed
        self._word(_KNOWN).value = max(packed, self.known)
        self._ring()

    @property
    def known(self) -> int:
        """The newest version that this node has heard of, as `packed` returns it.

        It does not go back if the version cannot come.
        """
        return max(self.packed, self._word(_KNOWN).value)

    @property
    def is_following(self) -> bool:
        """Whether this node gets each version as soon as it is published."""
        return bool(self._following.value)

    @is_following.setter
    def is_following(self, follows: bool) -> None:
        if self.is_following != follows:
            self._following.value = follows
            self._ring()

    def want(self) -> None:
        """Say that a process of this node reads."""
        if not self._wanted.value:
            self._wanted.value = 1
            self._ring()

    def wait_for_readers(self, seconds: float) -> bool:
        """Wait until a process has read since the last call; False if none has."""
        end = time.monotonic() + seconds
        while True:
            bell, left = self._bell.value, end - time.monotonic()
            if self._wanted.value:
                self._wanted.value = 0
                return True
            if left <= 0:
                return False
            self._sleep(bell, left)

    def wait_until_followed(self, seconds: float, check: Callable[[], None]) -> None:
        """Wait until this node follows the one of the publisher, or is it, for at most some seconds."""
        end = time.monotonic() + seconds
        while True:
            bell, left = self._bell.value, end - time.monotonic()
            if self.is_following or self.is_home or self._closed.value or left <= 0:
                return
            check()
            self._sleep(bell, min(left, timing.TIMING.slice_s))

    def _sleep(self, bell: int, seconds: float) -> None:
        if _FUTEX is None:
            # The bell cannot be waited for on this machine.
            time.sleep(min(timing.TIMING.try_s, seconds))
            return
        whole = int(seconds)
        limit = _Timespec(whole, int((seconds - whole) * 1e9))
        # It also returns for a signal, and if the bell rang meanwhile: the caller looks again.
        _libc.syscall(
            _FUTEX, ctypes.byref(self._bell), _FUTEX_WAIT, bell, ctypes.byref(limit), None, 0
        )

    def _ring(self) -> None:
        self._bell.value += 1
        if _FUTEX is not None:
            _libc.syscall(_FUTEX, ctypes.byref(self._bell), _FUTEX_WAKE, 2**31 - 1, None, None, 0)


_locks: dict[Path, threading.Lock] = {}

# Another thread of the parent may hold one.
in_child(ChildStage.FORGET, _locks.clear)


@contextlib.contextmanager
def publisher_lock(folder: Path, wait: LongWait) -> Iterator[None]:
    """Hold the lock of the one process that publishes in a folder.

    The kernel frees the lock when its process dies, whatever children it has forked.

    Raises:
        ShoalTimeoutError: Another process held it until the deadline.
        WeightsNotFoundError: The folder was removed.
    """
    mutex = _locks.setdefault(folder, threading.Lock())
    # The kernel's lock belongs to the process: closing any descriptor of the file would free it.
    _try_until(lambda: mutex.acquire(blocking=False), wait)
    try:
        descriptor = _opened(folder)
        try:
            _try_until(lambda: _is_locked_now(descriptor), wait)
            yield
        finally:
            os.close(descriptor)
    finally:
        mutex.release()


def _opened(folder: Path) -> int:
    try:
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise WeightsNotFoundError(f"{folder} was removed") from None


def _is_locked_now(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise
    return True


def _try_until(attempt: Callable[[], bool], wait: LongWait) -> None:
    with wait:
        while not attempt():
            if wait.deadline.expired:
                raise ShoalTimeoutError(
                    f"{wait.describe()}: no end of it within {wait.deadline.timeout:g} s"
                )
            # Neither lock can be waited for with a deadline.
            time.sleep(wait.step(timing.TIMING.try_s))
            wait.tick()
