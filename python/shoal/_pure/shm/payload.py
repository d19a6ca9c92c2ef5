"""Encodes objects as payloads, and decodes them.

A payload starts with a table: the number of its parts and their lengths, eight bytes each. Then
follow the parts, a pickle and the buffers beside it, each from a multiple of 64 bytes on except
for the pickle.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

from shoal.pickling import dumps, loads

__all__ = ["LARGE", "Payload", "decode", "encode"]

LARGE: Final = 64 * 1024
"""Payloads of at least this many bytes are in files, and parts of this size arrive as views."""

_ALIGNMENT: Final = 64
_NUMBER: Final = 8


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
