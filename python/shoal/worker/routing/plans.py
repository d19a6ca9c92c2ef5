"""Plans of fixed mode: the messages of one rank for one batch, determined by ranks alone."""

import math
from dataclasses import dataclass
from typing import Any

from shoal.worker.routing.comm_mapper import CommMapper
from shoal.worker.routing.keys import RouteKey, build_route_channel_key, normalize_route_tag

__all__ = ["RouteEntry", "RoutePlan", "build_recv_plan", "build_send_plan"]


@dataclass(frozen=True)
class RouteEntry:
    """One message of a plan.

    Attributes:
        peer_rank: The rank at the other end.
        batch_size: Its number of rows; None if unknown.
        key: The channel key.
    """

    peer_rank: int
    batch_size: int | None
    key: RouteKey


@dataclass(frozen=True)
class RoutePlan:
    """The messages of one rank for one batch.

    Attributes:
        src_group_name: The sending group.
        dst_group_name: The receiving group.
        src_rank: The sender; None in the plan of a receiver.
        dst_rank: The receiver; None in the plan of a sender.
        src_world_size: Size of the sending group; in decoupled mode of the caller's own group.
        dst_world_size: Size of the receiving group; in decoupled mode of the other group.
        tag: The kind of message, normalised.
        route_key: The route key, as it was given.
        entries: The messages: `RouteEntry`, or `DecoupledRouteEntry` in decoupled mode.
    """

    src_group_name: str
    dst_group_name: str
    src_rank: int | None
    dst_rank: int | None
    src_world_size: int
    dst_world_size: int
    tag: str
    route_key: Any
    entries: list[Any]


def build_send_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    src_rank: int,
    src_world_size: int,
    dst_world_size: int,
    tag: str | None,
    route_key: Any = None,
    batch_size: int,
) -> RoutePlan:
    """Plan what one source sends.

    Args:
        src_group_name: The sending group.
        dst_group_name: The receiving group.
        src_rank: The source.
        src_world_size: Number of sources.
        dst_world_size: Number of destinations.
        tag: The kind of message.
        route_key: Separates parallel streams of one kind.
        batch_size: Rows of all sources together.

    Raises:
        ShoalValueError: Same as `CommMapper.get_dst_ranks`.
    """
    pairs = CommMapper.get_dst_ranks(batch_size, src_world_size, dst_world_size, src_rank)
    names = (src_group_name, dst_group_name)
    entries = [
        RouteEntry(rank, rows, build_route_channel_key(*names, src_rank, rank, tag, route_key))
        for rank, rows in pairs
    ]
    sizes = (src_world_size, dst_world_size)
    return RoutePlan(*names, src_rank, None, *sizes, normalize_route_tag(tag), route_key, entries)


def build_recv_plan(
    *,
    src_group_name: str,
    dst_group_name: str,
    dst_rank: int,
    src_world_size: int,
    dst_world_size: int,
    tag: str | None,
    route_key: Any = None,
    batch_size: int | None,
) -> RoutePlan:
    """Plan what one destination receives, with the keys of `build_send_plan`.

    Args:
        src_group_name: The sending group.
        dst_group_name: The receiving group.
        dst_rank: The destination.
        src_world_size: Number of sources.
        dst_world_size: Number of destinations.
        tag: The kind of message.
        route_key: Separates parallel streams of one kind.
        batch_size: Rows of all destinations together. None if unknown: the peers are the same for
            every size above 0, and the entries have no sizes.

    Raises:
        ShoalValueError: Same as `CommMapper.get_src_ranks`.
    """
    known = batch_size is not None
    # The smallest batch that both sizes divide has the same peers as every larger one.
    rows = batch_size if batch_size is not None else math.lcm(src_world_size, dst_world_size)
    pairs = CommMapper.get_src_ranks(rows, src_world_size, dst_world_size, dst_rank)
    names = (src_group_name, dst_group_name)
    entries = [
        RouteEntry(
            rank,
            size if known else None,
            build_route_channel_key(*names, rank, dst_rank, tag, route_key),
        )
        for rank, size in pairs
    ]
    sizes = (src_world_size, dst_world_size)
    return RoutePlan(*names, None, dst_rank, *sizes, normalize_route_tag(tag), route_key, entries)
