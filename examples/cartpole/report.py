"""The output of the driver: tables, a progress line, and the learning curve."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

LAST = 100
"""Number of scores in the mean."""
REFRESH_S = 0.25
"""Seconds between two updates of the line on a terminal."""
PLAIN_LINE_S = 5.0
"""Seconds between two printed lines without a terminal."""


class Progress:
    """The progress of the training."""

    def __init__(self) -> None:
        self.steps = 0
        self.curve: list[tuple[int, float]] = []
        self._scores: deque[float] = deque(maxlen=LAST)
        self._start = time.monotonic()
        self._stop: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds that the training has taken."""
        return (self._stop or time.monotonic()) - self._start

    @property
    def mean(self) -> float:
        """The mean of the last 100 scores; 0 until there are 100."""
        return sum(self._scores) / LAST if len(self._scores) == LAST else 0.0

    def add(self, scores: Sequence[float], steps: int) -> None:
        """Add one iteration."""
        self._scores.extend(scores)
        self.steps += steps
        if self.mean:
            self.curve.append((self.steps, self.mean))

    def stop(self) -> None:
        """Stop the clock."""
        self._stop = time.monotonic()


class Board:
    """The progress line: redrawn on a terminal, else printed every few seconds."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._every = REFRESH_S if self._live else PLAIN_LINE_S
        self._next = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if self._live:
            self._live.stop()

    def refresh(self, depth: Callable[[], int]) -> None:
        """Show the line again if it is due.

        Args:
            depth: Counts the episodes in the channel; called only when the line is shown.
        """
        progress = self._progress
        if progress.seconds < self._next:
            return
        self._next = progress.seconds + self._every
        line = (
            f"mean score {progress.mean:6.1f}   {progress.steps:7d} steps   "
            f"{progress.steps / max(progress.seconds, 1e-3):6.0f} steps/s   "
            f"{depth():4d} episodes in the channel   {progress.seconds:4.0f} s"
        )
        if self._live:
            self._live.update(line, refresh=True)
        else:
            self._console.print(line, soft_wrap=True)


def placement_table(plan: Sequence[dict[str, Any]]) -> Table:
    """Make the table of the nodes and devices of the workers."""
    table = Table("component", "rank", "node", "address", "devices", title="Placement")
    for entry in plan:
        devices = ", ".join(map(str, entry["devices"])) or "CPU"
        table.add_row(
            entry["component"], str(entry["rank"]), str(entry["node"]), entry["address"], devices
        )
    return table


def times_table(times: dict[str, list[dict[str, float]]], total: float) -> Table:
    """Make the table of the time that each component spent on each task.

    Args:
        times: For each component, the sums of the timers of each rank.
        total: Seconds that the training took.
    """
    table = Table("component", "doing", title=f"Where {total:.1f} s went (mean of the ranks)")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for component, ranks in times.items():
        means = {tag: sum(rank.get(tag, 0.0) for rank in ranks) / len(ranks) for tag in ranks[0]}
        means["idle, and the rest"] = max(0.0, total - sum(means.values()))
        longest_first = sorted(means.items(), key=lambda item: -item[1])
        for row, (tag, seconds) in enumerate(longest_first):
            name = "" if row else component
            table.add_row(name, tag, f"{seconds:.2f}", f"{seconds / total:.0%}")
        table.add_section()
    return table


def write_curve(progress: Progress, path: Path) -> None:
    """Plot the mean score against the steps played."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow, and needed once, at the end)

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([steps for steps, _ in progress.curve], [mean for _, mean in progress.curve])
    axes.set(xlabel="steps played", ylabel=f"mean of the last {LAST} scores", ylim=(0, 505))
    axes.axhline(475, linestyle=":", color="grey", label="solved: 475")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
