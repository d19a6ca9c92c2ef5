"""Encodes objects into the row and the file of a message, and decodes them.

The parts of an object are a pickle and the buffers beside it. Large parts go into a file, each at a
multiple of 64 bytes; the other parts go into the row, one after the other.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

from shoal.pickling import dumps, loads

__all__ = ["VIEWED", "Draft", "decode", "encode", "lay_out", "part_sizes", "pieces_of"]

VIEWED: Final = 64 * 1024
"""Parts of at least this size are received as views of shared memory; smaller ones are copied.

A view of a smaller part would cost more than its copy.
"""

_ALIGNED = 64
_IN_FILE, _IN_ROW = True, False
_PART = struct.Struct("<?QQ")


@dataclass(frozen=True, slots=True)
class Draft:
    """An encoded object.

    Attributes:
        parts: The table of the parts: for each whether it is in the file, its offset, its size.
        head: The bytes in the row.
        large: The parts in the file, with their offsets.
        size: Number of bytes of the object.
        extent: Length of the file, 0 without one.
    """

    parts: bytes
    head: bytes
    large: list[tuple[int, Any]]
    size: int
    extent: int


def encode(obj: Any) -> Draft:
    """Encode an object.

    Raises:
        ShoalValueError: The object cannot be pickled.
    """
    pickled, buffers = dumps(obj)
    return lay_out([pickled, *buffers], VIEWED)


def lay_out(pieces: list[Any], from_size: int) -> Draft:
    """Lay out pieces of at least `from_size` bytes in a file, the others in the row."""
    places = []
    small: list[Any] = []
    large: list[tuple[int, Any]] = []
    in_row = in_file = size = 0
    for piece in pieces:
        length = len(piece)
        size += length
        if length >= from_size:
            places.append(_PART.pack(_IN_FILE, in_file, length))
            large.append((in_file, piece))
            in_file += -(-length // _ALIGNED) * _ALIGNED
        else:
            places.append(_PART.pack(_IN_ROW, in_row, length))
            small.append(piece)
            in_row += length
    return Draft(b"".join(places), b"".join(small), large, size, in_file)


def pieces_of(draft: Draft) -> list[Any]:
    """Return the pieces of a draft without a file."""
    if not draft.parts:  # a damaged parcel
        return [draft.head]
    return [draft.head[offset : offset + length] for _, offset, length in _table(draft.parts)]


def part_sizes(parts: bytes) -> list[int]:
    """Return the length of each part.

    Raises:
        ValueError: `parts` is not a table of parts.
    """
    return [length for _, _, length in _table(parts)]


def _table(parts: bytes) -> list[tuple[bool, int, int]]:
    if not parts or len(parts) % _PART.size:
        raise ValueError(f"the message is damaged: {len(parts)} bytes are not a table of its parts")
    return list(_PART.iter_unpack(parts))


def decode(parts: bytes, head: bytes, memory: memoryview | None) -> Any:
    """Rebuild an object.

    Args:
        parts: Same as in `Draft`.
        head: The bytes in the row.
        memory: The file, mapped writable for this process; None without one.

    Raises:
        Exception: Any error that the classes of the object raise.
    """
    pickled, *buffers = (_piece(head, memory, *place) for place in _table(parts))
    return loads(pickled, buffers)


def _piece(head: bytes, memory: memoryview | None, in_file: bool, offset: int, length: int) -> Any:
    source = memoryview(head) if memory is None or not in_file else memory
    piece = source[offset : offset + length]
    if len(piece) != length:
        raise ValueError(f"a part of {length} bytes at {offset} ends outside of its message")
    return piece if in_file and length >= VIEWED else bytearray(piece)
