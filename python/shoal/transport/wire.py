"""What crosses between a client and a host: requests, replies and the payloads in them.

Ray moves `bytes` without pickling them, so that a small request is one `bytes`. Large buffers
travel beside it, each copied once into shared memory by Ray and once out of it here: the
receiver then owns writable memory, and a full queue does not pin Ray's object store.
"""

import pickle
from collections.abc import Sequence
from typing import Any

__all__ = ["Bulk", "Payload", "pack", "unpack"]

_BESIDE = 64 * 1024
"""Buffers from this size on travel beside the request, not in it."""

Buffer = bytes | bytearray | memoryview | pickle.PickleBuffer


class Payload:
    """An encoded object: a pickle and the buffers that it refers to.

    Args:
        note: What the receiver must know before it decodes: small and picklable.
        head: The pickle.
        buffers: Its out-of-band buffers.
    """

    __slots__ = ("buffers", "head", "note")

    def __init__(self, note: Any, head: Buffer, *buffers: Buffer) -> None:
        self.note = note
        self.head = head
        self.buffers: Sequence[Buffer] = buffers

    @property
    def size(self) -> int:
        """The number of bytes."""
        return sum(_size(part) for part in (self.head, *self.buffers))

    def plain(self) -> "Payload | tuple[Any, Buffer]":
        """Return a form that pickles in a fraction of the time, for a small payload."""
        if self.buffers or type(self.head) is not bytes or len(self.head) >= _BESIDE:
            return self
        return self.note, self.head

    @classmethod
    def of(cls, plain: "Payload | tuple[Any, Buffer]") -> "Payload":
        """Make a payload of what `plain` returned."""
        return cls(*plain) if isinstance(plain, tuple) else plain

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (pickle.PickleBuffer(part) for part in (self.head, *self.buffers))
        return Payload, (self.note, *parts)


class Bulk:
    """A packed request or reply with buffers beside it."""

    __slots__ = ("buffers", "head")

    def __init__(self, head: bytes, buffers: Sequence[Buffer]) -> None:
        self.head = head
        self.buffers = buffers

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.head, *self.buffers)


def _arrived(head: bytes, *views: Buffer) -> Bulk:
    return Bulk(head, [bytearray(view) for view in views])


def _size(part: Buffer) -> int:
    return part.raw().nbytes if isinstance(part, pickle.PickleBuffer) else memoryview(part).nbytes


def pack(value: Any) -> bytes | Bulk:
    """Turn a request or a reply into what Ray shall carry."""
    beside: list[pickle.PickleBuffer] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        if _size(buffer) < _BESIDE:
            return True
        beside.append(buffer)
        return False

    head = pickle.dumps(value, protocol=5, buffer_callback=stays_inside)
    return Bulk(head, beside) if beside else head


def unpack(packed: bytes | Bulk) -> Any:
    """Turn what Ray carried back into the request or the reply."""
    if isinstance(packed, Bulk):
        return pickle.loads(packed.head, buffers=packed.buffers)
    return pickle.loads(packed)
