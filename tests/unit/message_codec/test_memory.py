"""Memory of decoded objects: a view of the message, or the object's own."""

import copy
import random
import sys

import numpy as np
import pytest

from shoal.errors import ShoalValueError
from support.message_codec import LENT, PIECES, round_trip, same

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["array", "tensor"])
def test_long_values_are_views_of_the_message_as_long_as_they_live(codec, make):
    kind, message = codec.encode({"values": make(LENT)})
    before, alone = bytes(message), sys.getrefcount(message)
    there = codec.decode(kind, message)["values"]
    there += 1
    assert bytes(message) != before
    part = there[5:9]
    del there
    assert sys.getrefcount(message) == alone + 1
    del part
    assert sys.getrefcount(message) == alone


def test_long_buffers_of_pickles_are_views_of_the_message(codec):
    value = np.arange(2 * LENT).reshape(2, -1).T
    kind, message = codec.encode({"values": value, "why": {"pickled"}})
    before = bytes(message)
    there = codec.decode(kind, message)["values"]
    assert (there == value).all()
    there += 1
    assert bytes(message) != before


def test_short_values_leave_the_message_alone(codec):
    value = [
        np.arange(1000),
        torch.arange(1000),
        b"x" * 10_000,
        "x" * LENT,
        b"x" * LENT,
        bytearray(LENT),
    ]
    kind, message = codec.encode(value)
    there = codec.decode(kind, message)
    message.clear()
    assert same(there, value)


def test_encoding_holds_on_to_nothing(codec):
    for value in (
        np.zeros(9),
        np.zeros(9999),
        torch.zeros(9999),
        bytearray(9999),
        "x" * 9999,
        [[]],
        {"a": []},
    ):
        before = sys.getrefcount(value)
        for _ in range(10):
            round_trip(codec, [value, "more"])
        assert sys.getrefcount(value) == before
        if isinstance(value, bytearray):
            value.append(0)  # no buffer is exported any more


def test_keys_are_the_same_objects_again(codec):
    names = ["".join(random.Random(n).choices("abcdé", k=n % 60)) for n in range(3000)]
    value = dict.fromkeys(names, 1)
    assert round_trip(codec, value) == value
    message = codec.encode({"reward of this test": 1.0})
    first, second = (next(iter(codec.receive(*message))) for _ in range(2))
    assert first is second
    for _ in range(20):
        key = next(iter(codec.receive(*message)))
    assert key is sys.intern("reward of this test")


@pytest.mark.parametrize("shape", [3, (), (10, 20), (0, 5), (100, 300)])
@pytest.mark.parametrize(
    "dtype", ["float32", np.int64, np.dtype("D"), bool, torch.bfloat16, torch.int8]
)
def test_values_may_be_written_where_the_message_lies(codec, shape, dtype):
    with codec.queue.reserve(shape, dtype) as reservation:
        there = reservation.array
        assert tuple(there.shape) == ((shape,) if isinstance(shape, int) else shape)
        there[...] = 1
        value = copy.deepcopy(there)
        codec.queue.put(reservation)
    kind, message = codec.parts(codec.raw.get_nowait())
    expected = codec.encode(value)
    assert (kind, len(message)) == (expected[0], len(expected[1]))
    # The gap between the head and the values is not written.
    head = 8 + message[0] if kind == PIECES else len(message)
    values = -value.nbytes if kind == PIECES else len(message)
    assert message[:head] == expected[1][:head]
    assert message[values:] == expected[1][values:]
    assert same(codec.decode(kind, message), value)


def test_room_for_values_of_another_byte_order_cannot_be_reserved(codec):
    with pytest.raises(ShoalValueError, match="room for values of dtype >f8 cannot be reserved"):
        codec.queue.reserve((2**60,), ">f8")
