"""Keys of queues as bytes: equal keys are the same bytes, in every process.

Equal is what Python calls equal, so that `1`, `1.0` and `True` are one key, and a named tuple is
the tuple that it equals. An instance of any other class is its class and what it is made of, as
for pickle, but that no order of a dict or a set and no sharing of parts shows in it.
"""

import enum
import hashlib
import math
import numbers
import reprlib
import sys
import types
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = ["canonical"]

_LONGEST: Final = 1024
"""Longer keys are known by a digest."""
_DEEPEST: Final = 64

_GLOBALS = (type, types.FunctionType, types.BuiltinFunctionType)


def canonical(key: Hashable) -> bytes:
    """Return a key as bytes.

    Raises:
        ShoalTypeError: It is not hashable, or cannot be told from others in another process.
        ShoalValueError: It does not equal itself, or is nested too deeply.
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
    """The form of what has no parts, None for anything else."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(part, numpy.generic):
        part = part.item()
    if part is None:
        return _node(b"n")
    if isinstance(part, str) and _equals_as(part, str):
        return _node(b"s", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, bytes) and _equals_as(part, bytes):
        return _node(b"b", part)
    return _number(part, key) if isinstance(part, numbers.Number) else None


def _instance(part: Any, key: Any, depth: int) -> bytes:
    if isinstance(part, _GLOBALS):
        return _named(b"g", part)
    if isinstance(part, enum.Enum):
        return _node(b"e", _named(b"g", type(part)), part.name.encode())
    if type(part) in (list, dict, set, bytearray):  # within the state of an instance
        return _mutable(part, key, depth)
    if _equals_as(part, object):
        raise ShoalTypeError(
            f"key={reprlib.repr(key)}: a {type(part).__qualname__} equals nothing but itself, and "
            "other processes do not have it: use a str, a number or a tuple"
        )
    try:
        reduced = part.__reduce_ex__(4)
    except Exception as error:
        raise ShoalTypeError(
            f"key={reprlib.repr(key)}: a {type(part).__qualname__} cannot be a key of several "
            f"processes, because it cannot be pickled: {error}"
        ) from error
    if isinstance(reduced, str):
        return _node(b"g", str(type(part).__module__).encode(), reduced.encode())
    # The items of lists and dicts come as iterators.
    parts = (list(item) if isinstance(item, Iterator) else item for item in reduced)
    return _node(b"o", *(_encoded(item, key, depth + 1) for item in parts))


def _mutable(part: Any, key: Any, depth: int) -> bytes:
    if isinstance(part, bytearray):
        return _node(b"y", bytes(part))
    if isinstance(part, list):
        return _node(b"l", *(_encoded(item, key, depth + 1) for item in part))
    return _unordered(b"d", part.items() if isinstance(part, dict) else part, key, depth)


def _unordered(tag: bytes, parts: Iterable[Any], key: Any, depth: int) -> bytes:
    return _node(tag, *sorted(_encoded(item, key, depth + 1) for item in parts))


def _node(tag: bytes, *parts: bytes) -> bytes:
    return tag + b"".join(len(part).to_bytes(4, "big") + part for part in parts) + b"."


def _named(tag: bytes, thing: Any) -> bytes:
    return _node(tag, str(thing.__module__).encode(), thing.__qualname__.encode())


def _equals_as(part: Any, kind: type) -> bool:
    """Whether an instance of a subclass equals the plain value that it looks like."""
    return type(part).__eq__ == kind.__eq__


def _number(number: Any, key: Any) -> bytes:
    if isinstance(number, numbers.Integral):
        return _node(b"i", _digits(int(number), key))
    if isinstance(number, numbers.Complex) and not isinstance(number, numbers.Real):
        if number.imag == 0:
            return _number(number.real, key)
        return _node(b"c", _number(number.real, key), _number(number.imag, key))
    value: Any = number
    if value != value:  # noqa: PLR0124  (what does not equal itself)
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
