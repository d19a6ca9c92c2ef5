"""Encodes keys of queues as bytes: equal keys have the same bytes in every process.

Keys are equal if Python says so: `1`, `1.0` and `True` are one key, and a named tuple is the same
key as the tuple that it equals. A dataclass instance is encoded as its class and the fields that
it compares. Datetimes, times, ranges, paths and UUIDs are encoded by their value, in whichever way
it is written. An instance of any other class is encoded as its class and its state, as pickle does,
but without the order of dicts and sets, the sharing of parts, and values that a `cached_property`
has stored. Two such instances that are equal by an `__eq__` of their own, but differ in their
state, are two keys.
"""

import dataclasses
import datetime as dt
import enum
import hashlib
import math
import numbers
import reprlib
import sys
import types
import uuid
from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from pathlib import PurePath, PureWindowsPath
from typing import Any, Final

from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = ["canonical"]

_LONGEST: Final = 1024
"""Maximum length of an encoded key in bytes; a longer one is replaced by a digest."""
_DEEPEST: Final = 64

_BOUND = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
_HOLDERS = (type, types.ModuleType, types.NoneType)
"""Types whose bound methods may be keys. Methods of other objects differ, even of equal objects."""
_HINT: Final = "other processes do not have it: use a str, a number or a tuple"


def canonical(key: Hashable) -> bytes:
    """Return a key as bytes.

    Raises:
        ShoalTypeError: The key is not hashable, or another process cannot have an equal one.
        ShoalValueError: The key does not equal itself, is a time that daylight saving makes
            ambiguous, or is nested too deeply.
    """
    try:
        hash(key)
    except TypeError:
        raise ShoalTypeError(f"key={reprlib.repr(key)}: expected something hashable") from None
    encoded = _encoded(key, key, 0)
    return encoded if len(encoded) <= _LONGEST else b"h" + hashlib.sha256(encoded).digest()


def _encoded(part: Any, key: Any, depth: int) -> bytes:
    if depth > _DEEPEST:
        raise ShoalValueError(
            f"key={reprlib.repr(key)}: expected at most {_DEEPEST} levels of nesting"
        )
    simple = _simple(part, key)
    if simple is not None:
        return simple
    if isinstance(part, tuple) and _equals_as(part, tuple):
        return _node(b"t", *(_encoded(item, key, depth + 1) for item in part))
    if isinstance(part, frozenset) and _equals_as(part, frozenset):
        return _unordered(b"f", part, key, depth)
    return _instance(part, key, depth)


def _simple(part: Any, key: Any) -> bytes | None:
    """Encode a value without parts; return None for any other value."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(part, numpy.generic):
        if isinstance(part, (numpy.datetime64, numpy.timedelta64)):
            raise ShoalTypeError(
                f"key={reprlib.repr(key)}: a {type(part).__qualname__} is a number of any unit: "
                "use a datetime, a timedelta or an int"
            )
        part = part.item()
    if part is None:
        return _node(b"n")
    if isinstance(part, str) and _equals_as(part, str):
        return _node(b"s", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, bytes) and _equals_as(part, bytes):
        return _node(b"b", part)
    if isinstance(part, numbers.Number):
        return _number(part, key)
    return _told(part, key)


def _told(part: Any, key: Any) -> bytes | None:
    """Encode a time, range, path or UUID, which can be written in several ways; else None."""
    if isinstance(part, dt.datetime) and _equals_as(part, dt.datetime):
        return _time(b"m", part, part.toordinal(), key)
    if isinstance(part, dt.time) and _equals_as(part, dt.time):
        return _time(b"w", part, 0, key)
    if isinstance(part, range):
        # The step counts only if the range has a second number.
        ends = [part[0], part[-1]] if part else []
        steps = [part.step] if part[1:] else []
        return _node(b"a", *(_number(number, key) for number in ends + steps))
    if isinstance(part, PurePath) and _equals_as(part, PurePath):
        windows = isinstance(part, PureWindowsPath)
        text = str(part).lower() if windows else str(part)
        return _node(b"v" if windows else b"p", text.encode("utf-8", "surrogatepass"))
    if isinstance(part, uuid.UUID) and _equals_as(part, uuid.UUID):
        return _node(b"u", part.bytes)
    return None


def _time(tag: bytes, time: dt.datetime | dt.time, days: int, key: Any) -> bytes:
    """Encode a time, converted to UTC if it has a UTC offset."""
    offset = time.replace(fold=0).utcoffset()
    if offset != time.replace(fold=1).utcoffset():  # it does not equal a time of any other zone
        raise ShoalValueError(
            f"key={reprlib.repr(key)}: {time} is a time that daylight saving makes ambiguous: "
            "give it in UTC"
        )
    utc = dt.timedelta(days, time.second, time.microsecond, 0, time.minute, time.hour)
    utc -= dt.timedelta(0) if offset is None else offset
    shown = (utc.days, utc.seconds, utc.microseconds, offset is None)
    return _node(tag, *(b"%d" % number for number in shown))


def _instance(part: Any, key: Any, depth: int) -> bytes:
    if isinstance(part, (type, types.FunctionType)):
        return _named(part, part.__qualname__, key)
    if isinstance(part, enum.Enum):
        return _member(part, key)
    if type(part) in (list, dict, set, bytearray):  # within the state of an instance
        return _mutable(part, key, depth)
    bound = isinstance(part, _BOUND) and not isinstance(part.__self__, _HOLDERS)
    if bound or _equals_as(part, object):
        raise ShoalTypeError(
            f"key={reprlib.repr(key)}: a {type(part).__qualname__} equals nothing but itself, and "
            f"{_HINT}"
        )
    fields = _compared(type(part))
    if fields is not None:
        values = (_encoded(getattr(part, name), key, depth + 1) for name in fields)
        return _node(b"k", _named(type(part), type(part).__qualname__, key), *values)
    try:
        reduced = part.__reduce_ex__(4)
    except Exception as error:
        raise ShoalTypeError(
            f"key={reprlib.repr(key)}: a {type(part).__qualname__} cannot be a key of several "
            f"processes, because it cannot be pickled: {error}"
        ) from error
    if isinstance(reduced, str):
        return _named(part, reduced, key)
    # `__reduce_ex__` returns the items of lists and dicts as iterators.
    parts = [list(item) if isinstance(item, Iterator) else item for item in reduced]
    parts[2:3] = [_settled(state, type(part)) for state in parts[2:3]]
    return _node(b"o", *(_encoded(item, key, depth + 1) for item in parts))


def _member(member: Any, key: Any) -> bytes:
    kind = _named(type(member), type(member).__qualname__, key)
    if member.name is None:  # a flag value without a name
        return _node(b"z", kind, _number(member.value, key))
    return _node(b"e", kind, member.name.encode())


def _settled(state: Any, kind: type) -> Any:
    """Return the state of an instance without the values of its cached properties."""
    if isinstance(state, tuple) and state:  # of an instance with slots: its dict and its slots
        return (_settled(state[0], kind), *state[1:])
    if isinstance(state, dict):
        kept = {n: v for n, v in state.items() if not _is_cached(kind, n)}
        return kept if kept or not state else None  # as before any value was cached
    return state


def _compared(kind: type) -> list[str] | None:
    """Return the fields by which a dataclass compares its instances; None for other classes."""
    owner = next(one for one in kind.__mro__ if "__eq__" in vars(one))
    # Only an `__eq__` that `dataclass` made: a handwritten one may compare anything.
    made = getattr(getattr(owner.__eq__, "__code__", None), "co_qualname", "")
    if not dataclasses.is_dataclass(owner) or not made.startswith("__create_fn__."):
        return None
    return [field.name for field in dataclasses.fields(owner) if field.compare]


def _is_cached(kind: type, name: Any) -> bool:
    return isinstance(name, str) and isinstance(getattr(kind, name, None), cached_property)


def _mutable(part: Any, key: Any, depth: int) -> bytes:
    if isinstance(part, bytearray):  # equals the same `bytes`, as a set equals the frozenset
        return _node(b"b", bytes(part))
    if isinstance(part, list):
        return _node(b"l", *(_encoded(item, key, depth + 1) for item in part))
    if isinstance(part, set):
        return _unordered(b"f", part, key, depth)
    return _unordered(b"d", part.items(), key, depth)


def _unordered(tag: bytes, parts: Iterable[Any], key: Any, depth: int) -> bytes:
    return _node(tag, *sorted(_encoded(item, key, depth + 1) for item in parts))


def _node(tag: bytes, *parts: bytes) -> bytes:
    return tag + b"".join(len(part).to_bytes(4, "big") + part for part in parts) + b"."


def _named(thing: Any, name: str, key: Any) -> bytes:
    """Encode a class, function or other object as its module and its name there."""
    module = str(thing.__module__)
    found: Any = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, step, None)
    # Workers receive objects that a script defines by value, because their `__main__` is another
    # module. They also receive objects of a module that they do not have by value.
    sent = found is None and "<" not in name
    if found is not thing and not sent:
        raise ShoalTypeError(
            f"key={reprlib.repr(key)}: {module}.{name} is not found by that name, and {_HINT}"
        )
    return _node(b"g", module.encode(), name.encode())


def _equals_as(part: Any, kind: type) -> bool:
    """Whether a value, possibly of a subclass of `kind`, is compared like a plain `kind`."""
    return type(part).__eq__ == kind.__eq__


def _number(number: Any, key: Any) -> bytes:
    if isinstance(number, numbers.Integral):
        return _node(b"i", _digits(int(number), key))
    if isinstance(number, numbers.Complex) and not isinstance(number, numbers.Real):
        if number.imag == 0:
            return _number(number.real, key)
        return _node(b"c", _number(number.real, key), _number(number.imag, key))
    value: Any = number
    if value != value:  # noqa: PLR0124  (a NaN does not equal itself)
        raise ShoalValueError(f"key={reprlib.repr(key)}: a NaN does not equal itself")
    if math.isinf(value):
        return _node(b"x", b"+" if value > 0 else b"-")
    above, below = value.as_integer_ratio()
    if below == 1:
        return _node(b"i", _digits(above, key))
    return _node(b"r", _digits(above, key), _digits(below, key))


def _digits(number: int, key: Any) -> bytes:
    try:
        return str(number).encode()
    except ValueError as error:
        raise ShoalValueError(f"key: a {type(key).__qualname__} with an integer: {error}") from None
