"""Seconds of the start and the end of a job, and of its logs."""

from dataclasses import dataclass

__all__ = ["TIMING", "ClusterTiming"]


@dataclass(frozen=True)
class ClusterTiming:
    """Seconds of the start and the end of a job, and of its logs. A test replaces `TIMING`."""

    poll_s: float = 0.25
    """Between two looks at the nodes that have connected."""
    open_line_s: float = 5.0
    """For which the lines of one stream wait for the end of a line of the other."""
    last_output_s: float = 0.3
    """Before Ray ends, so that it shows the workers' last output: it reads that every 0.1 s."""
    close_s: float = 5.0
    """At most, for the `_close` of all workers at the end of a job."""
    ray_answer_s: float = 10.0
    """At most, for the answer of a Ray that should run already."""
    ray_again_s: float = 0.25
    """Before such a Ray is asked again."""
    end_s: float = 5.0
    """For Ray to notice the end of killed actors: milliseconds, or more on a busy machine."""
    grace_s: float = 2.0
    """For `finally` blocks before the workers end."""
    at_most_s: float = 30.0
    """After that, before the process ends in any case."""
    shortest_s: float = 0.1
    """At least, between two passes over the logs."""
    logs_answer_s: float = 10.0
    """For a node to send the lines of its logs, in the loop."""
    last_answer_s: float = 2.0
    """For registered actors at the end."""
    logs_again_s: float = 30.0
    """Between two attempts to reach a node that did not answer."""


TIMING = ClusterTiming()
