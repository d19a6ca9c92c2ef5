"""Bytes of queue keys: the same for equal keys, different for others; other types are refused."""

import dataclasses
import datetime as dt
import enum
import fractions
import os
import uuid
from decimal import Decimal
from pathlib import PurePosixPath
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.shm.keys import canonical, shown_key


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796  (an alias)
    GREEN = 2


class Name(enum.StrEnum):
    A = "a"


class Level(enum.IntEnum):
    LOW = 1


class Right(enum.Flag, boundary=enum.KEEP):
    READ = 1
    WRITE = 2


class RightToo(enum.Flag):
    READ = 1


class Other(str):
    """An object with its own comparison."""

    __slots__ = ()

    def __eq__(self, other):
        return self is other

    __hash__ = str.__hash__


@dataclasses.dataclass(frozen=True)
class Key:
    a: object


class Point(NamedTuple):
    x: int
    y: int


long = "x" * 100

EQUAL = [
    [1, 1.0, True, np.int64(1), np.float32(1), np.bool_(True), Level.LOW],
    [0, 0.0, -0.0, False],
    [0.5, np.float16(0.5)],
    ["a", Name.A, np.str_("a")],
    [b"a", np.bytes_(b"a")],
    [(1, 2), Point(1, 2), (True, 2.0)],
    [frozenset([1, 2, "a"]), frozenset(["a", 2.0, True])],
    [Color.RED, Color.CRIMSON],
    [(long, long) * 10, (long, "".join(list(long))) * 10],
    [float("inf")],
    [2**100, float(2**100)],
    ["x" * 100_000],
    [Right(0), Right.READ & Right.WRITE],
]
DISTINCT = [
    *(group[0] for group in EQUAL),
    2, -1, None, (), "", b"", frozenset(), "1", b"1", (1,), ((1,),), (1, (2,)), ((1, 2),), Color.GREEN,
    float("-inf"), "n.", "x" * 100_001, 0.25, 0.1, ("a", "b"), ("ab",), "\ud800", RightToo(0), Right(1),
    Right(3), Right(4), Right(8), (Color.RED,), (None,), frozenset([()]),
]  # fmt: skip


@pytest.mark.parametrize("group", EQUAL, ids=lambda group: type(group[0]).__name__)
def test_equal_keys_are_the_same_bytes(group):
    assert len(set(group)) == 1
    assert len({canonical(key) for key in group}) == 1


def test_different_keys_are_different_bytes():
    assert len(set(DISTINCT)) == len(DISTINCT)
    assert len({canonical(key) for key in DISTINCT}) == len(DISTINCT)
    assert max(len(canonical(key)) for key in DISTINCT) <= 1024


atoms = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, 0.5, "", "a", b"", b"a"])
)
keys = st.recursive(
    atoms, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=8
)


@given(keys, keys)
def test_keys_are_the_same_bytes_where_they_are_equal_and_only_there(one, other):
    assert (canonical(one) == canonical(other)) == (one == other)


@given(keys)
def test_a_key_is_shown_from_its_bytes(key):
    assert eval(shown_key(canonical(key))) == key


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("default_queue", "'default_queue'"),
        (Color.RED, "Color.RED"),
        ((Right(0), float("-inf")), "(Right(0), -inf)"),
        ("\ud800", "'\\ud800'"),
        (("a",), "('a',)"),
        ("x" * 2000, canonical("x" * 2000).hex()),
    ],
)
def test_kinds_of_keys_are_shown(key, text):
    assert shown_key(canonical(key)) == text


def test_bytes_that_are_no_key_are_shown_as_digits():
    whole = canonical(("a", 1))
    for cut in range(len(whole)):
        assert shown_key(whole[:cut]) == whole[:cut].hex()


def test_another_process_has_the_same_bytes(run_python):
    program = (
        "from shoal.shm.keys import canonical\n"
        "print(canonical((1, 'a', frozenset('xyz'), 0.1, None)).hex())"
    )
    printed = {
        run_python("-c", program, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in ("1", "2")
    }
    assert len(printed) == 1


@pytest.mark.parametrize(
    "key",
    [
        [1],
        (1, {}),
        (object(),),
        Key(1),
        Key,
        len,
        "a".upper,
        1j,
        Decimal(1),
        fractions.Fraction(1, 2),
        dt.date(2000, 1, 1),
        np.datetime64(1, "s"),
        range(3),
        PurePosixPath("a"),
        uuid.UUID(int=1),
        memoryview(b"x"),
        Other("a"),
    ],
    ids=lambda key: type(key).__name__,
)
def test_other_types_are_refused_with_the_types_that_can_be_keys(key):
    text = r"key=.* cannot be a key: expected a str, bytes, int, float, bool, None or enum member"
    with pytest.raises(ShoalTypeError, match=text):
        canonical(key)


@pytest.mark.parametrize("key", [float("nan"), (1, float("nan"))], ids=["alone", "within"])
def test_a_nan_is_refused(key):
    with pytest.raises(ShoalValueError, match="a NaN does not equal itself"):
        canonical(key)


def test_an_integer_of_too_many_digits_is_refused():
    with pytest.raises(ShoalValueError, match="a int with an integer: Exceeds the limit"):
        canonical(10**5000)


def test_a_key_that_is_nested_too_deeply():
    key = ()
    for _ in range(200):
        key = (key,)
    with pytest.raises(ShoalValueError, match="expected at most 64 levels of nesting"):
        canonical(key)
