"""Seconds of worker groups, their calls and their locks."""

from dataclasses import dataclass

__all__ = ["TIMING", "WorkerTiming"]


@dataclass(frozen=True)
class WorkerTiming:
    """Seconds of worker groups, their calls and their locks. A test replaces `TIMING`."""

    spare_s: float = 5.0
    """By which the manager's answer to a take may come after the deadline."""
    explain_s: float = 2.0
    """For the manager to say which workers a take waits for."""
    first_look_s: float = 0.5
    """Before a waiting take asks which workers it waits for."""
    refresh_s: float = 5.0
    """Between its further questions."""
    patience_s: float = 1.0
    """For which a blocking take may stop an event loop before a warning."""
    ping_s: float = 2.0
    """For a worker to answer whether it is alive."""
    ask_s: float = 60.0
    """For a manager to answer a worker."""
    dying_s: float = 2.0
    """For which a dying process may keep its name."""
    retry_s: float = 0.02
    """Before a name is looked up again."""
    watch_after_s: float = 0.2
    """After which a call that no code waits for is watched.

    Watching a call costs about as much as a tenth of the call itself, so a call that is waited for at
    once is not watched.
    """
    end_s: float = 60.0
    """For Ray's shutdown."""
    grace_s: float = 2.0
    """For the other ranks after the first failure, so that one error can name them all."""
    first_get_s: float = 0.05
    """Within which one `ray.get` waits for all ranks; then each rank is watched by itself."""
    recheck_s: float = 1.0
    """After which a wait looks whether the cluster still exists."""
    polls_s: float = 1.0
    """Timeouts of fewer seconds belong to a program that polls: their errors read no state pages."""


TIMING = WorkerTiming()
