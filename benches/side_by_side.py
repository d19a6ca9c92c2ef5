"""Times contenders in turn, so that a machine that is busy slows all of them alike.

Each round runs every contender once, in random order. What counts is the ratio of the medians
within one run; the times themselves are of this machine and this hour.
"""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

__all__ = ["Contender", "Race"]


@dataclass(frozen=True)
class Contender:
    """What is timed: `run`, and around it what is not."""

    run: Callable[[], object]
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None


@dataclass
class Race:
    """Runs races, and prints one table at the end.

    Attributes:
        smoke: Whether to run each contender once only, to see that it works.
    """

    smoke: bool = False

    def __post_init__(self) -> None:
        self._table = Table(
            "what", "who", "median", "mean", "times the first", title="Side by side"
        )

    def run(
        self, what: str, contenders: dict[str, Contender], rounds: int, warmup: int = 1
    ) -> dict[str, float]:
        """Time the contenders; returns their medians in seconds."""
        rounds, warmup = (1, 0) if self.smoke else (rounds, warmup)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(rounds + warmup):
            for name, contender in random.sample(list(contenders.items()), len(contenders)):
                contender.before()
                start = time.perf_counter()
                contender.run()
                spent = time.perf_counter() - start
                contender.after()
                if number >= warmup:
                    seconds[name].append(spent)
        medians = {name: statistics.median(spent) for name, spent in seconds.items()}
        first = next(iter(medians.values()))
        for name, median in medians.items():
            mean = statistics.fmean(seconds[name])
            self._table.add_row(what, name, _text(median), _text(mean), f"{median / first:.2f}")
        self._table.add_section()
        return medians

    def print(self) -> None:
        """Print the table."""
        if self._table.row_count:
            Console(width=100).print(self._table)


def _text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"
