"""Parser of the resources in one segment: a range or `all`, a step, and exclusions."""

import re
from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

from shoal._pure.fault import GrammarError
from shoal._pure.text import Span, compress, quote

__all__ = [
    "BLANKS",
    "MAX_PROCESSES",
    "Cursor",
    "Range",
    "Selection",
    "Token",
    "read_number",
    "select",
    "tokenize",
    "too_many",
]

MAX_PROCESSES: Final = 1_048_576
"""Maximum number of processes; far beyond any cluster: `0:0-999999999` is a typing error."""

BLANKS: Final = " \t\r\n"

_MAX_RANKS: Final = 2**31
_MAX_DIGITS: Final = 15
_TOKEN: Final = re.compile(r"[-/!:,]|[^-/!:, \t\r\n]+")


class Token(NamedTuple):
    """A number, a word, or one of the signs `-/!:,`, and its position."""

    text: str
    start: int
    end: int

    @property
    def is_number(self) -> bool:
        """Whether it has only ASCII digits."""
        return self.text.isascii() and self.text.isdigit()

    @property
    def is_all(self) -> bool:
        """Whether it is `all`, in upper or lower case."""
        return self.text.isascii() and self.text.lower() == "all"

    @property
    def span(self) -> Span:
        """Its start and end in the text."""
        return self.start, self.end


class Range(NamedTuple):
    """A range as written, both ends included; `many` is True if it has a dash or is `all`."""

    first: int
    last: int
    span: Span
    last_token: Token
    many: bool


class Selection(NamedTuple):
    """The ranks that a segment selects, ascending, and whether any were excluded."""

    ranks: list[int]
    span: Span
    excluding: bool


def tokenize(text: str) -> list[Token]:
    """Split a text into tokens; blanks separate them."""
    return [Token(match[0], *match.span()) for match in _TOKEN.finditer(text)]


def select(cursor: "Cursor", total: int, segment: Span) -> Selection:
    """Parse the resources of a segment."""
    total = min(total, _MAX_RANKS)
    start = cursor.here()
    base = cursor.base(total)
    step = cursor.step(base)
    exists(base, total)
    base_end = cursor.end
    exclusions: list[Range] = []
    while cursor.take("!"):
        expected = "expected a rank or a range after '!', such as all!3!4-7"
        excluded = cursor.range(expected, spelling=True)
        exists(excluded, total, " to exclude")
        exclusions.append(excluded)
    if following := cursor.next():
        raise cursor.leftover(following, base_end, excluded=bool(exclusions))
    if (base.last - base.first) // step >= MAX_PROCESSES:
        raise too_many(segment)
    ranks = list(range(base.first, base.last + 1, step))
    for excluded in exclusions:
        first, last = bisect_left(ranks, excluded.first), bisect_right(ranks, excluded.last)
        if first == last:
            what = f"there is nothing to exclude here: the ranks are {compress(ranks)}"
            raise GrammarError(excluded.span, what if ranks else "there is nothing left to exclude")
        del ranks[first:last]
    span = (start, cursor.end)
    if not ranks:
        raise GrammarError(span, "the exclusions leave no rank")
    return Selection(ranks, span, bool(exclusions))


def exists(given: Range, total: int, why: str = "") -> None:
    """Check that the last rank of a range exists."""
    if given.last < total:
        return
    last = given.last_token
    fault = GrammarError(last.span, f"there is no rank {_digits(last)}{why}")
    if given.last > total or total == 0:
        raise fault
    # One too high: the user counts from 1, or wrote the number of ranks as the last rank.
    if given.first == 1 and total > 1:
        raise fault.or_(*given.span, f"0-{total - 1}")
    raise fault.or_(*(given.span if given.first == total - 1 else last.span), f"{total - 1}")


class Cursor:
    """Reads the tokens of one part of a segment, one after the other."""

    def __init__(self, tokens: list[Token], text: str, end: int) -> None:
        self._tokens = tokens
        self._text = text
        self._at = 0
        self.end = end  # of the previous token

    def next(self) -> Token | None:
        """Take and return the next token, or return None at the end."""
        if self._at == len(self._tokens):
            return None
        token = self._tokens[self._at]
        self._at += 1
        self.end = token.end
        return token

    def take(self, sign: str) -> Token | None:
        """Take and return the next token if it is this sign, else return None."""
        if self._at < len(self._tokens) and self._tokens[self._at].text == sign:
            return self.next()
        return None

    def here(self) -> int:
        """Return the start of the next token, or the end of the part."""
        return self._tokens[self._at].start if self._at < len(self._tokens) else self.end

    def base(self, total: int) -> Range:
        """Read `all`, a rank or a range."""
        tokens = self._tokens
        if not tokens or not tokens[0].is_all:
            start = self.here()
            try:
                expected = "expected a rank, a range such as 0-3, or all"
                return self.range(expected, spelling=True)
            except GrammarError as fault:
                # Suggest a fix for ranges that are open at one end, like Python's slices.
                match tokens:
                    case [Token("-"), number] if number.is_number:
                        fault.or_(start, start, "0")
                    case [_, Token("-", _, end)] if total > 0:
                        fault.or_(end, end, f"{total - 1}")
                raise
        token = tokens[0]
        self.next()
        if total == 0:
            raise GrammarError(token.span, "there are no ranks")
        return Range(0, total - 1, token.span, token, many=True)

    def range(self, expected: str, *, spelling: bool) -> Range:
        """Read `rank` or `rank-rank`."""
        first = self.rank(expected, spelling=spelling)
        number = read_number(first.text)
        if not self.take("-"):
            return Range(number, number, first.span, first, many=False)
        last = self.rank("expected a rank after '-'", spelling=spelling)
        given = Range(number, read_number(last.text), (first.start, last.end), last, many=True)
        if given.last < given.first:
            turned = f"{_digits(last)}-{_digits(first)}"
            what = "a range must not end below its start"
            raise GrammarError(given.span, what).or_(*given.span, turned)
        return given

    def rank(self, expected: str, *, spelling: bool) -> Token:
        """Read a number."""
        token = self.next()
        if token is None:
            raise GrammarError((self.end, self.end), expected, spelling=spelling)
        if not token.is_number:
            raise unexpected(token, expected, spelling=spelling)
        return token

    def step(self, base: Range) -> int:
        """Read `/step` if it is there; return the step, or 1."""
        slash = self.take("/")
        if slash is None:
            return 1
        expected = "expected a step of 1 or more after '/', such as 0-63/8"
        number = self.rank(expected, spelling=True)
        step = read_number(number.text)
        if step == 0:
            raise unexpected(number, expected, spelling=True)
        if not base.many:
            what = "a step needs a range or all before it, such as 0-63/8"
            raise GrammarError((slash.start, number.end), what, spelling=True)
        return step

    def leftover(self, token: Token, base_end: int, *, excluded: bool) -> GrammarError:
        """Return the fault of a token after the resources."""
        if token.text == "/" and excluded:
            fault = GrammarError(
                token.span, "a step stands before the exclusions, such as 0-63/8!16"
            )
            number = self.next()
            if number is None or not number.is_number:
                return fault
            step = self._text[token.start : number.end]
            exclusions = self._text[base_end : token.start]
            return fault.or_(base_end, number.end, f"{step}{exclusions}")
        fault = unexpected(token, "expected ':', ',' or the end", spelling=True)
        if token.text == "-":
            return fault.or_(*token.span, "!")
        if token.is_number:
            return fault.or_(token.start, token.start, ",")
        return fault


def unexpected(token: Token, expected: str, *, spelling: bool) -> GrammarError:
    """Return the fault of a token that is not allowed at its position."""
    return GrammarError(token.span, f'{expected}; found "{quote(token.text)}"', spelling=spelling)


def too_many(span: Span) -> GrammarError:
    """Return the fault of a segment that is too large."""
    return GrammarError(span, f"more than {MAX_PROCESSES} processes or resources")


def read_number(digits: str) -> int:
    """Return the value of digits; very long digits give a number that is above any limit."""
    digits = digits.lstrip("0")
    return 10**_MAX_DIGITS if len(digits) > _MAX_DIGITS else int(digits or "0")


def _digits(token: Token) -> str:
    """Return a number as written, without leading zeros."""
    return quote(token.text.lstrip("0")) or "0"
