"""Formats texts in messages: caret lines under the wrong part, quotes, ranges of ranks, counts."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from shoal.errors import ShoalTypeError
from shoal.rank_ranges import runs_of, show_run

__all__ = ["Span", "compress", "encodable", "plural", "point", "quote", "show", "type_name"]

Span = tuple[int, int]

_LINE: Final = 96
"""Maximum number of characters of a text above the carets."""
_BEFORE: Final = 32
"""Number of characters shown before the span in a long text."""
_QUOTE: Final = 64
"""Maximum number of characters of a text quoted within a sentence."""
_RUNS: Final = 8
"""Maximum number of runs of ranks that a message lists."""

# Characters that terminals show two columns wide. Both cores have this table of their own, because
# Unicode tables of different versions differ.
_WIDE: Final = re.compile(
    "[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\ua960-\ua97c"
    "\uac00-\ud7a3\uf900-\ufaff\ufe10-\ufe19\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6"
    "\U0001f300-\U0001f64f\U0001f900-\U0001f9ff\U00020000-\U0003fffd]"
)
# Characters that combine with the character before them.
_COMBINING: Final = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f]"
)
# Characters that would end a line, change the writing direction, or be invisible.
_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)


def show(text: str) -> str:
    """Replace each hidden character by a visible one: the text keeps to one line and direction."""
    return _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def quote(text: str) -> str:
    """Return a text for use within a sentence: without hidden characters, and cut if it is long."""
    shown = show(text)
    return shown if len(shown) <= _QUOTE else f"{shown[:_QUOTE]}…"


def point(text: str, span: Span) -> str:
    """Return two indented lines: the text, and at least one caret under the span.

    Of a long text only the part around the span is shown.
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
    """Return ranks as ranges, in their order: `0-3,8`; a long list of ranges is cut."""
    written = list(map(show_run, islice(runs_of(ranks), _RUNS + 1)))
    return ",".join([*written[:_RUNS], "…"] if len(written) > _RUNS else written)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 process`, `2 processes`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def encodable(value: object, what: str) -> str:
    """Return `value` if it is a text that UTF-8 can encode; Rust has no other texts.

    Raises:
        ShoalTypeError: `value` is not a `str`.
        UnicodeEncodeError: `value` contains a lone surrogate.
    """
    if not isinstance(value, str):
        raise ShoalTypeError(f"{what} must be a str, not {type_name(value)}")
    value.encode()
    return value


def type_name(value: object) -> str:
    """Return the name of the value's class, for messages."""
    return type(value).__name__
