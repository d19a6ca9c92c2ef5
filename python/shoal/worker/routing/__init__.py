"""Batches between the ranks of two groups: the plans, and the calls that carry them out.

This module exports the plans: which ranks exchange which rows, and how batches are cut and joined.
They are pure functions, without communication. `Worker.send_to`, in `send`, and `Worker.recv_from`,
in `receive`, use them.
"""

from shoal.worker.routing.batches import (
    get_batch_size,
    infer_batch_size,
    merge_batches,
    split_batch,
    validate_batch_size,
)
from shoal.worker.routing.comm_mapper import CommMapper
from shoal.worker.routing.decoupled_plans import (
    DecoupledRouteEntry,
    _build_channel_message,
    decoupled_build_recv_plan,
    decoupled_build_send_plan,
    split_channel_message,
)
from shoal.worker.routing.group_info import get_group_info, get_group_world_size
from shoal.worker.routing.keys import (
    ROUTING_DEFAULT_TAG,
    ROUTING_KEY_PREFIX,
    build_route_channel_key,
    build_send_key,
    normalize_route_key,
    normalize_route_tag,
)
from shoal.worker.routing.plans import RouteEntry, RoutePlan, build_recv_plan, build_send_plan

__all__ = [
    "ROUTING_DEFAULT_TAG",
    "ROUTING_KEY_PREFIX",
    "CommMapper",
    "DecoupledRouteEntry",
    "RouteEntry",
    "RoutePlan",
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
    "normalize_route_key",
    "normalize_route_tag",
    "split_batch",
    "split_channel_message",
    "validate_batch_size",
]
