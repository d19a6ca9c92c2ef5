"""Finds why the processes of a job stand still, from their state pages."""

from shoal.observe.causes import Cause, find_causes
from shoal.observe.jobs import JobProcesses, read_jobs
from shoal.observe.sentences import Finding, age, diagnose

__all__ = [
    "Cause",
    "Finding",
    "JobProcesses",
    "age",
    "diagnose",
    "find_causes",
    "read_jobs",
]
