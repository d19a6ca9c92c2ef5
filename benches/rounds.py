"""Measures contenders in turn, in rounds, each as long as it takes for about the same time."""

import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from crew import Crew, cores
from figures import Cost, Figures, Goal, Unit
from limits import Limits
from lines import Line, Load, Rival, Shoal
from roles import Role

__all__ = ["Floor", "Limit", "Rounds", "Row", "Timed"]

ROUNDS = 5
SLOW_ROUNDS = 3
SECONDS = 0.25

# Times one round of a contender: samples in nanoseconds.
Timed = Callable[[int], Sequence[float]]


@dataclass(frozen=True)
class Limit:
    """A limit of the machine, by its name in the table and in the example `limits`."""

    name: str
    what: str
    size: int = 0


@dataclass(frozen=True)
class Floor:
    """What Python itself needs for its part, measured as the contenders are, without a queue."""

    name: str
    roles: Callable[..., list[Role]]


@dataclass(frozen=True)
class Row:
    """What is measured of all contenders alike.

    Attributes:
        what: Its name in the table.
        load: The messages.
        roles: Makes the processes' roles for lines.
        read: Makes samples of what the processes returned, and of the number of messages.
        unit: How a cost is written.
        least: The least number of messages in a round, of which the others are multiples.
        most: The most.
        lines: How many lines a crew needs.
        can: What a line has to be able to do.
        limit: The limit beside it.
        floor: What Python needs beside it.
        goal: What is to be reached.
        anywhere: Whether each process may run on both cores, rather than have one.
    """

    what: str
    load: Load
    roles: Callable[..., list[Role]]
    read: Callable[[list, int], Sequence[float]]
    unit: Unit
    least: int
    most: int
    lines: int = 1
    can: str | None = None
    limit: Limit | None = None
    floor: Floor | None = None
    goal: Goal | None = None
    anywhere: bool = False


class Rounds:
    """Runs rows, and collects their figures.

    Args:
        figures: Where they go.
        limits: Measures the machine's limits; None where it could not be built.
        smoke: Whether to run each contender once only, as shortly as possible.
    """

    def __init__(self, figures: Figures, limits: Limits | None, *, smoke: bool) -> None:
        self._figures = figures
        self._limits = limits
        self._smoke = smoke

    def run(self, row: Row, rivals: Sequence[type[Rival]] = ()) -> None:
        """Run a row with `shoal.shm`, the limit, and those rivals that are there and can do it."""
        with ExitStack() as stack:
            contenders: dict[str, Timed] = {}
            if row.limit and self._limits:
                contenders[row.limit.name] = self._limited(row.limit, self._limits)
            if row.floor:
                contenders[row.floor.name] = self._crew(row, Shoal, row.floor.roles, stack)
            contenders[Shoal.name] = self._crew(row, Shoal, row.roles, stack)
            others: dict[str, ExitStack] = {}
            for rival in rivals:
                if rival.missing():
                    self._figures.note(f"{rival.name}: not installed")
                elif row.can is None or row.can in rival.can:
                    own = others[rival.name] = stack.enter_context(ExitStack())
                    with self._tried(row, rival.name, own):
                        contenders[rival.name] = self._crew(row, rival, row.roles, own)
            limit = row.limit.name if row.limit else None
            goals = {Shoal.name: [row.goal]} if row.goal else {}
            self.measure(row, contenders, others, goals, ours=Shoal.name, limit=limit)

    @contextmanager
    def _tried(self, row: Row, rival: str, own: ExitStack) -> Iterator[None]:
        """Make a note of what a rival cannot do, which is no error of ours, and end it."""
        try:
            yield
        except Exception as error:
            # In a smoke run it is our code that is looked at.
            if self._smoke:
                raise
            self._figures.note(f"{rival}, {row.what}: {error}")
            own.close()

    def _crew(
        self, row: Row, kind: type[Line], make: Callable[..., list[Role]], stack: ExitStack
    ) -> Timed:
        lines = [kind(row.load) for _ in range(row.lines)]
        for line in lines:
            stack.callback(line.close)
        roles = make(*lines)
        both = cores()
        on = [set(both) if row.anywhere else {both[n % 2]} for n in range(len(roles))]
        crew = Crew(roles, on)
        stack.callback(crew.close)
        return lambda count: row.read(crew.round(count), count)

    @staticmethod
    def _limited(limit: Limit, limits: Limits) -> Timed:
        return lambda count: limits.samples(limit.what, count, limit.size)

    def measure(
        self,
        row: Row,
        contenders: dict[str, Timed],
        others: Mapping[str, ExitStack],
        goals: Mapping[str, Sequence[Goal]],
        *,
        ours: str,
        limit: str | None = None,
        slow: Collection[str] = (),
    ) -> None:
        """Let contenders take turns, and add their figures.

        Args:
            row: The row.
            contenders: Their rounds; without those, in the end, that failed.
            others: Those that may fail, and what to close then.
            goals: What is to be reached, and by whom.
            ours: Whom the others are compared with.
            limit: Whose cost goals are multiples of.
            slow: Those that have fewer rounds.
        """
        counts: dict[str, int] = {}
        samples: dict[str, list[Sequence[float]]] = {}

        def take_turns(step: Callable[[str], None], names: Collection[str]) -> None:
            for name in random.sample(list(names), len(names)):
                if name not in others:
                    step(name)
                    continue
                with self._tried(row, name, others[name]):
                    step(name)
                    continue
                del contenders[name]

        def choose_count(name: str) -> None:
            counts[name], samples[name] = self._count(row, contenders[name]), []

        def time_one(name: str) -> None:
            samples[name].append(contenders[name](counts[name]))

        take_turns(choose_count, contenders)
        for number in range(1 if self._smoke else ROUNDS):
            turns = [name for name in contenders if number < SLOW_ROUNDS or name not in slow]
            take_turns(time_one, turns)
        costs = {name: Cost.of(samples[name]) for name in contenders}
        self._figures.add(row.what, costs, row.unit, goals, ours=ours, limit=limit)

    def _count(self, row: Row, timed: Timed) -> int:
        """Choose how many messages a round has, by two rounds that also warm everything up."""
        count = row.least
        for _ in range(0 if self._smoke else 2):
            start = time.perf_counter()
            timed(count)
            share = SECONDS / (time.perf_counter() - start)
            count = min(max(int(count * share), row.least), row.most)
            count -= count % row.least
        return count
