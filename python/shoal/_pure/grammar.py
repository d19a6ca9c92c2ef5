"""The placement string of one component: which process gets which resources.

    placement = segment ("," segment)*          empty segments are skipped
    segment   = resources [":" processes]       no processes: the next ones, one a resource
    resources = rank | rank "-" rank | "all"
    processes = rank | rank "-" rank

Resources ascend and are unique; process ranks run from 0 without gaps. For hardware one count of
a segment is a multiple of the other. Where resources are whole nodes, every node gets its share of
the processes and the remainder goes to the first nodes, one each.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from shoal._pure.placement import NodeGroup
from shoal._pure.resources import Resources, check_types, compress
from shoal._pure.text import Span, encodable, point, show
from shoal.errors import PlacementError

__all__ = ["MAX_PROCESSES", "parse_placement"]

MAX_PROCESSES: Final = 1_048_576
"""Far beyond any cluster: `0:0-999999999` is a typing error, not a plan."""

_BLANKS: Final = " \t\r\n"
_MAX_DIGITS: Final = 10


class _Range(NamedTuple):
    first: int
    last: int
    span: Span
    last_span: Span

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def parse_placement(text: str, groups: Sequence[NodeGroup], component: str) -> list[list[int]]:
    """Return the resource ranks of each process; see `_rust.pyi`."""
    encodable(text, "text")
    encodable(component, "component")
    groups = check_types(groups)
    try:
        resources = Resources.of(groups)
    except PlacementError as error:
        raise PlacementError(f'component "{show(component)}": {error}') from None
    return _Parser(text, resources, component).parse()


class _Parser:
    def __init__(self, text: str, resources: Resources, component: str) -> None:
        self.text = text
        self.resources = resources
        self.component = component
        self.used: list[_Range] = []
        self.processes: list[list[int]] = []

    def parse(self) -> list[list[int]]:
        start = 0  # of the segment, in characters
        for segment in self.text.split(","):
            span = self.trim((start, start + len(segment)))
            if span[0] < span[1]:
                self.segment(span)
            start += len(segment) + 1
        if not self.processes:
            raise self.error((0, len(self.text)), "expected ranks, such as 0-3 or all")
        return self.processes

    def segment(self, span: Span) -> None:
        colons = [i for i in range(*span) if self.text[i] == ":"]
        if len(colons) > 1:
            raise self.error((colons[1], colons[1] + 1), "expected one ':' in a segment at most")
        end = colons[0] if colons else span[1]
        ranks = self.resource_ranks(self.trim((span[0], end)))
        count = self.process_count(self.trim((end + 1, span[1]))) if colons else ranks.size
        if len(self.processes) + max(count, ranks.size) > MAX_PROCESSES:
            raise self.error(span, f"more than {MAX_PROCESSES} processes or resources")
        shares = self.shares(ranks, count, span)
        for share in shares:
            if len(share) > 1 and (why := self.resources.conflict(share)):
                process = len(self.processes) + shares.index(share)
                raise self.error(
                    span, f"process {process} would get ranks {compress(share)}, which are {why}"
                )
        self.processes += shares

    def resource_ranks(self, span: Span) -> _Range:
        if self.text[slice(*span)].lower() == "all":
            ranks = _Range(0, self.resources.total - 1, span, span)
        else:
            ranks = self.range(span, "expected a rank, a range such as 0-3, or all")
        if ranks.last >= self.resources.total or ranks.size == 0:
            what = f"there is no rank {ranks.last}" if ranks.size else "there are no ranks"
            raise self.error(ranks.last_span, what)
        for earlier in self.used:
            if ranks.first <= earlier.last and earlier.first <= ranks.last:
                shared = max(ranks.first, earlier.first)
                raise self.error(
                    span, f"resource ranks must be unique: {shared} stands in a segment before"
                )
        if self.used and ranks.first < self.used[-1].last:
            raise self.error(span, "resource ranks must be in ascending order")
        self.used.append(ranks)
        return ranks

    def process_count(self, span: Span) -> int:
        if self.text[slice(*span)].lower() == "all":
            raise self.error(span, "process ranks cannot be 'all': expected a range such as 0-3")
        ranks = self.range(span, "expected a process rank or a range such as 0-3")
        expected = len(self.processes)
        if expected == 0 and ranks.first > 0:
            raise self.error(span, "process ranks must start at 0")
        if ranks.first < expected:
            raise self.error(
                span,
                f"process ranks must be unique: {ranks.first} stands in a segment before, "
                f"expected {expected} next",
            )
        if ranks.first > expected:
            raise self.error(
                span,
                f"process ranks must be in ascending order without gaps: expected {expected} next",
            )
        return ranks.size

    def shares(self, ranks: _Range, count: int, span: Span) -> list[list[int]]:
        every = list(range(ranks.first, ranks.last + 1))
        if self.resources.whole:
            if count < len(every):
                raise self.error(
                    span,
                    f"{len(every)} nodes for {_plural(count, 'process')}: "
                    "one process cannot run across multiple nodes",
                )
            each, more = divmod(count, len(every))
            return [[r] for i, r in enumerate(every) for _ in range(each + (i < more))]
        if len(every) % count == 0:
            size = len(every) // count
            return [every[i : i + size] for i in range(0, len(every), size)]
        if count % len(every) == 0:
            return [[r] for r in every for _ in range(count // len(every))]
        raise self.error(
            span,
            f"{_plural(len(every), 'resource')} and {_plural(count, 'process')}: "
            "one count must be divisible by the other",
        )

    def range(self, span: Span, expected: str) -> _Range:
        start, end = span
        dash = self.text.find("-", start, end)
        first_span = span if dash < 0 else self.trim((start, dash))
        last_span = span if dash < 0 else self.trim((dash + 1, end))
        first, last = self.number(first_span), self.number(last_span)
        if first is None or last is None:
            raise self.error(span, expected)
        if last < first:
            raise self.error(span, f"a range must not end below its start: expected {last}-{first}")
        return _Range(first, last, span, last_span)

    def number(self, span: Span) -> int | None:
        digits = self.text[slice(*span)]
        if not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_DIGITS:
            return None
        return int(digits)

    def trim(self, span: Span) -> Span:
        start, end = span
        while start < end and self.text[start] in _BLANKS:
            start += 1
        while end > start and self.text[end - 1] in _BLANKS:
            end -= 1
        return start, end

    def error(self, span: Span, what: str) -> PlacementError:
        return PlacementError(
            f'component "{show(self.component)}": placement "{show(self.text)}": {what}\n'
            f"{point(self.text, span)}\n{self.resources.describe()}",
            text=self.text,
            span=span,
        )


def _plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"
