"""Pointing at the part of a text that is wrong: the same caret lines in both backends."""

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["Span", "compress", "encodable", "plural", "point", "quote", "show", "type_name"]

Span = tuple[int, int]

_LINE: Final = 96
"""How much of a long text stands above the carets, in characters."""
_BEFORE: Final = 32
"""How much of it stands before the span."""
_QUOTE: Final = 64
"""How much of a long text is quoted within a sentence."""
_RUNS: Final = 8
"""How many runs of ranks a message lists."""

# Characters that terminals show two columns wide. A table of our own, as in Rust, because the
# tables of two Unicode versions differ.
_WIDE: Final = re.compile(
    "[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\ua960-\ua97c"
    "\uac00-\ud7a3\uf900-\ufaff\ufe10-\ufe19\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001f64f\U0001f900-\U0001f9ff\U00020000-\U0003fffd]"
)
# Characters that stand on the one before.
_COMBINING: Final = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]"
)
# Characters that would end a line, turn its direction, or not be seen at all.
_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


def show(text: str) -> str:
    """Replace what cannot be seen, one for one: the text stays on one line, in one direction."""
    return _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def quote(text: str) -> str:
    """Return a text for use within a sentence: shown, and cut where it is long."""
    shown = show(text)
    return shown if len(shown) <= _QUOTE else f"{shown[:_QUOTE]}…"


def point(text: str, span: Span) -> str:
    """Return two indented lines: the text, and carets under the span (one at least).

    Of a long text the part around the span is shown.
    """
    start, end = span
    shown = show(text)
    first = 0 if len(shown) <= _LINE else min(max(start - _BEFORE, 0), len(shown) - _LINE)
    last = min(len(shown), first + _LINE)
    line, carets = ("  …", "   ") if first else ("  ", "  ")
    carets += " " * sum(map(_columns, shown[first : max(start, first)]))
    marks = "^" * sum(map(_columns, shown[start : min(max(end, start + 1), last)]))
    cut = "…" if last < len(shown) else ""
    return f"{line}{shown[first:last]}{cut}\n{carets}{marks or '^'}"


def _columns(c: str) -> int:
    return 2 if _WIDE.match(c) else 0 if _COMBINING.match(c) else 1


def compress(ranks: Sequence[int]) -> str:
    """Write ranks as ranges, in their order: `0-3,8`; many ranges are cut."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
        if len(runs) > _RUNS:
            break
    written = [f"{a}" if a == b else f"{a}-{b}" for a, b in runs[:_RUNS]]
    return ",".join([*written, "…"] if len(runs) > _RUNS else written)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 process`, `2 processes`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


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
