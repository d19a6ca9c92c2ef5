"""Parser of a component's placement string, which assigns resources to processes.

    placement = segment ("," segment)*            empty segments are skipped
    segment   = resources [":" range]             without range: one process for each resource
    resources = (range | "all") ["/" step] ("!" range)*
    range     = rank | rank "-" rank

A step takes every n-th rank of a range, from its first; an exclusion removes ranks. Resource ranks
ascend and are unique; process ranks run from 0 without gaps. For hardware, one of the two counts of
a segment (resources and processes) is a multiple of the other. If resources are whole nodes, the
processes are divided evenly among them; the first nodes take the remainder, one each.

Of several errors only the leftmost is reported; within a segment, errors in the resources come
first, then errors in the processes, then counts that do not match.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Final

from shoal._pure.fault import GrammarError, near_counts
from shoal._pure.placement import NodeGroup
from shoal._pure.ranks import RankLists
from shoal._pure.resources import Resources, check_types
from shoal._pure.select import (
    BLANKS,
    MAX_PROCESSES,
    Cursor,
    Selection,
    Token,
    read_number,
    select,
    tokenize,
    too_many,
    unexpected,
)
from shoal._pure.text import Span, compress, encodable, plural, point, quote, show
from shoal.errors import PlacementError

__all__ = ["parse_placement"]

_MAX_HINTED: Final = 256
"""Maximum length, in characters, of a text for which a valid spelling is suggested."""

_Tail = list[Token] | None


def parse_placement(text: str, groups: Sequence[NodeGroup], component: str) -> RankLists:
    """Return the resource ranks of each process; see `_rust.pyi`."""
    encodable(text, "text")
    encodable(component, "component")
    groups = check_types(groups)
    try:
        resources = Resources.of(groups)
    except PlacementError as error:
        raise PlacementError(f'component "{show(component)}": {error}') from None
    try:
        return RankLists._make(_Parser(text, resources).parse())
    except GrammarError as fault:
        raise PlacementError(
            f'component "{show(component)}": placement "{quote(text)}": '
            f"{fault.what}{_hint(fault, text, resources)}\n"
            f"{point(text, fault.span)}\n{resources.describe()}",
            text=text,
            span=fault.span,
        ) from None


def _hint(fault: GrammarError, text: str, resources: Resources) -> str:
    """Return a suggestion with the fault's first candidate that is valid; empty if none is."""
    if len(text) > _MAX_HINTED:
        return ""
    for given in fault.candidates(text):
        candidate = re.sub(f"[{BLANKS}]", "", given)
        try:
            _Parser(candidate, resources).parse()
        except GrammarError:
            continue
        return f'; did you mean "{candidate}"?'
    return ""


class _Parser:
    def __init__(self, text: str, resources: Resources) -> None:
        self.text = text
        self.resources = resources
        self.used: set[int] = set()
        self.highest = -1  # of the resources so far
        self.processes: list[list[int]] = []
        self.exclusion_end: int | None = None  # where the last segment ended with an exclusion

    def parse(self) -> list[list[int]]:
        tokens = tokenize(self.text)
        for is_comma, segment in itertools.groupby(tokens, lambda token: token.text == ","):
            if not is_comma:
                self.segment(list(segment))
        if not self.processes:
            raise GrammarError((0, len(self.text)), "expected ranks, such as 0-3 or all")
        return self.processes

    def segment(self, tokens: list[Token]) -> None:
        span = (tokens[0].start, tokens[-1].end)
        colons = [at for at, token in enumerate(tokens) if token.text == ":"]
        if len(colons) > 1:
            second = tokens[colons[1]].span
            what = "expected one ':' in a segment at most"
            fault = GrammarError(second, what, spelling=True)
            if colons[1] == colons[0] + 1:  # `0::0`: a colon too many
                raise fault.or_(*second, "")
            if len(colons) > 2 and _part_after(tokens, colons[2]):  # noqa: PLR2004  (the third colon)
                raise fault.or_(*second, ",")  # `0:0:1:1`: a colon that should be a comma
            raise fault.or_(second[0], span[1], "")  # `0:0:0`: a part too many
        head = tokens[: colons[0]] if colons else tokens
        tail = tokens[colons[0] + 1 :] if colons else None
        end = head[-1].end if head else span[0]
        try:
            ranks = select(Cursor(head, self.text, end), self.resources.total, span)
        except GrammarError as fault:
            self.with_processes(fault, tail, span)
            raise
        self.claim(ranks, tail)
        size = len(ranks.ranks)
        count = size
        if tail is not None:
            count = self.process_count(tail, tokens[colons[0]], span)
        if len(self.processes) + max(count, size) > MAX_PROCESSES:
            raise too_many(span)
        shares = self.shares(ranks.ranks, count, span, tail)
        for process, share in enumerate(shares, len(self.processes)):
            if len(share) > 1 and (why := self.resources.conflict(share)):
                what = f"process {process} would get ranks {compress(share)}, which are {why}"
                raise self.or_counts(GrammarError(span, what), size, count, tail)
        self.processes += shares
        self.exclusion_end = span[1] if ranks.excluding and tail is None else None

    def claim(self, ranks: Selection, tail: _Tail) -> None:
        """Check that the ranks are new, and higher than those of all previous segments."""
        first = ranks.ranks[0]
        if first > self.highest:
            self.used.update(ranks.ranks)
            self.highest = ranks.ranks[-1]
            return
        shared = next((rank for rank in ranks.ranks if rank in self.used), None)
        if shared is not None:
            what = f"Resource ranks must be unique: {shared} stands in a segment before"
            fault = GrammarError(ranks.span, what)
            # A comma ends the exclusions: in `all!3,4` perhaps both should have been excluded.
            if self.exclusion_end is not None and tail is None:
                fault.or_(self.exclusion_end, ranks.span[0], "!")
            raise fault
        what = f"Resource ranks must be in ascending order: {first} stands after {self.highest}"
        segments = [segment.strip(BLANKS) for segment in self.text.split(",")]
        segments = sorted(filter(None, segments), key=_first_rank)
        raise GrammarError(ranks.span, what).or_(0, len(self.text), ",".join(segments))

    def process_count(self, part: list[Token], colon: Token, span: Span) -> int:
        cursor = Cursor(part, self.text, colon.end)
        if part and part[0].is_all:
            what = "Process ranks cannot be 'all': expected a range such as 0-3"
            raise GrammarError(part[0].span, what).or_(colon.start, span[1], "")
        ranks = cursor.range("expected a process rank or a range such as 0-3", spelling=True)
        if following := cursor.next():
            if following.text in {"/", "!"}:
                what = "Process ranks have no steps and no exclusions: they run from 0 without gaps"
                raise GrammarError(following.span, what)
            raise unexpected(following, "expected ',' or the end", spelling=True)
        first, expected = ranks.first, len(self.processes)
        size = ranks.last - first + 1
        if first == expected:
            return size
        if expected == 0:
            what = "Process ranks must start at 0"
        elif first < expected:
            what = (
                f"Process ranks must be unique: {first} stands in a segment before, "
                f"expected {expected} next"
            )
        else:
            what = (
                f"Process ranks must be in ascending order without gaps: expected {expected} next"
            )
        raise GrammarError(ranks.span, what).or_(*ranks.span, _write_range(expected, size))

    def shares(self, ranks: list[int], count: int, span: Span, tail: _Tail) -> list[list[int]]:
        """Divide the ranks among `count` processes."""
        size = len(ranks)
        if self.resources.whole:
            if count < size:
                what = (
                    f"{size} nodes for {plural(count, 'process')}: "
                    "one process cannot run across multiple nodes"
                )
                raise self.or_counts(GrammarError(span, what), size, count, tail)
            each, more = divmod(count, size)
            return [[r] for i, r in enumerate(ranks) for _ in range(each + (i < more))]
        if size % count == 0:
            length = size // count
            return [ranks[i : i + length] for i in range(0, size, length)]
        if count % size == 0:
            return [[r] for r in ranks for _ in range(count // size)]
        what = (
            f"{plural(size, 'resource')} and {plural(count, 'process')}: "
            "one count must be divisible by the other"
        )
        raise self.or_counts(GrammarError(span, what), size, count, tail)

    def or_counts(self, fault: GrammarError, size: int, count: int, tail: _Tail) -> GrammarError:
        """Add the nearest numbers of processes that fit, as suggestions."""
        if tail:
            first = read_number(tail[0].text)
            for near in near_counts(size, count):
                fault.or_(tail[0].start, tail[-1].end, _write_range(first, near))
        return fault

    def with_processes(self, fault: GrammarError, tail: _Tail, span: Span) -> None:
        """Suggest correcting the process ranks too, if they end with the same too high rank."""
        if not tail or not tail[-1].is_number or not fault.what.startswith("there is no rank"):
            return
        if read_number(tail[-1].text) != read_number(self.text[slice(*fault.span)]):
            return
        for (start, end), text in list(fault.fixes):
            rest = self.text[end : tail[0].start]
            count = _write_range(len(self.processes), int(text.rpartition("-")[2]) + 1)
            fault.or_(*span, f"{self.text[span[0] : start]}{text}{rest}{count}")


def _part_after(tokens: list[Token], colon: int) -> bool:
    """Whether a part that is not empty follows a colon."""
    return colon + 1 < len(tokens) and tokens[colon + 1].text != ":"


def _first_rank(segment: str) -> int:
    digits = re.match("[0-9]*", segment)
    return read_number(digits[0] if digits else "")


def _write_range(first: int, count: int) -> str:
    return f"{first}" if count == 1 else f"{first}-{first + count - 1}"
