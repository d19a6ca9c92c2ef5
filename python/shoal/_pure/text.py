"""Pointing at the part of a text that is wrong: the same caret lines in both backends."""

from typing import Final

__all__ = ["Span", "encodable", "point", "show", "type_name"]

Span = tuple[int, int]

_DELETE: Final = 0x7F
_FIRST_PRINTABLE: Final = 0x20


def show(text: str) -> str:
    """Replace control characters, one for one, so that a text stays on one line of its width."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if ord(c) < _FIRST_PRINTABLE or ord(c) == _DELETE else c
        for c in text
    )


def point(text: str, span: Span) -> str:
    """Return two indented lines: the text, and carets under the span (one at least)."""
    start, end = span
    carets = "^" * max(end - start, 1)
    return f"  {show(text)}\n  {' ' * start}{carets}"


def encodable(value: object, what: str) -> str:
    """Return `value` when it is a text that UTF-8 can hold; Rust has no other texts.

    Raises:
        TypeError: `value` is no `str`.
        UnicodeEncodeError: It holds a lone surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type_name(value)}")
    value.encode()
    return value


def type_name(value: object) -> str:
    """Return the name of the value's class, for messages."""
    return type(value).__name__
