"""Histories of queue calls with their times, and a check whether a FIFO queue can produce them.

All values are different. Then a history is wrong exactly if it contains one of a few patterns,
which are found in O(n log n) without searching for an order of the operations.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf


@dataclass(frozen=True)
class Call:
    """An operation, which took effect at one moment between its call and its return.

    `what` is `put`, `get`, or `empty` for a get that found nothing.
    """

    what: str
    value: str
    called: float
    returned: float


@dataclass
class History:
    """The calls of a run at whose end the queue was found empty."""

    puts: dict[str, Call] = field(default_factory=dict)
    gets: dict[str, Call] = field(default_factory=dict)
    empties: list[Call] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, calls: Iterable[Call]) -> "History":
        history = cls()
        for call in calls:
            if call.what == "empty":
                history.empties.append(call)
                continue
            of_kind = history.puts if call.what == "put" else history.gets
            if call.value in of_kind:
                history.wrong.append(f"{call.what} twice: {call.value}")
            of_kind[call.value] = call
        return history

    def violations(self) -> list[str]:
        """Return what no FIFO queue could have done; empty if one could."""
        return [*self.wrong, *self._strangers(), *self._inversions(), *self._false_empties()]

    def _strangers(self) -> Iterable[str]:
        for value, get in self.gets.items():
            put = self.puts.get(value)
            if put is None:
                yield f"got but not put: {value}"
            elif get.returned < put.called:
                yield f"got before it was put: {value}"
        for value in self.puts.keys() - self.gets.keys():
            yield f"put but not got: {value}"

    def _inversions(self) -> Iterable[str]:
        """Find a and b where a was put before b, and b was got before a."""
        both = [(put, self.gets[value]) for value, put in self.puts.items() if value in self.gets]
        by_return = sorted(both, key=lambda pair: pair[0].returned)
        # For each return of a put: of the values put by then, the one whose get was called last.
        ends = [put.returned for put, _ in by_return]
        latest: list[Call] = []
        for _, get in by_return:
            newer = not latest or get.called > latest[-1].called
            latest.append(get if newer else latest[-1])
        for put, get in both:
            before = bisect_right(ends, put.called - 1)
            if before and latest[before - 1].called > get.returned:
                yield f"{latest[before - 1].value} was put before {get.value} and got after it"

    def _false_empties(self) -> Iterable[str]:
        """Find a get that found nothing although the queue was never empty during the call."""
        inside = sorted(
            (put.returned, self.gets[value].called if value in self.gets else inf)
            for value, put in self.puts.items()
        )
        spans: list[list[float]] = []
        for begin, end in inside:
            if begin >= end:
                continue
            # If one span ends as the next begins, no get can see the queue empty between them.
            if spans and begin <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], end)
            else:
                spans.append([begin, end])
        begins = [begin for begin, _ in spans]
        for call in self.empties:
            at = bisect_right(begins, call.called) - 1
            if at >= 0 and spans[at][0] < call.called and call.returned < spans[at][1]:
                yield f"found empty from {call.called} to {call.returned}, and it was not"


def is_sequential(calls: list[Call]) -> bool:
    """Whether no two calls overlap."""
    ordered = sorted(calls, key=lambda call: call.called)
    return all(one.returned < other.called for one, other in pairwise(ordered))
