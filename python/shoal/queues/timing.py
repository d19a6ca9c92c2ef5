"""Seconds of the queues of channels."""

from dataclasses import dataclass

__all__ = ["TIMING", "QueuesTiming"]


@dataclass(frozen=True)
class QueuesTiming:
    """Seconds of the queues of channels. A test replaces `TIMING`."""

    renew_s: float = 0.5
    """Between a handle's renewals of its leases."""
    ask_s: float = 1.0
    """Between two questions whether a node is dead."""
    first_tick_s: float = 0.1
    """Before a call that waits first calls `waiting`, about."""


TIMING = QueuesTiming()
