"""From resource ranks to placements: the three strategies."""

import operator
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from shoal._pure.grammar import MAX_PROCESSES
from shoal._pure.placement import ACCELERATOR, NodeGroup, NodeResources, Placement, to_bool
from shoal._pure.resources import Resources, check_types, compress
from shoal._pure.text import type_name
from shoal.errors import PlacementError, PlacementIndexError

__all__ = ["packed_ranks", "place_flexible", "place_nodes", "place_packed"]


class _Spot(NamedTuple):
    """One process: its node, and what it owns and sees there."""

    group: NodeGroup
    node: NodeResources
    hardware: list[int]
    visible: list[str]


def packed_ranks(
    start: int, end: int, num_hardware_per_process: int = 1, stride: int = 1
) -> list[list[int]]:
    """Return the hardware ranks of each process of a packed placement; see `_rust.pyi`."""
    start = _number(start, "start", 0)
    end = _number(end, "end", 0)
    size = _number(num_hardware_per_process, "num_hardware_per_process", 1)
    stride = _number(stride, "stride", 1)
    if end < start:
        raise PlacementError(f"end {end} must not be below start {start}")
    count = end - start + 1
    if count > MAX_PROCESSES:
        raise PlacementError(f"hardware ranks {start}-{end}: more than {MAX_PROCESSES} ranks")
    if count % (size * stride):
        raise PlacementError(
            f"the number of hardware ranks {start}-{end}, {count}, must be divisible by "
            f"num_hardware_per_process x stride = {size} x {stride}"
        )
    # Each process takes the lowest free rank and every stride-th after it, so that `stride`
    # processes fill a block of `size * stride` ranks before the next block begins.
    blocks = range(start, end + 1, size * stride)
    return [
        list(range(block + offset, block + size * stride, stride))
        for block in blocks
        for offset in range(stride)
    ]


def place_packed(
    groups: Sequence[NodeGroup],
    start: int,
    end: int,
    num_hardware_per_process: int = 1,
    stride: int = 1,
    isolate_accelerator: bool = True,
) -> list[Placement]:
    """Place processes on consecutive hardware ranks; see `_rust.pyi`."""
    groups = check_types(groups)
    ranks = packed_ranks(start, end, num_hardware_per_process, stride)
    isolate = to_bool(isolate_accelerator, "isolate_accelerator")
    resources = _hardware(groups)
    last = operator.index(end)
    if last >= resources.total:
        raise PlacementError(
            f"hardware ranks {operator.index(start)}-{last} are out of range\n"
            f"{resources.describe()}"
        )
    return _place_hardware(resources, ranks, isolate=isolate)


def place_flexible(
    groups: Sequence[NodeGroup],
    hardware_ranks_list: Sequence[Sequence[int]],
    isolate_accelerator: bool = True,
) -> list[Placement]:
    """Place each process on the hardware ranks given for it; see `_rust.pyi`."""
    groups = check_types(groups)
    ranks = [[_number(r, "a hardware rank", 0) for r in given] for given in hardware_ranks_list]
    isolate = to_bool(isolate_accelerator, "isolate_accelerator")
    return _place_hardware(_hardware(groups), ranks, isolate=isolate)


def place_nodes(
    groups: Sequence[NodeGroup],
    node_ranks: Sequence[int],
    isolate_accelerator: bool = True,
) -> list[Placement]:
    """Place each process on the node given for it; see `_rust.pyi`."""
    groups = check_types(groups)
    ranks = [_number(rank, "a node rank", 0, PlacementIndexError) for rank in node_ranks]
    isolate = to_bool(isolate_accelerator, "isolate_accelerator")
    resources = Resources(groups, whole=True)
    if not ranks:
        raise PlacementError("the list of node ranks must not be empty")
    spots = []
    for process, rank in enumerate(ranks):
        if rank >= resources.total:
            raise PlacementIndexError(
                f"process {process}: node rank {rank} is out of range\n{resources.describe()}"
            )
        block = resources.block(rank)
        spots.append(_Spot(block.group, block.node, [], _every_accelerator(block.node)))
    return _placements(spots, isolate=isolate)


def _hardware(groups: Sequence[NodeGroup]) -> Resources:
    resources = Resources.of(groups)
    if resources.whole:
        labels = ", ".join(f'"{group.label}"' for group in resources.groups)
        raise PlacementError(
            f"this placement needs hardware, and the resources of {labels} are whole nodes: "
            "place by node ranks"
        )
    return resources


def _place_hardware(
    resources: Resources, ranks_list: list[list[int]], *, isolate: bool
) -> list[Placement]:
    if not ranks_list:
        raise PlacementError("the list of hardware ranks must not be empty")
    return _placements(
        [_spot(resources, i, ranks, isolate=isolate) for i, ranks in enumerate(ranks_list)],
        isolate=isolate,
    )


def _spot(resources: Resources, process: int, ranks: list[int], *, isolate: bool) -> _Spot:
    if not ranks:
        raise PlacementError(f"process {process} has no hardware ranks")
    shown = compress(ranks)
    if max(ranks) >= resources.total:
        raise PlacementError(
            f"process {process}: hardware ranks {shown} are out of range\n{resources.describe()}"
        )
    if len(set(ranks)) < len(ranks):
        raise PlacementError(f"process {process}: hardware ranks {shown} must be unique")
    if why := resources.conflict(ranks):
        # Callers of the API that shoal keeps look for "same node" in this message.
        raise PlacementError(
            f"process {process}: hardware ranks {shown} are {why}; expected ranks of one type on "
            f"the same node\n{resources.describe()}"
        )
    block = resources.block(ranks[0])
    hardware = sorted(rank - resources.block(rank).first for rank in ranks)
    if isolate and block.group.hardware_type == ACCELERATOR:
        visible = [str(rank) for rank in hardware]
    else:
        visible = _every_accelerator(block.node)
    return _Spot(block.group, block.node, hardware, visible)


def _every_accelerator(node: NodeResources) -> list[str]:
    return [str(rank) for rank in range(node.num_accelerators)]


def _placements(spots: list[_Spot], *, isolate: bool) -> list[Placement]:
    sizes = Counter(spot.node.node_rank for spot in spots)
    order = {rank: index for index, rank in enumerate(sizes)}  # nodes by first use
    placed: Counter[int] = Counter()
    placements = []
    for rank, spot in enumerate(spots):
        node = spot.node.node_rank
        placements.append(
            Placement(
                rank=rank,
                cluster_node_rank=node,
                placement_node_rank=order[node],
                local_accelerator_rank=int(spot.visible[0]) if spot.visible else -1,
                accelerator_type=spot.node.accelerator_type,
                local_rank=placed[node],
                local_world_size=sizes[node],
                visible_accelerators=spot.visible,
                isolate_accelerator=isolate,
                local_hardware_ranks=spot.hardware,
                node_group_label=spot.group.label,
            )
        )
        placed[node] += 1
    return placements


def _number(
    value: object, what: str, least: int, error: type[PlacementError] = PlacementError
) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{what} must be an int, not {type_name(value)}")
    number = operator.index(value)  # type: ignore[arg-type]  # it has __index__
    if not least <= number < 2**31:
        raise error(f"{what} must be from {least} to {2**31 - 1}, not {number}")
    return number
