"""The jobs of this user: what their processes do now."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.state import ProcessState, find_jobs, read_pages

__all__ = ["JobProcesses", "read_jobs"]


@dataclass(frozen=True)
class JobProcesses:
    """What the processes of a job do.

    Attributes:
        name: The name of the job: its Ray namespace and the address of its Ray, `shoal@10.0.0.1:6379`.
        states: Its processes.
        now: When they were read, as `time.monotonic()` of this node. The times of all states are on
            this clock.
    """

    name: str
    states: Sequence[ProcessState]
    now: float


def read_jobs(folder: Path | None = None) -> list[JobProcesses]:
    """Read the state pages of this user's jobs on this node.

    Args:
        folder: The folder that has the folders of the jobs; None for the default one.
    """
    jobs = find_jobs(folder).items()
    return [JobProcesses(job, read_pages(pages), time.monotonic()) for job, pages in jobs]
