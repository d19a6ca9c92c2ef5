"""Shows the processes, channels and locks of a job on all its nodes, and finds why processes stand still."""

from shoal.observe.channels import ChannelQueue, ChannelState, read_channels, with_rates
from shoal.observe.jobs import JobProcesses, read_jobs
from shoal.observe.locks import DeviceLockState, read_locks
from shoal.observe.other_nodes import OtherNodes
from shoal.observe.sentences import age, diagnose

__all__ = [
    "ChannelQueue",
    "ChannelState",
    "DeviceLockState",
    "JobProcesses",
    "OtherNodes",
    "age",
    "diagnose",
    "read_channels",
    "read_jobs",
    "read_locks",
    "with_rates",
]
