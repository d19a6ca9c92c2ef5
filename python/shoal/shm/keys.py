"""Encodes keys of queues as bytes: equal keys have the same bytes in every process.

A key is a str, bytes, int, float, bool, None or member of an enum, or a tuple or frozenset of such
keys. Keys are equal if Python says so: `1`, `1.0` and `True` are one key, and a named tuple is the
same key as the tuple that it equals. A numpy scalar is the Python number that it equals.
"""

import enum
import hashlib
import math
import reprlib
import sys
from collections.abc import Callable, Hashable
from typing import Any, Final

from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = ["canonical", "refusal", "shown_key"]

_LONGEST: Final = 1024
"""Maximum length of an encoded key in bytes; a longer one is replaced by a digest."""
_DEEPEST: Final = 64
_LENGTH: Final = 4
"""Bytes of the length of a part."""


def canonical(key: Hashable) -> bytes:
    """Return a key as bytes.

    Raises:
        ShoalTypeError: The key, or a part of it, has another type.
        ShoalValueError: The key does not equal itself, or is nested too deeply.
    """
    encoded = _encoded(key, key, 0)
    return encoded if len(encoded) <= _LONGEST else b"h" + hashlib.sha256(encoded).digest()


def shown_key(encoded: bytes) -> str:
    """Return the `repr` of a key from its bytes; the bytes as hexadecimal digits for a long key.

    A key that equals another one is shown as that: `1.0` as `1`. A member of an enum is shown as its
    class and its name.
    """
    try:
        return _shown(encoded)
    except (ValueError, TypeError, IndexError, KeyError):  # a digest
        return encoded.hex()


def _shown(node: bytes) -> str:
    tag, parts, at = node[:1], [], 1
    while node[at:] != b".":
        begin = at + _LENGTH
        at = begin + int.from_bytes(node[at:begin], "big")
        parts.append(node[begin:at])
        node[at]  # one that was cut ends with an IndexError
    return _WRITERS[tag](*parts)


def _listed(items: tuple[bytes, ...]) -> str:
    return ", ".join(map(_shown, items))


_WRITERS: Final[dict[bytes, Callable[..., str]]] = {
    b"n": lambda: "None",
    b"s": lambda text: repr(text.decode("utf-8", "surrogatepass")),
    b"b": repr,
    b"i": bytes.decode,
    b"x": lambda sign: "inf" if sign == b"+" else "-inf",
    b"r": lambda digits: repr(float.fromhex(digits.decode())),
    b"t": lambda *items: f"({_listed(items)}{',' if len(items) == 1 else ''})",
    b"f": lambda *items: f"frozenset({{{_listed(items)}}})" if items else "frozenset()",
    b"g": lambda _, name: name.decode(),
    b"e": lambda kind, name: f"{_shown(kind)}.{name.decode()}",
    b"z": lambda kind, value: f"{_shown(kind)}({value.decode()})",
}
"""For the tag of each kind of key, what writes it from its parts."""


def refusal(key: Any, part: Any) -> ShoalTypeError:
    """Return the error for a key that is, or contains, a value of another type."""
    return ShoalTypeError(
        f"key={reprlib.repr(key)}: a {type(part).__qualname__} cannot be a key: expected a str, "
        "bytes, int, float, bool, None or enum member, or a tuple or frozenset of them"
    )


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
        return _node(b"f", *sorted(_encoded(item, key, depth + 1) for item in part))
    if isinstance(part, enum.Enum) and _equals_as(part, object):
        return _member(part, key)
    raise refusal(key, part)


def _simple(part: Any, key: Any) -> bytes | None:
    """Encode a value without parts; return None for any other value."""
    # Another thread may be importing numpy: then it has no `generic` yet.
    scalars: Any = getattr(sys.modules.get("numpy"), "generic", ())
    if isinstance(part, scalars):
        part = part.item()
    if part is None:
        return _node(b"n")
    if isinstance(part, str) and _equals_as(part, str):
        return _node(b"s", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, bytes) and _equals_as(part, bytes):
        return _node(b"b", part)
    if isinstance(part, int) and _equals_as(part, int):
        return _node(b"i", _digits(part, key))
    if isinstance(part, float) and _equals_as(part, float):
        return _float(part, key)
    return None


def _float(number: float, key: Any) -> bytes:
    if math.isnan(number):
        raise ShoalValueError(f"key={reprlib.repr(key)}: a NaN does not equal itself")
    if math.isinf(number):
        return _node(b"x", b"+" if number > 0 else b"-")
    if number.is_integer():
        return _node(b"i", _digits(int(number), key))
    return _node(b"r", number.hex().encode())


def _digits(number: int, key: Any) -> bytes:
    try:
        return str(int(number)).encode()
    except ValueError as error:
        raise ShoalValueError(f"key: a {type(key).__qualname__} with an integer: {error}") from None


def _member(member: Any, key: Any) -> bytes:
    """Encode a member of an enum as its class and its name, or the value of a flag without one."""
    kind = type(member)
    where = _node(b"g", kind.__module__.encode(), kind.__qualname__.encode())
    if member.name is None:
        return _node(b"z", where, _digits(member.value, key))
    return _node(b"e", where, member.name.encode())


def _node(tag: bytes, *parts: bytes) -> bytes:
    return tag + b"".join(len(part).to_bytes(4, "big") + part for part in parts) + b"."


def _equals_as(part: Any, kind: type) -> bool:
    """Whether a value, possibly of a subclass of `kind`, is compared like a plain `kind`."""
    return type(part).__eq__ == kind.__eq__
