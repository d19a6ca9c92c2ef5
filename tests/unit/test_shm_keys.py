"""Keys: what Python calls equal is one key, and what it does not is another."""

import dataclasses
import datetime as dt
import enum
import fractions
import functools
import math
import subprocess
import sys
import uuid
import zoneinfo
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.shm.keys import canonical


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796  (another name of the same)
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


@dataclasses.dataclass(frozen=True)
class Key:
    a: object
    b: object = ()


@dataclasses.dataclass(frozen=True)
class Noted:
    name: str
    note: str = dataclasses.field(default="", compare=False)

    @functools.cached_property
    def path(self):
        return f"/{self.name}"


class NotedToo(Noted):
    """Is compared as the class that it is of."""


@dataclasses.dataclass(frozen=True)
class AnyCase:
    """Compares what is not among its fields' values."""

    name: str = dataclasses.field(compare=False)

    def __eq__(self, other):
        return type(other) is AnyCase and self.name.lower() == other.name.lower()

    def __hash__(self):
        return hash(self.name.lower())


class Written:
    """Has an equality of its own, and remembers."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return type(other) is Written and other.name == self.name

    def __hash__(self):
        return hash(self.name)

    @functools.cached_property
    def path(self):
        return f"/{self.name}"


class Slotted(Written):
    """Has slots, and a dict for what it keeps."""

    __slots__ = ("mode",)

    def __init__(self, name, mode):
        super().__init__(name)
        self.mode = mode

    def __eq__(self, other):
        return type(other) is Slotted and (other.name, other.mode) == (self.name, self.mode)

    def __hash__(self):
        return hash((self.name, self.mode))


class OnlySlotted:
    """Has a dict only for what it keeps."""

    __slots__ = ("__dict__", "mode")

    def __init__(self, mode):
        self.mode = mode

    def __eq__(self, other):
        return type(other) is OnlySlotted and other.mode == self.mode

    def __hash__(self):
        return hash(self.mode)

    @functools.cached_property
    def path(self):
        return f"/{self.mode}"


class Holder:
    """Is what it holds, and hashable whatever that is."""

    def __init__(self, held):
        self.held = held

    def __eq__(self, other):
        return type(other) is Holder and other.held == self.held

    def __hash__(self):
        return 1

    def method(self):
        """Belong to one of them."""


@dataclasses.dataclass(frozen=True)
class Unhashed:
    held: object = dataclasses.field(hash=False)


def outer(kind=None):
    """Make what other processes cannot find."""

    @dataclasses.dataclass(frozen=True)
    class Local:
        a: int = 1

    class LocalColor(enum.Enum):
        RED = 1

    def local():
        return kind

    return {"class": Local, "instance": Local(), "enum": LocalColor.RED, "closure": local}


def asked(key):
    """Ask for what is kept from then on."""
    assert key.path
    return key


class Identity:
    pass


class Point(NamedTuple):
    x: int
    y: int


long = "x" * 100
EAST = dt.timezone(dt.timedelta(hours=2))
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
NEW_YORK = zoneinfo.ZoneInfo("America/New_York")

EQUAL = [
    [
        1,
        1.0,
        True,
        np.int64(1),
        np.float32(1),
        np.bool_(True),
        Decimal(1),
        fractions.Fraction(1),
        1 + 0j,
        Level.LOW,
    ],
    [0, 0.0, -0.0, False],
    [0.5, Decimal("0.5"), fractions.Fraction(1, 2), np.float16(0.5)],
    ["a", Name.A, np.str_("a")],
    [b"a", np.bytes_(b"a")],
    [(1, 2), Point(1, 2), (True, 2.0)],
    [frozenset([1, 2, "a"]), frozenset(["a", 2.0, True])],
    [Color.RED, Color.CRIMSON],
    [Key(1, "a"), Key(1.0, "a")],
    [Key((long, long)), Key((long, "".join(list(long))))],
    [float("inf"), Decimal("Infinity")],
    [2**100, float(2**100)],
    ["x" * 100_000],
    [Noted("a"), Noted("a", "of no account"), asked(Noted("a"))],
    [NotedToo("a"), asked(NotedToo("a", "of no account"))],
    [Written("a"), asked(Written("a"))],
    [Slotted("a", 1), asked(Slotted("a", 1))],
    [OnlySlotted(1), asked(OnlySlotted(1))],
    [Holder({1, 2}), Holder(frozenset([2, 1]))],
    [Holder(b"a"), Holder(bytearray(b"a"))],
    [Unhashed({1}), Unhashed(frozenset([1]))],
    [Unhashed(b"a"), Unhashed(bytearray(b"a"))],
    [Right(0), Right.READ & Right.WRITE],
    [int.from_bytes, int.from_bytes],
    [Key.__eq__, Key.__eq__],
    [
        NOON,
        NOON.astimezone(EAST),
        NOON.astimezone(NEW_YORK),
        NOON.replace(tzinfo=zoneinfo.ZoneInfo("Etc/UTC")),
    ],
    [NOON.replace(tzinfo=None), NOON.replace(tzinfo=None, fold=1)],
    [dt.datetime.min.replace(tzinfo=EAST)],
    [NOON.timetz(), dt.time(14, tzinfo=EAST)],
    [NOON.time(), NOON.time().replace(fold=1)],
    [range(0), range(2, 1), range(5, 5, 7)],
    [range(3, 4), range(3, 9, 7)],
    [range(0, 10, 3), range(0, 12, 3)],
    [range(10**30)],
    [PurePosixPath("a/b"), PosixPath("a/b"), PosixPath("a//b/.")],
    [PureWindowsPath("A/b"), PureWindowsPath("a\\b")],
    [uuid.UUID(int=1), uuid.UUID(int=1, is_safe=uuid.SafeUUID.safe)],
]
DISTINCT = [
    *(group[0] for group in EQUAL),
    2, -1, None, (), "", b"", frozenset(), "1", b"1", (1,), ((1,),), (1, (2,)), ((1, 2),), 1j, Color.GREEN, float("-inf"),
    Key(1, "b"), "n.", "x" * 100_001, int, Key, len, 0.25, ("a", "b"), ("ab",), Point, "\ud800",
    Noted("b"), Written("b"), AnyCase("a"), AnyCase("b"), NOON.date(), NOON + dt.timedelta(microseconds=1), range(1), range(0, 4, 3),
    range(4), PosixPath("a"), uuid.UUID(int=2), dt.time(13), dt.timedelta(1), Slotted("a", 2), Slotted("b", 1), OnlySlotted(2),
    Holder(set()), Holder({}), Holder(()), Holder([]), Holder(b""), Holder(None), Unhashed(set()), Unhashed({}), Unhashed(None),
    RightToo(0), Right(1), Right(3), Right(4), Right(8), math.sqrt, dt.datetime.now, dt.date.today, Right, asked,
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


def test_another_process_has_the_same_bytes():
    program = (
        "from shoal.shm.keys import canonical; import decimal, datetime\n"
        "print(canonical((1, 'a', frozenset('xyz'), decimal.Decimal('0.1'), datetime.date(2000, 1, 1))).hex())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(printed) == 1


@pytest.mark.parametrize(
    ("key", "kind", "text"),
    [
        ([1], ShoalTypeError, r"key=\[1\]: expected something hashable"),
        ((1, {}), ShoalTypeError, r"key=\(1, \{\}\): expected something hashable"),
        (Identity(), ShoalTypeError, "a Identity equals nothing but itself"),
        (Key(iter([])), ShoalTypeError, "equals nothing but itself"),
        (float("nan"), ShoalValueError, "a NaN does not equal itself"),
        ((1, float("nan")), ShoalValueError, "a NaN does not equal itself"),
        (memoryview(b"x"), ShoalTypeError, "cannot be pickled"),
        (outer()["class"], ShoalTypeError, r"outer.<locals>.Local is not found by that name"),
        (outer()["instance"], ShoalTypeError, r"outer.<locals>.Local is not found by that name"),
        (outer()["enum"], ShoalTypeError, r"outer.<locals>.LocalColor is not found"),
        (outer()["closure"], ShoalTypeError, r"outer.<locals>.local is not found by that name"),
        (lambda: 1, ShoalTypeError, r"<lambda> is not found by that name"),
        ("a".upper, ShoalTypeError, "a builtin_function_or_method equals nothing but itself"),
        ("a".__add__, ShoalTypeError, "a method-wrapper equals nothing but itself"),
        (Holder(1).method, ShoalTypeError, "a method equals nothing but itself"),
        (np.datetime64(1, "ns"), ShoalTypeError, "a datetime64 is a number of any unit: use a"),
        (np.datetime64("NaT"), ShoalTypeError, "a datetime64 is a number of any unit"),
        (np.timedelta64(1, "s"), ShoalTypeError, "a timedelta64 is a number of any unit"),
    ],
    ids=[
        *("list", "dict within", "identity", "identity within", "nan", "nan within", "no pickle"),
        *("local class", "instance of it", "member of it", "closure", "lambda"),
        *("method of str", "wrapper of str", "method", "datetime64", "NaT", "timedelta64"),
    ],
)
def test_what_cannot_be_a_key(key, kind, text):
    with pytest.raises(kind, match=text):
        canonical(key)


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize(
    "time",
    [dt.datetime(2024, 3, 10, 2, 30), dt.datetime(2024, 11, 3, 1, 30)],  # noqa: DTZ001  (has one below)
    ids=["gap", "fold"],
)
def test_a_time_that_daylight_saving_makes_ambiguous(time, fold):
    time = time.replace(tzinfo=NEW_YORK, fold=fold)
    assert time != time.astimezone(dt.UTC)
    with pytest.raises(ShoalValueError, match="daylight saving makes ambiguous: give it in UTC"):
        canonical((time,))
    before_and_after = [time + dt.timedelta(hours=hours) for hours in (-2, 2)]
    for one in before_and_after:
        assert canonical(one) == canonical(one.astimezone(dt.UTC))


def test_what_a_script_defines_is_found_by_name(monkeypatch):
    """Workers have it by value, and a `__main__` that lacks it; or that has another."""
    sent = type("Sent", (), {"__module__": "__main__"})
    again = type("Sent", (), {"__module__": "__main__"})
    by_name = canonical(sent)
    assert canonical(again) == by_name
    monkeypatch.setattr(sys.modules["__main__"], "Sent", sent, raising=False)
    assert canonical(sent) == by_name
    with pytest.raises(ShoalTypeError, match=r"__main__\.Sent is not found by that name"):
        canonical(again)
    sent.__qualname__ = "outer.<locals>.Sent"
    with pytest.raises(ShoalTypeError, match=r"__main__\.outer\.<locals>\.Sent is not found"):
        canonical(sent)


def test_a_key_that_is_nested_too_deeply():
    key = ()
    for _ in range(200):
        key = (key,)
    with pytest.raises(ShoalValueError, match="expected at most 64 levels of nesting"):
        canonical(key)
