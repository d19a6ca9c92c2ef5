"""Seconds of the way of a trace's events to the manager."""

from dataclasses import dataclass

__all__ = ["TIMING", "TracingTiming"]


@dataclass(frozen=True)
class TracingTiming:
    """Seconds of the way of a trace's events to the manager. A test replaces `TIMING`."""

    send_s: float = 5.0
    """For the manager to take a batch."""
    finish_s: float = 60.0
    """For the manager to close the file and to write the one for Perfetto."""
    interval_s: float = 0.2
    """Between two batches of a node."""
    stop_s: float = 24.0
    """For a call to the manager that is under way, and the last one; each takes 10 s at most."""
    lost_s: float = 5.0
    """For which a process tries to reach the manager, and then leaves it to others."""
    drops_every_s: float = 60.0
    """Between two log lines about events that are missing."""
    abandoned_s: float = 3600.0
    """Without a change before the folder of another job is removed."""
    clocks_every_s: float = 30.0
    """Between two comparisons of clocks."""
    settle_between_nodes_s: float = 1.0
    """For processes of other nodes to send their events: their calls take longer."""


TIMING = TracingTiming()
