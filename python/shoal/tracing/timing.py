"""Seconds of the recording of a trace and of its way to the manager."""

from dataclasses import dataclass

__all__ = ["TIMING", "TracingTiming"]


@dataclass(frozen=True)
class TracingTiming:
    """Seconds of the recording of a trace and of its way to the manager. A test replaces `TIMING`."""

    send_s: float = 5.0
    """For the manager to take a batch."""
    finish_s: float = 20.0
    """For the manager to close the file."""
    export_s: float = 60.0
    """For the manager to write the file for Perfetto."""
    interval_s: float = 0.2
    """Between two batches of a process."""
    sweep_every_s: float = 5.0
    """Between two searches for the events of processes that were killed."""
    call_s: float = 12.0
    """To wait for another thread's call to the manager; more than a call takes, which is 10 s."""
    lost_s: float = 2.0
    """For which a manager that died is tried again: at the end of a job it may die first."""
    not_found_s: float = 30.0
    """For which a manager that is not found is looked for again."""
    drops_every_s: float = 60.0
    """Between two log lines about events that are missing."""
    abandoned_s: float = 3600.0
    """Without a change before the folder of another job is removed."""
    clocks_every_s: float = 30.0
    """Between two comparisons of clocks."""
    row_lock_s: float = 0.05
    """To wait for another thread that looks for the row of a span."""
    write_lock_s: float = 0.05
    """To wait for another thread's write.

    A handler of a signal that interrupted the write of its own thread must not wait for ever; its event
    is dropped.
    """
    sink_lock_s: float = 1.0
    """To wait for another thread that begins or ends the recording."""
    settle_between_nodes_s: float = 1.0
    """For processes of other nodes to send their events: their calls take longer."""


TIMING = TracingTiming()
