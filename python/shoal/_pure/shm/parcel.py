"""`ShmParcel`: a message in encoded form, for code that passes it on without decoding it.

The bytes of a parcel: the lengths of the table of parts and of the message's bytes in its row, then
both of these, and from the next multiple of 64 on the bytes of the message's file.
"""

import os
import pickle
import struct
from typing import Any, Final, Self, SupportsIndex, final

from shoal._pure.shm.checks import whole
from shoal._pure.shm.encoding import Draft, decode, encode, part_sizes
from shoal.errors import ShoalTypeError

__all__ = ["ShmParcel", "draft_of", "parcel_of"]

_IN_ROW: Final = 1
_WITH_FILE: Final = 2
_LENGTHS: Final = struct.Struct("<QQ")
_ALIGNED: Final = 64
_WITH_BUFFERS: Final = 5
"""Lowest pickle protocol that supports buffers beside the pickle."""
_BESIDE: Final = 4096
"""Parcels of at least this many bytes are pickled as a buffer beside the pickle."""
_LARGEST_SENDER: Final = 2**32 - 1


@final
class ShmParcel:
    """A message in encoded form, for code that passes it on without rebuilding its object."""

    __slots__ = ("_data", "_kind", "_sender")
    __module__ = "shoal._backend"  # where pickle finds it
    _kind: int
    _data: Any
    _sender: int

    def __new__(cls, kind: int, data: Any, sender: int | None = None) -> Self:
        """Create a parcel from the kind, data and sender of another."""
        whole(kind, "kind", _IN_ROW, _WITH_FILE)
        _bytes_of(data)
        if sender is None:
            sender = os.getpid()
        self = object.__new__(cls)
        self._kind = kind
        self._data = data
        self._sender = whole(sender, "sender", 0, _LARGEST_SENDER)
        return self

    @classmethod
    def of(cls, obj: Any) -> Self:
        """Encode an object."""
        if type(obj) is ShmParcel:
            return cls(*obj.__reduce_ex__(0)[1])
        draft = encode(obj)
        data = bytearray(_begun(draft.parts, draft.head, draft.extent))
        start = len(data) - draft.extent
        for offset, piece in draft.large:
            data[start + offset : start + offset + len(piece)] = piece
        return cls(_WITH_FILE if draft.extent else _IN_ROW, data)

    @property
    def sender(self) -> int:
        """The pid of the process that sent the message."""
        return self._sender

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return len(_bytes_of(self._data))

    def open(self) -> Any:
        """Rebuild the object."""
        parts, head, memory = _taken_apart(self._kind, _bytes_of(self._data))
        if memory is not None and memory.readonly:
            memory = memoryview(bytearray(memory))
        return decode(bytes(parts), bytes(head), memory)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        data: Any = _bytes_of(self._data)
        if protocol.__index__() < _WITH_BUFFERS:
            return ShmParcel, (self._kind, bytearray(data), self._sender)
        # Not from `data`: a view of a view in cyclic garbage crashes Python 3.11.
        data = pickle.PickleBuffer(self._data) if len(data) >= _BESIDE else bytes(data)
        return ShmParcel, (self._kind, data, self._sender)


def parcel_of(sender: int, parts: bytes, head: bytes, memory: memoryview | None) -> ShmParcel:
    """Create a parcel from a message that was taken."""
    data = bytearray(_begun(parts, head, 0 if memory is None else len(memory)))
    if memory is not None:
        data[len(data) - len(memory) :] = memory
    return ShmParcel(_IN_ROW if memory is None else _WITH_FILE, data, sender)


def draft_of(parcel: ShmParcel) -> Draft:
    """Return the draft to put for a parcel; if it is damaged, decoding the message fails later."""
    data = _bytes_of(parcel._data)  # noqa: SLF001  (a friend of the class)
    damaged = Draft(b"", bytes(data), [], len(data), 0)
    try:
        parts, head, memory = _taken_apart(parcel._kind, data)  # noqa: SLF001  (as above)
        size = sum(part_sizes(bytes(parts)))
    except ValueError:
        return damaged
    if size > len(data):
        return damaged
    large = [] if memory is None else [(0, memory)]
    return Draft(bytes(parts), bytes(head), large, size, 0 if memory is None else len(memory))


def _begun(parts: bytes, head: bytes, extent: int) -> bytes:
    """Return the bytes of a parcel, with zeros in place of the bytes of the file."""
    begun = _LENGTHS.pack(len(parts), len(head)) + parts + head
    if not extent:
        return begun
    return begun.ljust(_next_place(len(begun)) + extent, b"\0")


def _next_place(end: int) -> int:
    return -(-end // _ALIGNED) * _ALIGNED


def _taken_apart(kind: int, data: memoryview) -> tuple[memoryview, memoryview, memoryview | None]:
    """Return the table of parts, the bytes of the row and the bytes of the file.

    Raises:
        ValueError: The parcel is damaged.
    """
    if len(data) < _LENGTHS.size:
        raise ValueError("the message is damaged: it ends too early")
    in_parts, in_head = _LENGTHS.unpack_from(data)
    middle = _LENGTHS.size + in_parts
    end = middle + in_head
    if end > len(data) or (kind == _IN_ROW and end < len(data)):
        raise ValueError(f"the message is damaged: it takes {end} bytes and all of it {len(data)}")
    memory = data[_next_place(end) :] if kind == _WITH_FILE else None
    return data[_LENGTHS.size : middle], data[middle:end], memory


def _bytes_of(data: Any) -> memoryview:
    try:
        view = memoryview(data)
    except TypeError:
        view = None
    if view is None or not view.c_contiguous:
        name = type(data).__name__
        raise ShoalTypeError(f"data: expected a buffer that lies in one piece, got {name}")
    return view.cast("B")
