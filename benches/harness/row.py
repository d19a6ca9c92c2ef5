"""A row of the tables: one operation, its contenders' goals, and how its results are written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.lines import Load
from harness.roles import Role

__all__ = ["Goal", "Limit", "Measured", "Row", "UnavailableError", "Unit"]


class UnavailableError(Exception):
    """A contender cannot run here, for example because its package is not installed."""


@dataclass(frozen=True)
class Measured:
    """One round of a contender.

    Attributes:
        samples: Nanoseconds for each message or call.
        extra: Other numbers by name, with their unit in the name: `"core used, %"`.
    """

    samples: Sequence[float]
    extra: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Unit:
    """The unit in which the table shows nanoseconds for each message.

    Attributes:
        write: Turns nanoseconds into text.
        rate: Whether more is better.
    """

    write: Callable[[float], str]
    rate: bool = False

    @classmethod
    def time(cls) -> "Unit":
        """The unit of times."""
        return cls(_time)

    @classmethod
    def per_second(cls, size: int = 0) -> "Unit":
        """The unit of rates: messages a second, or bytes a second if the message has a size."""
        if size:
            return cls(lambda cost: f"{size / cost:.3g} GB/s", rate=True)
        return cls(_rate, rate=True)


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
class Goal:
    """An upper bound of a cost.

    Attributes:
        text: The goal as the table prints it.
        cost: The bound in nanoseconds, or in the unit of `of`.
        times: The bound as a multiple of the cost of the row's limit.
        times_reference: The bound as a multiple of the cost of the row's reference.
        of: Name of the extra number that is bounded; None for the cost.
    """

    text: str
    cost: float | None = None
    times: float | None = None
    of: str | None = None
    times_reference: float | None = None

    def judge(
        self,
        cost: float,
        limit: float | None,
        reference: float | None,
        extra: Mapping[str, float],
    ) -> str:
        """Say which share of the bound was used; if its basis was not measured, there is no verdict."""
        allowed = self.cost
        for times, basis in ((self.times, limit), (self.times_reference, reference)):
            if times is not None:
                allowed = basis and basis * times
        if not allowed:
            return f"{self.text}: not judged"
        used = (cost if self.of is None else extra[self.of]) / allowed
        return f"{self.text}: {used:.3g} of it, {'holds' if used <= 1 else 'MISSED'}"


@dataclass(frozen=True)
class Limit:
    """A limit of the machine: a mode of the Rust example `limits`, with its name as a contender."""

    name: str
    mode: str
    size: int = 0


def first(answers: list[Any], _count: int) -> Sequence[float]:
    """Return the samples that the first process took."""
    return answers[0]


@dataclass(frozen=True)
class Row:
    """A group of results.

    Attributes:
        name: The group's name in pytest-benchmark, and the row's in the table.
        reference: The contender that the others are compared with.
        goals: Goals by contender.
        unit: The unit in which the table shows a cost.
        least: Smallest number of messages in a round; the others are multiples of it.
        most: Largest number of messages in a round.
        rounds: Number of rounds.
        slow: Contenders with at most 3 rounds.
        optional: Contenders whose failure only skips their own result.
        limit: The contender whose cost the goals may be multiples of.
        load: The messages; None if no messages are sent.
        roles: Makes the roles of the processes from the row's lines.
        read: Makes samples from the answers of the processes and the number of messages.
        extra: Makes other numbers from the answers of the processes.
        lines: Number of lines that `roles` takes.
        can: The ability that a line needs.
        processes: Number of processes that do the work.
        anywhere: Whether each process may run on every core; otherwise it has one core.
    """

    name: str
    reference: str
    goals: Mapping[str, Sequence[Goal]] = field(default_factory=dict)
    unit: Unit = field(default_factory=Unit.time)
    least: int = 1
    most: int = 1
    rounds: int = 5
    slow: Sequence[str] = ()
    optional: Sequence[str] = ()
    limit: str | None = None
    load: Load | None = None
    roles: Callable[..., list[Role]] = list
    read: Callable[[list[Any], int], Sequence[float]] = first
    extra: Callable[[list[Any]], Mapping[str, float]] = lambda _answers: {}
    lines: int = 1
    can: str | None = None
    processes: int = 2
    anywhere: bool = False
