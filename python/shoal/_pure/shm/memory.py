"""The files that hold large payloads, and their memory mappings.

Each file belongs to one message, so that its memory returns to the kernel as soon as the file has
no name and no mapping any more, however its processes end.
"""

import errno
import mmap
import os
import resource
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shoal.errors import ChannelMemoryError

__all__ = ["map_file", "map_new", "new_file", "write_file"]


class _Mapping(mmap.mmap):
    """A mapping that can be referenced weakly: to count live mappings and notice their end."""


_live: "weakref.WeakSet[_Mapping]" = weakref.WeakSet()


def new_file(path: Path, length: int) -> int:
    """Create a file with all of its memory allocated; return its descriptor.

    Raises:
        ChannelMemoryError: There is no room.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # If a page could not be allocated when it is written to, the process would be killed.
            os.posix_fallocate(descriptor, 0, max(length, 1))
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ChannelMemoryError(
            f"{path.parent} has no room for a message of {length} bytes: {error.strerror}"
        ) from error
    return descriptor


def write_file(path: Path, length: int, large: Iterable[tuple[int, Any]]) -> None:
    """Create a file and write pieces into it.

    Raises:
        ChannelMemoryError: There is no room.
    """
    descriptor = new_file(path, length)
    try:
        for offset, piece in large:
            rest, at = memoryview(piece), offset
            while rest:
                written = os.pwrite(descriptor, rest, at)
                rest, at = rest[written:], at + written
    finally:
        os.close(descriptor)


def map_file(path: Path, length: int, released: Callable[[], None], *, private: bool) -> memoryview:
    """Map a file writable, or copy it if the process has too many mappings open.

    Args:
        path: The file.
        length: Number of bytes to map.
        released: Called when the memory is not used any more.
        private: Whether writes stay in this process and do not change the file.
    """
    access = mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE
    descriptor = os.open(path, (os.O_RDONLY if private else os.O_RDWR) | os.O_CLOEXEC)
    try:
        if not _room_for_one():
            with _Mapping(descriptor, length, access=mmap.ACCESS_READ) as whole:
                copy = bytearray(whole)
            released()
            return memoryview(copy)
        mapping = _Mapping(descriptor, length, access=access)
    finally:
        os.close(descriptor)
    _live.add(mapping)
    finalizer = weakref.finalize(mapping, _ended, released, os.getpid())
    # At the end of the process all that it holds is released at once.
    finalizer.atexit = False
    return memoryview(mapping)


def map_new(path: Path, length: int) -> mmap.mmap:
    """Create a file and map it."""
    descriptor = new_file(path, length)
    try:
        return _Mapping(descriptor, max(length, 1))
    finally:
        os.close(descriptor)


def _ended(released: Callable[[], None], pid: int) -> None:
    if pid == os.getpid():  # a child must not give back what its parent holds
        released()


def _room_for_one() -> bool:
    """Whether one more mapping may be made.

    Each mapping keeps a descriptor; half of the process's descriptors are left for other uses.
    """
    return 2 * len(_live) < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
