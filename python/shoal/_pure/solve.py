"""The solver: turns resource ranks into placements, for each of the three strategies."""

import operator
from collections.abc import Iterable, Sequence

from shoal._pure.placement import NodeGroup, to_bool, to_rank
from shoal._pure.placements import Placements, Spot
from shoal._pure.ranks import RankLists
from shoal._pure.resources import Resources, check_types
from shoal._pure.select import MAX_PROCESSES
from shoal._pure.text import compress
from shoal.errors import PlacementError, PlacementIndexError

__all__ = ["packed_ranks", "place_flexible", "place_nodes", "place_packed"]


def packed_ranks(
    start: int, end: int, num_hardware_per_process: int = 1, stride: int = 1
) -> RankLists:
    """Return the hardware ranks of each process of a packed placement; see `_rust.pyi`."""
    start = to_rank(start, "start")
    end = to_rank(end, "end")
    size = to_rank(num_hardware_per_process, "num_hardware_per_process", least=1)
    stride = to_rank(stride, "stride", least=1)
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
    # Each process takes the lowest free rank and every stride-th rank after it, so that `stride`
    # processes fill a block of `size * stride` ranks before the next block begins.
    blocks = range(start, end + 1, size * stride)
    return RankLists._make(
        [
            list(range(block + offset, block + size * stride, stride))
            for block in blocks
            for offset in range(stride)
        ]
    )


def place_packed(
    groups: Sequence[NodeGroup],
    start: int,
    end: int,
    num_hardware_per_process: int = 1,
    stride: int = 1,
    isolate_accelerator: bool = True,
) -> Placements:
    """Place processes on consecutive hardware ranks; see `_rust.pyi`."""
    groups = check_types(groups)
    isolate = to_bool(isolate_accelerator, "isolate_accelerator")
    ranks = packed_ranks(start, end, num_hardware_per_process, stride)
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
    hardware_ranks_list: Iterable[Iterable[int]],
    isolate_accelerator: bool = True,
) -> Placements:
    """Place each process on the hardware ranks given for it; see `_rust.pyi`."""
    groups = check_types(groups)
    given = hardware_ranks_list
    ranks = given if isinstance(given, RankLists) else RankLists(given)
    isolate = to_bool(isolate_accelerator, "isolate_accelerator")
    return _place_hardware(_hardware(groups), ranks, isolate=isolate)


def place_nodes(
    groups: Sequence[NodeGroup],
    node_ranks: Sequence[int],
    isolate_accelerator: bool = True,
) -> Placements:
    """Place each process on the node given for it; see `_rust.pyi`."""
    groups = check_types(groups)
    ranks = [to_rank(rank, "a node rank", error=PlacementIndexError) for rank in node_ranks]
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
        spots.append(Spot(block.group, block.node, []))
    return Placements._make(spots, isolate=isolate)


def _hardware(groups: Sequence[NodeGroup]) -> Resources:
    resources = Resources.of(groups)
    if resources.whole:
        labels = ", ".join(f'"{group.label}"' for group in resources.groups)
        raise PlacementError(
            f"this placement needs hardware, and the resources of {labels} are whole nodes: "
            "place by node ranks"
        )
    return resources


def _place_hardware(resources: Resources, ranks: RankLists, *, isolate: bool) -> Placements:
    if not ranks:
        raise PlacementError("the list of hardware ranks must not be empty")
    spots = [_spot(resources, process, given) for process, given in enumerate(ranks)]
    return Placements._make(spots, isolate=isolate)


def _spot(resources: Resources, process: int, ranks: list[int]) -> Spot:
    if not ranks:
        raise PlacementError(f"process {process} has no hardware ranks")
    if max(ranks) >= resources.total:
        raise PlacementError(
            f"process {process}: hardware ranks {compress(ranks)} are out of range\n"
            f"{resources.describe()}"
        )
    block = resources.block(ranks[0])
    if len(ranks) == 1:  # the most frequent case; there is nothing to compare
        return Spot(block.group, block.node, [ranks[0] - block.first])
    if len(set(ranks)) < len(ranks):
        raise PlacementError(f"process {process}: hardware ranks {compress(ranks)} must be unique")
    if why := resources.conflict(ranks):
        # Programs written for RLinf's API look for "same node" in this message.
        raise PlacementError(
            f"process {process}: hardware ranks {compress(ranks)} are {why}; expected ranks of one "
            f"type on the same node\n{resources.describe()}"
        )
    # All ranks are in one block here: `conflict` has refused several nodes or types.
    hardware = sorted(rank - block.first for rank in ranks)
    return Spot(block.group, block.node, hardware)
