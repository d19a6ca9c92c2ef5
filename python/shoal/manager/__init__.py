"""The managers of a job: asyncio actors on node 0 that keep its workers, nodes and groups."""

from shoal.manager.base import Manager, ManagerProxy
from shoal.manager.collective_manager import CollectiveGroupInfo, CollectiveManager
from shoal.manager.node_manager import NodeManager
from shoal.manager.worker_manager import WorkerInfo, WorkerManager

__all__ = [
    "CollectiveGroupInfo",
    "CollectiveManager",
    "Manager",
    "ManagerProxy",
    "NodeManager",
    "WorkerInfo",
    "WorkerManager",
]
