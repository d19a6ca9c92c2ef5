"""Seconds of a local cluster and of its detector of stalls."""

from dataclasses import dataclass

__all__ = ["TIMING", "TestingTiming"]


@dataclass(frozen=True)
class TestingTiming:
    """Seconds of a local cluster and of its detector of stalls. A test replaces `TIMING`."""

    end_s: float = 2.0
    """For the threads of workers to end with their cluster."""
    interval_s: float = 0.05
    """Between two looks of a wait whether it has stalled."""
    quiet_s: float = 0.25
    """At least, since the last event; shoal's own threads have finished their work by then."""
    slice_s: float = 1.0
    """A wait of at most this long may be a slice of a longer one, which ticks as well."""
    soon_s: float = 10.0
    """Waits that have at most this long left end by their own deadlines."""
    work_s: float = 10.0
    """For the operation of an `AsyncWork` to reach its own deadline."""


TIMING = TestingTiming()
