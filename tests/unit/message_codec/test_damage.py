"""Damaged messages make the codec raise errors, not crash."""

import random
import struct

import numpy as np
import pytest

from shoal.errors import ChannelDecodeError
from support.message_codec import LENT, PICKLE, PIECES, PLAIN

torch = pytest.importorskip("torch")

VALID = [
    {"id": 12345, "reward": 0.5, "done": False, "name": "episode", "more": [1, 2, (3, None)]},
    [b"bytes", bytearray(b"abc"), 1j, 2**100, {"a": {"b": {"c": (1,)}}}, "é" * 200],
    {"array": np.arange(6.0).reshape(2, 3), "tensor": torch.arange(8), "empty": torch.zeros(0)},
    [np.arange(3000), "x" * 5000, b"y" * 70_000, torch.zeros(20_000), bytearray(4096)],
]


@pytest.mark.parametrize("value", VALID, ids=["dict", "list", "arrays", "pieces"])
def test_damaged_messages_give_errors_only(codec, value):
    kind, message = codec.encode(value)
    rng = random.Random(7)
    limit = min(len(message), 400)
    errors = 0
    for n in range(4000):
        bad = bytearray(message)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(limit)
            bad[at] = rng.choice(
                (0, 1, 253, 254, 255, bad[at] ^ 1 << rng.randrange(8), rng.randrange(256))
            )
        if rng.random() < 0.2:
            del bad[rng.randrange(len(bad)) :]
        if bad[:1] == bytes([PICKLE]) or bad[8:9] == bytes([PICKLE]):
            continue  # pickles are trusted
        decode = codec.receive if n % 4 == 0 else codec.decode
        try:
            decode(kind if rng.random() < 0.9 else PLAIN + PIECES - kind, bad)
        except (ValueError, TypeError, MemoryError, OverflowError, ChannelDecodeError):
            errors += 1
    assert errors > 400


@pytest.mark.parametrize("value", VALID, ids=["dict", "list", "arrays", "pieces"])
def test_cut_messages_are_damaged(codec, value):
    kind, message = codec.encode(value)
    for length in [*range(min(len(message), 300)), len(message) - 1]:
        with pytest.raises(ValueError, match="the message is damaged"):
            codec.decode(kind, message[:length])
    with pytest.raises(ValueError, match="it goes on where it should end"):
        codec.decode(kind, message + b"\1")


def deep(tag):
    return bytes([tag, 1]) * 33 + b"\1"


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (b"", "it ends too early"),
        (b"\0", "no type that exists"),
        (b"\x63", "no type that exists"),
        (b"\x09\xff" + b"\xff" * 8, "longer than all of it"),
        (b"\x0c\xff" + b"\xff" * 8, "fewer values than it says"),
        (b"\x0e\x01\x01", "fewer values than it says"),
        (deep(12), "nested too deep"),
        (deep(13), "nested too deep"),
        (b"\x0c\x01\x11\x00\x00", "no type that exists"),
        (b"\x0f\x0d\x11", "too many dimensions"),
        (b"\x0f\xf0\x01", "dtype that does not exist"),
        (b"\x10\xf0\x01", "dtype that does not exist"),
        (b"\x0f\x0d\x02" + (b"\xff" + b"\xff" * 8) * 2, "larger than any memory"),
        (b"\x0f\x0d\x01\xfe\x00\x00\x00\x01", "longer than all of it"),
    ],
)
def test_damage_is_named(codec, message, what):
    with pytest.raises(ValueError, match=what):
        codec.decode(PLAIN, message)
    with pytest.raises(ChannelDecodeError, match=what) as raised:
        codec.receive(PLAIN, message)
    assert type(raised.value.__cause__) is ValueError


def test_a_key_that_cannot_be_one_is_an_error(codec):
    message = b"\x0e\x01\x0c\x00\x01"
    with pytest.raises(TypeError, match="unhashable"):
        codec.decode(PLAIN, message)
    with pytest.raises(ChannelDecodeError, match="unhashable"):
        codec.receive(PLAIN, message)


def test_a_head_outside_of_its_message_is_damage(codec):
    message = struct.pack("<Q", 9) + b"\1"
    with pytest.raises(ValueError, match="its head takes 9 bytes and all of it 9"):
        codec.decode(PIECES, message)
    with pytest.raises(ValueError, match="of kind 2 where 1 or 2 was expected"):
        codec.decode(PIECES, message[:7])


def test_a_text_that_is_not_utf8_is_an_error(codec):
    for length in (3, 5000, LENT):
        kind, message = codec.encode("x" * length)
        message[-1] = 0xFF
        with pytest.raises(UnicodeDecodeError):
            codec.decode(kind, message)
