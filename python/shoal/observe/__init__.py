"""Finds why the processes of a job stand still, from their state pages."""

from shoal.observe.causes import Cause, find_causes
from shoal.observe.jobs import JobProcesses, read_jobs

__all__ = ["Cause", "JobProcesses", "find_causes", "read_jobs"]
