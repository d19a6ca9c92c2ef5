"""The fixture `measure`: it replays measured rounds to pytest-benchmark and fills our tables.

pytest-benchmark times a function itself, one contender after the other, and in one process. Here
the rounds have already been measured when a contender reports. So they are replayed: the timer of
pytest-benchmark is a clock that shows the measured times.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from harness.alternate import Opener, Outcome, take_turns
from harness.row import Measured, Row, UnavailableError
from harness.table import Entry, Tables

__all__ = ["Measure", "replay_clock"]

_replayed = 0.0


def replay_clock() -> float:
    """Return the seconds that `_replay` set: a timer for pytest-benchmark."""
    return _replayed


def _replay(benchmark: Any, rounds: Sequence[float]) -> None:
    left = iter(rounds)

    def rewind() -> tuple[tuple[float], dict[str, Any]]:
        _set(0.0)
        return (next(left),), {}

    benchmark.pedantic(_set, setup=rewind, rounds=len(rounds))


def _set(seconds: float) -> None:
    global _replayed  # noqa: PLW0603  (a timer has no arguments)
    _replayed = seconds


class Measure:
    """Measures a row when its first result is asked for, and reports the result of one contender.

    Args:
        request: Request of the test, which is parametrized by `contender`.
        benchmark: The fixture of pytest-benchmark.
        tables: The tables to add to.
        smoke: Whether to run only one shortest round of each contender.
    """

    def __init__(
        self, request: pytest.FixtureRequest, benchmark: Any, tables: Tables, *, smoke: bool
    ) -> None:
        self._request = request
        self._benchmark = benchmark
        self._tables = tables
        self._smoke = smoke

    def __call__(self, row: Row, openers: Mapping[str, Opener]) -> None:
        """Report the contender of this test.

        Args:
            row: The row; the same for all its contenders.
            openers: All contenders of the row. Only those whose tests are selected take part.
        """
        contender = self._request.node.callspec.params["contender"]
        self._benchmark.group = row.name
        if not self._benchmark.enabled:
            alone = {contender: openers[contender]}
            outcomes = self._benchmark(take_turns, row, alone, smoke=True)
            self._check(row, contender, outcomes[contender])
            return
        key = (self._request.module, row.name)
        if key not in self._tables.outcomes:
            selected = {name: openers[name] for name in openers if name in self._selected()}
            self._tables.outcomes[key] = take_turns(row, selected, smoke=self._smoke)
        outcomes = self._tables.outcomes[key]
        count, rounds = self._check(row, contender, outcomes[contender])
        _replay(self._benchmark, [_middle(each) / 1e9 for each in rounds])
        entry = self._entry(row, contender, rounds, outcomes)
        sent = {"bytes": row.load.size} if row.load else {}
        about = {"processes": row.processes, "messages in a round": count, "p99": entry.tail}
        self._benchmark.extra_info.update(sent | about | entry.extra | {"goals": entry.goals})
        for name, other in ((row.reference, entry.reference), (row.limit, entry.limit)):
            if name and other:
                self._benchmark.extra_info[f"times {name}"] = entry.median / other
        self._tables.add(self._request.module, row, list(openers), entry)

    def _selected(self) -> set[str]:
        own = self._request.node
        same = [
            item.callspec.params
            for item in self._request.session.items
            if item.path == own.path and getattr(item, "originalname", "") == own.originalname
        ]
        rest = {name: value for name, value in own.callspec.params.items() if name != "contender"}
        return {params["contender"] for params in same if rest.items() <= params.items()}

    def _check(self, row: Row, contender: str, outcome: Outcome) -> tuple[int, list[Measured]]:
        if not isinstance(outcome, Exception):
            return outcome
        if isinstance(outcome, UnavailableError):
            pytest.skip(str(outcome))
        if contender in row.optional and not self._smoke:
            pytest.skip(f"{contender}, {row.name}: {outcome}")
        raise outcome

    def _entry(
        self, row: Row, contender: str, rounds: list[Measured], outcomes: dict[str, Outcome]
    ) -> Entry:
        median = self._benchmark.stats.stats.median * 1e9
        tails = [_percentile(each.samples, 0.99) for each in rounds if len(each.samples) > 1]
        names = rounds[0].extra
        extra = {name: statistics.median(each.extra[name] for each in rounds) for name in names}
        limit = _median(outcomes.get(row.limit or ""))
        reference = _median(outcomes.get(row.reference))
        judged = (median, limit, reference, extra)
        goals = [goal.judge(*judged) for goal in row.goals.get(contender, ())]
        tail = statistics.median(tails) / 1e9 if tails else None
        return Entry(contender, median, tail, reference, limit, extra, goals)


def _middle(measured: Measured) -> float:
    return statistics.median(measured.samples)


def _median(outcome: Outcome | None) -> float | None:
    if outcome is None or isinstance(outcome, Exception):
        return None
    return statistics.median(map(_middle, outcome[1]))


def _percentile(samples: Sequence[float], share: float) -> float:
    """Return the sample below which the given share of the samples lies."""
    return sorted(samples)[min(int(len(samples) * share), len(samples) - 1)]
