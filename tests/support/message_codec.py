"""The message codec through the classes of `shoal.shm`, and helpers that its tests share."""

import struct
import sys

import numpy as np

PLAIN, PIECES = 1, 2
"""The kinds of messages."""

PICKLE = 17
"""The tag of pickled values."""

LENT = 64 * 1024
"""Minimum bytes of an array or tensor that is decoded as a view of its message."""


class Codec:
    """Encodes and decodes by parcels, whose pickle has the kind and the bytes of a message."""

    def __init__(self, core, session):
        self._core = core
        self.queue = core.ShmQueue(session, b"codec", name="codec")
        self.raw = core.ShmQueue(session, b"codec", name="codec", parcels=True)

    def encode(self, value):
        """Return the kind and the bytes of the message of an object."""
        return self.parts(self._core.ShmParcel.of(value))

    def parts(self, parcel):
        """Return the kind and the bytes of a message."""
        kind, message, _ = parcel.__reduce_ex__(4)[1]
        return kind, message

    def decode(self, kind, message):
        """Return the object of a message; arrays in it are views of `message`."""
        return self._core.ShmParcel(kind, message).open()

    def receive(self, kind, message):
        """Return the object that a queue makes of a message."""
        self.queue.put_nowait(self._core.ShmParcel(kind, message))
        return self.queue.get_nowait()


def round_trip(codec, value):
    kind, message = codec.encode(value)
    there = codec.decode(kind, message)
    if message[0 if kind == PLAIN else 8] != PICKLE:
        assert same(codec.receive(kind, bytes(message)), there)
    return there


def is_pickled(codec, value):
    kind, message = codec.encode(value)
    return message[0 if kind == PLAIN else 8] == PICKLE


def same(left, right):
    """Whether two values are equal, type for type and bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    return _exact(left) == _exact(right)


def _exact(value):
    if isinstance(value, float):
        return struct.pack("d", value)
    if isinstance(value, complex):
        return struct.pack("dd", value.real, value.imag)
    if isinstance(value, np.ndarray):
        return value.dtype.char, value.shape, value.tobytes()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        return value.dtype, value.shape, raw.tobytes()
    return value
