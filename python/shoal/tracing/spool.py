"""A process's events on their way to the manager: a ring of lines in a file that outlives a kill.

The process maps its file and writes lines; the process that sends the events of the node maps it
too and reads them. Positions count bytes since the start and only grow: `written` belongs to the
writer, `sent` to the reader.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Self

from shoal.tracing.clock import OFFSET

__all__ = ["CAPACITY", "Spool"]

CAPACITY = 1 << 20
"""Bytes of events that a process holds until they are sent; about 8000 events."""

_HEADER = 4096
_NUMBER = struct.Struct("=Q")
# The capacity is written last when a ring is made: it is 0 until then.
_WRITTEN_AT, _SENT_AT, _DROPPED_AT, _OFFSET_AT, _CAPACITY_AT = 0, 8, 16, 24, 32
# Begins of spans leave this part of the ring to the ends of spans: 1/8.
_RESERVED = 8


class Spool:
    """A ring of lines in a file, made by `create` in the process that writes, and opened by readers.

    Args:
        path: The file.
        memory: The mapping of the file.

    Attributes:
        dropped_told: The number of dropped events that this reader has told the manager.
    """

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self._path = path
        self._memory = memory
        self._capacity = self._get(_CAPACITY_AT)
        self.dropped_told = 0

    @classmethod
    def create(cls, path: Path, capacity: int = CAPACITY) -> Self:
        """Make a ring.

        Raises:
            OSError: The file cannot be made, or the file system is full.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Reserved now: a full file system would kill the process at a write to the mapping.
            os.posix_fallocate(descriptor, 0, _HEADER + capacity)
            memory = mmap.mmap(descriptor, _HEADER + capacity)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        _NUMBER.pack_into(memory, _OFFSET_AT, OFFSET)
        _NUMBER.pack_into(memory, _CAPACITY_AT, capacity)
        return cls(path, memory)

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open the ring of another process; None if it is gone or was not made completely."""
        try:
            with path.open("r+b") as file:
                spool = cls(path, mmap.mmap(file.fileno(), 0))
        except (OSError, ValueError):  # no file, or an empty one
            return None
        return spool if spool._capacity else None

    def _get(self, at: int) -> int:
        return int(_NUMBER.unpack_from(self._memory, at)[0])

    @property
    def offset(self) -> int:
        """Nanoseconds that were added to the monotonic clock for the times of the lines."""
        return self._get(_OFFSET_AT)

    @property
    def sent(self) -> int:
        """The position of the first line that was not sent yet."""
        return self._get(_SENT_AT)

    @property
    def dropped(self) -> int:
        """Number of events that did not fit."""
        return self._get(_DROPPED_AT)

    @property
    def is_empty(self) -> bool:
        """Whether all lines were sent."""
        return self._get(_WRITTEN_AT) == self.sent

    def append(self, line: bytes, *, is_begin: bool = False) -> bool:
        """Add a line; return whether there was room for it. Only one thread may do so at a time.

        Args:
            line: The line with its newline.
            is_begin: Whether the line begins a span. It is refused earlier than others, so that
                there is room for the ends of the spans that have begun.
        """
        at, size = self._get(_WRITTEN_AT), len(line)
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
        self._memory[_HEADER : _HEADER + size - first] = line[first:]
        # The line is complete before the position says so.
        _NUMBER.pack_into(self._memory, _WRITTEN_AT, at + size)
        return True

    def read(self) -> bytes:
        """Return the lines that were not sent yet."""
        start = self.sent
        offset, size = start % self._capacity, self._get(_WRITTEN_AT) - start
        first = min(size, self._capacity - offset)
        data = self._memory[_HEADER + offset : _HEADER + offset + first]
        return data + self._memory[_HEADER : _HEADER + size - first]

    def set_sent(self, position: int) -> None:
        """Release the room of the lines before a position."""
        _NUMBER.pack_into(self._memory, _SENT_AT, position)

    def remove(self) -> None:
        """Remove the file; the memory stays until the object is gone. Idempotent."""
        self._path.unlink(missing_ok=True)
