"""The managers of a job: asyncio actors on node 0 for its workers, nodes, groups and locks."""

from shoal.manager.base import Caller, Manager, ManagerProxy
from shoal.manager.collective_manager import CollectiveGroupInfo, CollectiveManager
from shoal.manager.job_manager import JobManager
from shoal.manager.lock_manager import DeviceLockManager, PortLockManager
from shoal.manager.missing_workers import other_groups, too_high, unknown_group
from shoal.manager.node_manager import NodeManager
from shoal.manager.worker_manager import WorkerInfo, WorkerManager

__all__ = [
    "Caller",
    "CollectiveGroupInfo",
    "CollectiveManager",
    "DeviceLockManager",
    "JobManager",
    "Manager",
    "ManagerProxy",
    "NodeManager",
    "PortLockManager",
    "WorkerInfo",
    "WorkerManager",
    "other_groups",
    "too_high",
    "unknown_group",
]
