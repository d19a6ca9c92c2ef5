"""What the processes of a job do on all its nodes, and why they stand still, from their state pages."""

from shoal.observe.causes import Cause, find_causes
from shoal.observe.jobs import JobProcesses, read_jobs
from shoal.observe.other_nodes import OtherNodes

__all__ = ["Cause", "JobProcesses", "OtherNodes", "find_causes", "read_jobs"]
