"""Seconds of the channels' actors and of the calls to them."""

from dataclasses import dataclass

__all__ = ["TIMING", "ChannelTiming"]


@dataclass(frozen=True)
class ChannelTiming:
    """Seconds of the channels' actors and of the calls to them. A test replaces `TIMING`."""

    spare_s: float = 2.0
    """Between renewals of the protection of the memory from cleanup.

    Cleanup removes memory that no living process has open; protection keeps it during a restart.
    """
    linger_s: float = 0.2
    """Between the last answer of a closed actor and its end, so that replies can arrive."""
    tick_s: float = 0.25
    """Between two rounds of upkeep of an actor."""
    idle_s: float = 2.0
    """Without an item before an actor gives memory back, so that a stream may pause."""
    manager_s: float = 30.0
    """At most, for the job's manager to answer an actor."""
    answer_s: float = 30.0
    """For an actor to answer: it may be busy."""
    late_s: float = 0.25
    """After the caller's deadline before an actor that has not answered is pinged."""
    ping_s: float = 1.75
    """For the ping; then the call ends, two seconds after the deadline."""
    again_s: float = 0.05
    """Between two attempts to reach an actor that starts again."""
    restart_s: float = 20.0
    """At most, for an actor to restart after its process died."""
    removed_s: float = 5.0
    """At most, for an actor to remove its memory and end; then it is killed."""
    describe_s: float = 60.0
    """At most, for an existing actor to describe its channel."""


TIMING = ChannelTiming()
