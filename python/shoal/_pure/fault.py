"""Errors in a placement string, and suggestions for the intended spelling."""

import itertools
from typing import Final

from shoal._pure.text import Span

__all__ = ["GrammarError", "near_counts"]

_DASHES: Final = "\u2010\u2011\u2012\u2013\u2014\u2015…−﹘﹣－~～"  # noqa: RUF001  # what people type
_COMMAS: Final = ";；，、+&|"  # noqa: RUF001  # what people type
_SIGNS: Final = {
    **dict.fromkeys(_DASHES, "-"),
    **dict.fromkeys(_COMMAS, ","),
    "\N{FULLWIDTH COLON}": ":",
    "\N{FULLWIDTH EXCLAMATION MARK}": "!",
    "^": "!",
    **dict.fromkeys("\N{FULLWIDTH SOLIDUS}\\%", "/"),
    "*": "all",
    **dict.fromkeys("[](){}\"'\u201c\u201d\u2018\u2019", ""),
    **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
    **{chr(ord("\N{FULLWIDTH DIGIT ZERO}") + digit): str(digit) for digit in range(10)},
}
"""Signs that people, editors and other formats use, mapped to the signs of the grammar."""

_ALL: Final = "all"
_FAR: Final = 4096
_ENOUGH: Final = 4


class GrammarError(Exception):
    """A placement string breaks a rule.

    Attributes:
        span: The part of the text.
        what: The rule in words.
        fixes: Changes that may correct the text, the likeliest first: a part, and its replacement.
    """

    def __init__(self, span: Span, what: str, *, spelling: bool = False) -> None:
        super().__init__(what)
        self.span = span
        self.what = what
        self.fixes: list[tuple[Span, str]] = []
        self._spelling = spelling

    def or_(self, start: int, end: int, text: str) -> "GrammarError":
        """Add a change that may correct the text; return the error itself."""
        self.fixes.append(((start, end), text))
        return self

    def candidates(self, text: str) -> list[str]:
        """Return corrected texts, which may still be invalid."""
        texts = [text[:start] + new + text[end:] for (start, end), new in self.fixes]
        return [*texts, _respell(text)] if self._spelling else texts


def _respell(text: str) -> str:
    """Replace signs and words of other formats with those of the grammar."""
    out = ""
    word = ""
    for at, c in enumerate(text):
        if c.isascii() and c.isalpha():
            word += c.lower()
            continue
        out += _known_word(word)
        word = ""
        if c == "." and text[at + 1 : at + 2] == ".":
            continue
        out += "-" if c == "." and at > 0 and text[at - 1] == "." else _SIGNS.get(c, c)
    return out + _known_word(word)


def _known_word(word: str) -> str:
    """Return the word or sign of the grammar that a word means or is one letter away from."""
    shorter = {word[:at] + word[at + 1 :] for at in range(len(word))}
    same = sum(a == b for a, b in zip(word, _ALL, strict=False))
    near_all = (
        word in {"al", "ll"}
        or _ALL in shorter
        or (len(word) == len(_ALL) and same >= len(_ALL) - 1)
    )
    return {"to": "-", "and": ","}.get(word, _ALL if near_all else word)


def near_counts(size: int, count: int) -> list[int]:
    """Return numbers of processes near `count` that can share `size` resources evenly."""
    near = (n for distance in range(1, _FAR + 1) for n in (count + distance, count - distance))
    fit = (n for n in near if n > 0 and (size % n == 0 or n % size == 0))
    return list(itertools.islice(fit, _ENOUGH))
