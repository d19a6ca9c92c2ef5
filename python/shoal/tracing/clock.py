"""Clocks of traces: one for all processes of a node, and its difference from the clock of node 0."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shoal.tracing import timing

__all__ = ["Clock", "Reading", "Skew", "node_clock"]

# Number of questions about the time at the start, and after that in each interval.
_FIRST_PROBES = 8
_PROBES = 4
# Two clocks drift apart by at most this much: 50 microseconds in each second.
_DRIFT = 50e-6


class Clock(NamedTuple):
    """A clock that never goes back: nanoseconds since the epoch.

    Attributes:
        base: What the monotonic clock of the node is behind the epoch. All processes of a node use
            one base, so a change of the node's time does not move them against each other.
    """

    base: int

    def now(self) -> int:
        """Return the time in nanoseconds since the epoch."""
        return self.base + time.monotonic_ns()


class Reading(NamedTuple):
    """The clock of another process.

    Attributes:
        host: Identifies the machine; processes of one machine have one monotonic clock.
        base: The base of its clock.
        now: The time there, in nanoseconds since the epoch.
    """

    host: str
    base: int
    now: int


def own_clock() -> Clock:
    """Return a clock for this process alone."""
    return Clock(time.time_ns() - time.monotonic_ns())


def node_clock(folder: Path) -> Clock:
    """Return the clock of the processes of this node that share a folder.

    The first process writes the base into the folder, the others read it.
    """
    shared, mine = folder / "clock", own_clock()
    try:
        if not shared.exists():
            draft = folder / f"clock.{os.getpid()}"
            draft.write_text(str(mine.base))
            # A link is made completely or not at all, and fails if another process was faster.
            with contextlib.suppress(FileExistsError):
                os.link(draft, shared)
            draft.unlink()
        return Clock(int(shared.read_text()))
    except (OSError, ValueError):
        return mine


class Skew:
    """The nanoseconds to add to this node's clock for the time of another process.

    On another machine it is estimated: the answer to a question arrives at a known time and was
    given at the latest then, and at the earliest when the question left. The quickest answer has
    the smallest error, and stays in use until its error, with the drift since, exceeds a newer one.

    Args:
        clock: This node's clock.
        host: This machine.
        ask: Reads the clock of the other process.
    """

    def __init__(self, clock: Clock, host: str, ask: Callable[[], Reading]) -> None:
        self._clock = clock
        self._host = host
        self._ask = ask
        self._error = float("inf")
        self._found_at = 0
        self._next_at = 0
        self.nanoseconds = 0
        self._exact = False

    @property
    def error_s(self) -> float:
        """Maximum error in seconds, at the time of the estimate."""
        return 0.0 if self._exact else self._error / 1e9

    def update(self) -> int:
        """Estimate again if it is time to; return the nanoseconds to add.

        Only one thread may call this at a time. An error of the other process is raised; if there
        is no estimate yet, the next call asks again at once.
        """
        now = self._clock.now()
        if self._exact or now < self._next_at:
            return self.nanoseconds
        probes = _PROBES if self._next_at else _FIRST_PROBES
        self._next_at = now + int(timing.TIMING.clocks_every_s * 1e9)
        try:
            for _ in range(probes):
                if self._probe():
                    break
        except BaseException:
            if not self._found_at:
                self._next_at = 0
            raise
        return self.nanoseconds

    def _probe(self) -> bool:
        """Read the other clock; return whether it is the clock of this machine."""
        before = self._clock.now()
        reading = self._ask()
        after = self._clock.now()
        if reading.host == self._host:
            self.nanoseconds = reading.base - self._clock.base
            self._exact = True
            return True
        error = (after - before) / 2
        if error <= self._error + (after - self._found_at) * _DRIFT:
            self.nanoseconds = reading.now - (before + after) // 2
            self._error, self._found_at = error, after
        return False
