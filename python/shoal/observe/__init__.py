"""Finds why the processes of a job stand still, from their state pages, and reads its channels."""

from shoal.observe.causes import Cause, find_causes
from shoal.observe.channels import ChannelQueue, ChannelState, read_channels
from shoal.observe.jobs import JobProcesses, read_jobs
from shoal.observe.sentences import Finding, age, diagnose

__all__ = [
    "Cause",
    "ChannelQueue",
    "ChannelState",
    "Finding",
    "JobProcesses",
    "age",
    "diagnose",
    "find_causes",
    "read_channels",
    "read_jobs",
]
