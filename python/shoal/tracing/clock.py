"""Clocks of traces: the difference between the monotonic clock of a node and the time of node 0."""

import time
from collections.abc import Callable
from typing import NamedTuple

from shoal.process import own_process

__all__ = ["OFFSET", "Reading", "find_offset"]

OFFSET = time.time_ns() - time.monotonic_ns()
"""Nanoseconds to add to the monotonic clock of this node for the time since the epoch.

They are measured once, when this process begins. The monotonic clock is the same for all processes of a
node, and never goes back."""

_PROBES = 8


class Reading(NamedTuple):
    """The clock of the manager.

    Attributes:
        host: Identifies the machine; processes of one machine have one monotonic clock.
        offset: Nanoseconds to add to the monotonic clock of that machine for the time of the trace.
        now: The time of the trace, in nanoseconds since the epoch.
    """

    host: str
    offset: int
    now: int


def find_offset(ask: Callable[[], Reading]) -> int:
    """Return the nanoseconds to add to the monotonic clock here for the time of the trace.

    On another machine it is estimated: the manager read its clock between the question and the
    answer. The quickest answer counts, and its error is at most half of the time that it took.

    Args:
        ask: Reads the clock of the manager.
    """
    estimates = []
    for _ in range(_PROBES):
        before = time.monotonic_ns()
        reading = ask()
        after = time.monotonic_ns()
        if reading.host == own_process().host:
            return reading.offset
        estimates.append((after - before, reading.now - (before + after) // 2))
    return min(estimates)[1]
