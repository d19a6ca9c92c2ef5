"""The table of what messages cost beside the machine's limits, the rivals' costs and the goals."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

__all__ = ["Cost", "Figures", "Goal", "Unit", "percentile"]


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the sample below which that share of them lies."""
    return sorted(samples)[min(int(len(samples) * share), len(samples) - 1)]


@dataclass(frozen=True)
class Unit:
    """How a cost, in nanoseconds for a message, is written."""

    write: Callable[[float], str]
    rate: bool = False

    @classmethod
    def time(cls) -> "Unit":
        """As a time."""
        return cls(_time)

    @classmethod
    def per_second(cls, size: int = 0) -> "Unit":
        """As messages a second, or as bytes where a message has a size."""
        if size:
            return cls(lambda cost: f"{size / cost:.3g} GB/s", rate=True)
        return cls(_rate, rate=True)

    @classmethod
    def share(cls) -> "Unit":
        """As a share of a core, which is no time."""
        return cls(lambda cost: f"{100 * cost:.2f} %")


def _time(cost: float) -> str:
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if cost >= factor:
            return f"{cost / factor:.3g} {unit}"
    return f"{cost / 1e3:.3f} µs"


def _rate(cost: float) -> str:
    for factor, unit in ((1e3, "M/s"), (1e6, "k/s")):
        if cost <= factor:
            return f"{factor / cost:.3g} {unit}"
    return f"{1e9 / cost:.3g} /s"


@dataclass(frozen=True)
class Cost:
    """What one contender's message costs: medians over the rounds.

    Attributes:
        median: In nanoseconds.
        tail: That of the 99th of 100 messages; None where only all of them were timed.
    """

    median: float
    tail: float | None

    @classmethod
    def of(cls, rounds: Sequence[Sequence[float]]) -> "Cost":
        """Sum up rounds of samples."""
        tails = [percentile(samples, 0.99) for samples in rounds if len(samples) > 1]
        middle = statistics.median(statistics.median(samples) for samples in rounds)
        return cls(middle, statistics.median(tails) if tails else None)


@dataclass(frozen=True)
class Goal:
    """What a message may cost: so much, or so many times what the machine's limit costs."""

    text: str
    cost: float | None = None
    times: float | None = None

    def judge(self, cost: float, limit: float | None) -> str:
        """Say how much of what is allowed was used; a limit that was not measured says nothing."""
        allowed = self.cost if self.times is None else limit and limit * self.times
        if not allowed:
            return f"{self.text}: not judged"
        used = cost / allowed
        return f"{self.text}: {used:.3g} of it, {'holds' if used <= 1 else 'MISSED'}"


class Figures:
    """Collects rows; prints one table at the end."""

    def __init__(self, title: str) -> None:
        self._table = Table(
            "what", "who", "median", "99 of 100", "beside shoal", "goal", title=title
        )
        self._notes: list[str] = []

    def add(
        self,
        what: str,
        costs: dict[str, Cost],
        unit: Unit,
        goals: Mapping[str, Sequence[Goal]],
        *,
        ours: str,
        limit: str | None = None,
    ) -> None:
        """Add what contenders cost; `ours` and `limit` name two of them, `goals` any."""
        own, floor = costs[ours].median, costs.get(limit or "")
        for who, cost in costs.items():
            allowed = floor.median if floor else None
            judged = "\n".join(goal.judge(cost.median, allowed) for goal in goals.get(who, ()))
            # A rate is compared as one: who has half of it has 0.5.
            over, under = (own, cost.median) if unit.rate else (cost.median, own)
            beside = f"{over / under:.3g}" if under else ""
            tail = "" if cost.tail is None else unit.write(cost.tail)
            self._table.add_row(what, who, unit.write(cost.median), tail, beside, judged)
            what = ""
        self._table.add_section()

    def note(self, text: str) -> None:
        """Say below the table what is missing in it; once."""
        if text not in self._notes:
            self._notes.append(text)

    def print(self) -> None:
        """Print the table and what is missing in it."""
        console = Console(width=140)
        if self._table.row_count:
            console.print(self._table)
        for note in self._notes:
            console.print(note)
