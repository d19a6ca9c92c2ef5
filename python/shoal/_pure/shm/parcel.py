"""`ShmParcel`: a message in encoded form, for code that passes it on without decoding it."""

import os
import pickle
from typing import Any, Final, Self, SupportsIndex, final

from shoal._pure.shm.checks import whole
from shoal._pure.shm.payload import KINDS, Payload, decode, encode
from shoal.errors import ShoalTypeError

__all__ = ["ShmParcel", "payload_of"]

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
        whole(kind, "kind", KINDS[0], KINDS[-1])
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
        payload = encode(obj)
        return cls(payload.kind, payload.copied())

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
        data = _bytes_of(self._data)
        return decode(self._kind, memoryview(bytearray(data)) if data.readonly else data)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        data: Any = _bytes_of(self._data)
        if protocol.__index__() < _WITH_BUFFERS:
            return ShmParcel, (self._kind, bytearray(data), self._sender)
        # Not from `data`: a view of a view in cyclic garbage crashes Python 3.11.
        data = pickle.PickleBuffer(self._data) if len(data) >= _BESIDE else bytes(data)
        return ShmParcel, (self._kind, data, self._sender)


def payload_of(parcel: ShmParcel) -> Payload:
    """Return the payload to put for a parcel; if it is damaged, decoding the message fails later."""
    data = _bytes_of(parcel._data)  # noqa: SLF001  (a friend of the class)
    return Payload([(0, data)], len(data), parcel._kind)  # noqa: SLF001  (see above)


def _bytes_of(data: Any) -> memoryview:
    try:
        view = memoryview(data)
    except TypeError:
        view = None
    if view is None or not view.c_contiguous:
        name = type(data).__name__
        raise ShoalTypeError(f"data: expected a buffer that lies in one piece, got {name}")
    return view.cast("B")
