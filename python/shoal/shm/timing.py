"""Seconds of shared memory."""

from dataclasses import dataclass

__all__ = ["TIMING", "ShmTiming"]


@dataclass(frozen=True)
class ShmTiming:
    """Seconds of shared memory. A test replaces `TIMING`."""

    tick_s: float = 1.0
    """Before all waiters try again without a bell: the process to ring it may have died."""
    idle_s: float = 30.0
    """Before a free file of payloads is given back."""


TIMING = ShmTiming()
