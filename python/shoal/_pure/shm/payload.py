"""Payloads: objects as bytes. Encodes and decodes them, and keeps large ones in files.

A payload starts with a table: the number of its parts and their lengths, eight bytes each. Then
follow the parts, a pickle and the buffers beside it, each from a multiple of 64 bytes on except
for the pickle.
"""

import errno
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal.errors import ChannelMemoryError
from shoal.pickling import dumps, loads

__all__ = ["LARGE", "Memory", "Payload", "decode", "encode", "read_file", "write_file"]

LARGE: Final = 64 * 1024
"""Payloads of at least this many bytes are in files, and parts of this size arrive as views."""

_ALIGNMENT: Final = 64
_NUMBER: Final = 8


class Memory(mmap.mmap):
    """Private memory for the bytes of a file; unlike its base class it can be referenced weakly."""


@dataclass(frozen=True, slots=True)
class Payload:
    """An encoded object, not copied yet.

    Attributes:
        parts: Its parts, with their offsets.
        size: Number of bytes.
    """

    parts: list[tuple[int, Any]]
    size: int

    def copied(self) -> bytearray:
        """Return its bytes."""
        data = bytearray(self.size)
        for offset, part in self.parts:
            data[offset : offset + len(part)] = part
        return data


def encode(obj: Any) -> Payload:
    """Encode an object.

    Raises:
        ShoalValueError: The object cannot be pickled.
    """
    pickled, buffers = dumps(obj)
    lengths = [len(pickled), *map(len, buffers)]
    table = struct.pack(f"<{1 + len(lengths)}Q", len(lengths), *lengths)
    parts: list[tuple[int, Any]] = [(0, table), (len(table), pickled)]
    end = len(table) + len(pickled)
    for buffer in buffers:
        start = _aligned(end)
        parts.append((start, buffer))
        end = start + len(buffer)
    return Payload(parts, end)


def decode(data: memoryview) -> Any:
    """Rebuild an object; its large buffers are views of `data`, which must be writable.

    Raises:
        ValueError: The payload is damaged.
        Exception: Any error that the classes of the object raise.
    """
    pickled, *buffers = _parts(data)
    # A view of a small part would keep all of the memory and cost more than the copy.
    return loads(pickled, [part if len(part) >= LARGE else bytearray(part) for part in buffers])


def write_file(path: Path, payload: Payload) -> None:
    """Write a payload into a file.

    Raises:
        ChannelMemoryError: There is no room.
    """
    try:
        with path.open("wb") as file:
            for offset, part in payload.parts:
                file.seek(offset)
                file.write(part)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ChannelMemoryError(
            f"{path.parent} has no room for a message of {payload.size} bytes: {error.strerror}"
        ) from error


def read_file(path: Path, size: int) -> Memory:
    """Return the bytes of a file.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is too short.
    """
    memory = Memory(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with path.open("rb") as file:
        found = file.readinto(memory)
    if found != size:
        raise ValueError(f"the message is damaged: it has {found} of {size} bytes")
    return memory


def _parts(data: memoryview) -> list[memoryview]:
    count = int.from_bytes(data[:_NUMBER], "little")
    end = _NUMBER * (1 + count)
    if count < 1 or end > len(data):
        raise ValueError(f"the message is damaged: it has {len(data)} bytes and {count} parts")
    parts: list[memoryview] = []
    for length in struct.unpack(f"<{count}Q", data[_NUMBER:end]):
        start = _aligned(end) if parts else end
        end = start + length
        parts.append(data[start:end])
    if end != len(data):
        raise ValueError(f"the message is damaged: it takes {end} bytes and has {len(data)}")
    return parts


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
