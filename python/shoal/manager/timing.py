"""Seconds of the managers of a job."""

from dataclasses import dataclass

__all__ = ["TIMING", "ManagerTiming"]


@dataclass(frozen=True)
class ManagerTiming:
    """Seconds of the managers of a job. A test replaces `TIMING`."""

    start_s: float = 60.0
    """For the watching actor of another node to start."""
    watch_again_s: float = 0.5
    """Before a watching actor that cannot be reached is asked again."""
    answer_s: float = 5.0
    """Added to the deadline of a waiting method, so that its own answer arrives first."""
    retry_s: float = 10.0
    """Before another attempt to watch a process."""


TIMING = ManagerTiming()
