"""Packs the requests and replies between a client and the actor of a channel.

Ray moves `bytes` without pickling them, so a small request is one `bytes`. Large buffers travel
beside it: Ray copies each once into shared memory, and this module copies it once out. The
receiver then owns writable memory, and a full queue does not pin Ray's object store.
"""

import pickle
from collections.abc import Sequence
from typing import Any

__all__ = ["Bulk", "pack", "unpack"]

_BESIDE = 64 * 1024
"""Buffers of at least this many bytes travel beside the request, not in it."""

Buffer = bytes | bytearray | memoryview | pickle.PickleBuffer


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
    """Turn a request or a reply into the object that Ray sends."""
    beside: list[pickle.PickleBuffer] = []

    def stays_inside(buffer: pickle.PickleBuffer) -> bool:
        if _size(buffer) < _BESIDE:
            return True
        beside.append(buffer)
        return False

    head = pickle.dumps(value, protocol=5, buffer_callback=stays_inside)
    return Bulk(head, beside) if beside else head


def unpack(packed: bytes | Bulk) -> Any:
    """Undo `pack`."""
    if isinstance(packed, Bulk):
        return pickle.loads(packed.head, buffers=packed.buffers)
    return pickle.loads(packed)
