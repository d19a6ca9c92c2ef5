"""A process's events on their way to the manager: a ring of lines in a file that outlives a kill.

The process maps its file and writes lines; another thread, or another process of the node when the
writer is dead or has no connection to Ray, reads them. Positions count bytes since the start and
only grow: `written` belongs to the writer, `sent` to the reader.
"""

import mmap
import os
import struct
import threading
from pathlib import Path
from typing import Self

from shoal.tracing import timing

__all__ = ["CAPACITY", "Spool"]

CAPACITY = 1 << 20
"""Bytes of events that a process holds until they are sent; about 8000 events."""

_HEADER = 4096
_MAGIC = b"shoal.t1"
_NUMBER = struct.Struct("=Q")
_CAPACITY_AT, _WRITTEN_AT, _SENT_AT, _DROPPED_AT = 8, 16, 24, 32
# Begins of spans leave this part of the ring to the ends of spans: 1/8.
_RESERVED = 8
_CHUNK = 256 * 1024


class Spool:
    """A ring of lines in a file, or in memory if there is no file.

    Made by `create` in the process that writes, and by `open` in those that read.

    Args:
        path: The file, or None.
        memory: The mapping of the file.
    """

    def __init__(self, path: Path | None, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory
        self._capacity = self._get(_CAPACITY_AT)
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path | None, capacity: int = CAPACITY) -> Self:
        """Make a ring.

        Raises:
            OSError: The file cannot be made, or the file system is full.
        """
        size = _HEADER + capacity
        if path is None:
            memory = mmap.mmap(-1, size)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                # Reserved now: a full file system would kill the process at a write to the mapping.
                os.posix_fallocate(descriptor, 0, size)
                memory = mmap.mmap(descriptor, size)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
        _NUMBER.pack_into(memory, _CAPACITY_AT, capacity)
        memory[: len(_MAGIC)] = _MAGIC
        return cls(path, memory)

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open the ring of another process; None if it is gone or was not made completely."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            if size <= _HEADER:
                return None
            memory = mmap.mmap(descriptor, size)
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        if memory[: len(_MAGIC)] != _MAGIC:
            memory.close()
            return None
        return cls(path, memory)

    def _get(self, at: int) -> int:
        return int(_NUMBER.unpack_from(self._memory, at)[0])

    @property
    def written(self) -> int:
        """The position behind the last line."""
        return self._get(_WRITTEN_AT)

    @property
    def sent(self) -> int:
        """The position of the first line that was not sent yet."""
        return self._get(_SENT_AT)

    @property
    def dropped(self) -> int:
        """Number of events that did not fit."""
        return self._get(_DROPPED_AT)

    def append(self, line: bytes, *, is_begin: bool = False) -> bool:
        """Add a line; return whether there was room for it.

        Args:
            line: The line with its newline.
            is_begin: Whether the line begins a span. It is refused earlier than others, so that
                there is room for the ends of the spans that have begun.
        """
        if not self._lock.acquire(timeout=timing.TIMING.write_lock_s):
            return False
        try:
            at, size = self.written, len(line)
            room = self._capacity - (at - self.sent)
            if is_begin:
                room -= self._capacity // _RESERVED
            if size > room:
                _NUMBER.pack_into(self._memory, _DROPPED_AT, self.dropped + 1)
                return False
            offset = at % self._capacity
            first = min(size, self._capacity - offset)
            start = _HEADER + offset
            self._memory[start : start + first] = line[:first]
            if first < size:
                self._memory[_HEADER : _HEADER + size - first] = line[first:]
            # The line is complete before the position says so.
            _NUMBER.pack_into(self._memory, _WRITTEN_AT, at + size)
        finally:
            self._lock.release()
        return True

    def read(self, start: int) -> bytes:
        """Return complete lines from a position on, at most 256 KiB unless one line is longer."""
        until = self.written
        data = self._slice(start, min(until, start + _CHUNK))
        if start + len(data) == until:
            return data
        end = data.rfind(b"\n") + 1
        return data[:end] if end else self._slice(start, until)

    def _slice(self, start: int, end: int) -> bytes:
        offset = start % self._capacity
        size = max(0, end - start)
        first = min(size, self._capacity - offset)
        data = self._memory[_HEADER + offset : _HEADER + offset + first]
        return data + self._memory[_HEADER : _HEADER + size - first]

    def set_sent(self, position: int) -> None:
        """Release the room of the lines before a position."""
        _NUMBER.pack_into(self._memory, _SENT_AT, position)

    def remove(self) -> None:
        """Remove the file; the memory stays until the object is gone. Idempotent."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap the memory of a reader."""
        self._memory.close()
