"""Seconds of the questions to other nodes."""

from dataclasses import dataclass

__all__ = ["TIMING", "ObserveTiming"]


@dataclass(frozen=True)
class ObserveTiming:
    """Seconds of the questions to other nodes. A test replaces `TIMING`."""

    grace_s: float = 2.0
    """After the deadline, for a program that has waited for nodes to say so."""
    again_s: float = 30.0
    """After which a Ray that did not answer is asked again, by a new program."""
    end_s: float = 3.0
    """For a program to leave Ray."""


TIMING = ObserveTiming()
