"""Workers, worker groups that are called as one, their locks, and batch routing."""

from shoal._backend import WorkerAddress
from shoal.worker.group import WorkerGroup, WorkerGroupFunc
from shoal.worker.lock import DeviceLock, PortLock
from shoal.worker.result import WorkerGroupFuncResult
from shoal.worker.routing import (
    CommMapper,
    DecoupledRouteEntry,
    RouteEntry,
    RoutePlan,
    _build_channel_message,
    build_recv_plan,
    build_route_channel_key,
    build_send_key,
    build_send_plan,
    decoupled_build_recv_plan,
    decoupled_build_send_plan,
    get_batch_size,
    get_group_info,
    get_group_world_size,
    infer_batch_size,
    merge_batches,
    split_batch,
    split_channel_message,
    validate_batch_size,
)
from shoal.worker.worker import Worker

__all__ = [
    "CommMapper",
    "DecoupledRouteEntry",
    "DeviceLock",
    "PortLock",
    "RouteEntry",
    "RoutePlan",
    "Worker",
    "WorkerAddress",
    "WorkerGroup",
    "WorkerGroupFunc",
    "WorkerGroupFuncResult",
    "_build_channel_message",
    "build_recv_plan",
    "build_route_channel_key",
    "build_send_key",
    "build_send_plan",
    "decoupled_build_recv_plan",
    "decoupled_build_send_plan",
    "get_batch_size",
    "get_group_info",
    "get_group_world_size",
    "infer_batch_size",
    "merge_batches",
    "split_batch",
    "split_channel_message",
    "validate_batch_size",
]
