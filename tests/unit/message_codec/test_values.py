"""Plain values to messages and back; the codec pickles all other objects."""

import collections
import enum
import math
import typing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from support.message_codec import LENT, is_pickled, round_trip, same

torch = pytest.importorskip("torch")

SURROGATES = ["\ud800", "ok \udfff"]
"""Texts that cannot be encoded as UTF-8."""

SCALARS = [
    None, True, False,
    0, 1, -1, 127, 128, -128, -129, 2**31, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 3**1000, -(3**1000),
    0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, 1j, complex(-0.0, math.nan),
    "", "a", "é", "日本" * 50, "\0", "\U0001f41f", *SURROGATES,
    b"", b"\0", b"x" * 223, bytearray(), bytearray(b"abc"),
    (), [], {},
]  # fmt: skip


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: repr(value)[:20])
def test_plain_values_come_out_as_they_went_in(codec, value):
    assert same(round_trip(codec, value), value)
    assert same(round_trip(codec, [value]), [value])
    assert same(round_trip(codec, {"key": (value,)}), {"key": (value,)})
    assert is_pickled(codec, value) == (value in SURROGATES)


LENGTHS = [200, 221, 222, 223, 253, 254, 4095, 4096, 4097, LENT - 1, LENT, LENT + 1, 3_000_000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: bytes(i % 251 for i in range(n)),
        lambda n: bytearray(i % 251 for i in range(n)),
        lambda n: "a" * n,
        lambda n: "é" * (n // 2) + "x" * (n % 2),
        lambda n: list(range(min(n, 100_000))),
        lambda n: np.arange(n, dtype=np.uint8),
        lambda n: torch.arange(n).to(torch.uint8),
    ],
    ids=["bytes", "bytearray", "str", "long str", "list", "array", "tensor"],
)
def test_every_length_comes_out_as_it_went_in(codec, make, length):
    value = make(length)
    assert not is_pickled(codec, value)
    assert same(round_trip(codec, value), value)
    assert same(
        round_trip(codec, [1, value, {"b": (value[1:],)}, 2]), [1, value, {"b": (value[1:],)}, 2]
    )


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers()
    | st.text() | st.binary() | st.binary().map(bytearray) | st.integers(0, 2**70)
    | st.sampled_from(["long" * 2000, b"long" * 30_000])
)  # fmt: skip
keys = st.text() | st.integers() | st.booleans() | st.tuples(st.text(), st.none()) | st.binary()
nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner, max_size=8)
    ),
    max_leaves=40,
)


@settings(max_examples=200)
@given(value=nested)
def test_nested_values_come_out_as_they_went_in(codec, value):
    assert same(round_trip(codec, value), value)


class Colour(enum.IntEnum):
    RED = 1


class Point(typing.NamedTuple):
    x: int
    y: int


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED, Text("x"), collections.OrderedDict(a=1), collections.Counter("ab"),
        Point(1, 2), {1, 2}, frozenset("a"), 2.5 + np.float64(1), np.int8(3),
        range(3), slice(1, 2), Path("a"), Ellipsis, memoryview,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_all_else_is_pickled_whole(codec, value):
    assert is_pickled(codec, value)
    assert is_pickled(codec, [1, value])
    there = round_trip(codec, {"inside": [value]})
    assert there == {"inside": [value]}
    assert type(there["inside"][0]) is type(value)


def test_an_object_that_cannot_be_pickled_is_an_error(codec):
    with pytest.raises(ValueError, match="cannot be sent"):
        codec.encode([(x for x in "generators are not sent")])


def test_an_object_that_occurs_twice_is_one_object_afterwards(codec):
    for make in (list, dict, lambda: [1], lambda: ([],), lambda: bytearray(b"x"),
                 lambda: np.zeros(3), lambda: torch.zeros(20_000), lambda: "long" * 500):  # fmt: skip
        shared = make()
        first, (second,) = round_trip(codec, [shared, (shared,)])
        assert first is second
        inside = round_trip(codec, {"a": shared, "b": shared})
        assert inside["a"] is inside["b"]


def test_an_object_may_contain_itself(codec):
    ring = [1, 2]
    ring.append({"ring": ring})
    there = round_trip(codec, ring)
    assert there[2]["ring"] is there


def test_a_value_that_grows_exponentially_when_spelled_out_stays_small(codec):
    value = (1,)
    for _ in range(30):
        value = (value, value)
    assert len(codec.encode(value)[1]) < 1000


@pytest.mark.parametrize("depth", [31, 32, 33, 34, 100])
def test_deep_nesting_is_pickled_from_some_depth_on(codec, depth):
    value = None
    for level in range(depth):
        value = [value] if level % 2 else {"k": (value,)} if level % 3 else (value,)
    assert round_trip(codec, value) == value
    deep = [[]]
    for _ in range(30):
        deep = [deep]
    assert not is_pickled(codec, deep)
    assert is_pickled(codec, [deep])
