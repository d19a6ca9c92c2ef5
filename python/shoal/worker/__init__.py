"""Workers, groups of them that are called as one, and the results of such calls."""

from shoal.worker.group import WorkerGroup, WorkerGroupFunc
from shoal.worker.result import WorkerGroupFuncResult
from shoal.worker.worker import Worker

__all__ = ["Worker", "WorkerGroup", "WorkerGroupFunc", "WorkerGroupFuncResult"]
