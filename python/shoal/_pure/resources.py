"""Numbers the resources of one or several node groups consecutively, in the order given."""

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from shoal._pure.placement import ACCELERATOR, NodeGroup, NodeResources
from shoal._pure.text import compress, type_name
from shoal.errors import PlacementError, ShoalTypeError

__all__ = ["Block", "Resources", "check_types"]


class Block(NamedTuple):
    """The consecutive ranks of one node."""

    first: int
    size: int
    group: NodeGroup
    node: NodeResources


class Resources:
    """The resource ranks of several node groups: whole nodes, or the hardware of nodes.

    Attributes:
        groups: The groups, in the order in which their ranks are numbered.
        whole: Whether each rank is a whole node.
        blocks: One block for each node that has ranks.
        total: The number of ranks.
    """

    def __init__(self, groups: Sequence[NodeGroup], *, whole: bool) -> None:
        self.groups = tuple(groups)
        self.whole = whole
        if not self.groups:
            raise PlacementError("a placement needs at least one node group")
        self.blocks: list[Block] = []
        self.total = 0
        seen: dict[tuple[int, str | None], str] = {}
        for group in self.groups:
            for node in group.nodes:
                count = 1 if whole else node.num_hardware
                if count == 0:
                    continue
                key = (node.node_rank, None if whole else group.hardware_type)
                if key in seen:
                    raise PlacementError(
                        f'node groups "{seen[key]}" and "{group.label}" both have the resources of '
                        f"node {node.node_rank}: they cannot be counted twice"
                    )
                seen[key] = group.label
                self.blocks.append(Block(self.total, count, group, node))
                self.total += count
        self._firsts = [block.first for block in self.blocks]

    @classmethod
    def of(cls, groups: Sequence[NodeGroup]) -> "Resources":
        """Number the groups' hardware, or their nodes if they have no hardware type."""
        kinds = [(group.hardware_type, group.label) for group in groups]
        whole = bool(kinds) and kinds[0][0] is None
        for kind, label in kinds[1:]:
            if (kind is None) != whole:
                nodes, hardware = (kinds[0][1], label) if whole else (label, kinds[0][1])
                raise PlacementError(
                    f'node groups "{nodes}" (whole nodes) and "{hardware}" (hardware) cannot be '
                    "mixed: a rank would be a node in one and a device in the other"
                )
        return cls(groups, whole=whole)

    def block(self, rank: int) -> Block:
        """Return the block of a rank, which must exist."""
        return self.blocks[bisect.bisect_right(self._firsts, rank) - 1]

    def conflict(self, ranks: Sequence[int]) -> str | None:
        """Return why one process cannot have all these ranks, or None if it can."""
        if self.block(min(ranks)) is self.block(max(ranks)):
            return None
        blocks = [self.block(rank) for rank in ranks]
        nodes = sorted({block.node.node_rank for block in blocks})
        if len(nodes) > 1:
            return f"on nodes {compress(nodes)}: one process cannot run across multiple nodes"
        # Each node has one block for each hardware type, so these blocks differ in type.
        kinds = sorted({block.group.hardware_type or "" for block in blocks})
        return f"of the types {', '.join(kinds)}: the hardware of one process has one type"

    def describe(self) -> str:
        """Return one indented line for each group with its ranks and nodes, for messages."""
        return "\n".join(f"  {self._describe(group)}" for group in self.groups)

    def _describe(self, group: NodeGroup) -> str:
        blocks = [block for block in self.blocks if block.group is group]
        kind = group.hardware_type
        if self.whole or kind == ACCELERATOR:
            kind = None
        if not blocks:
            return f"{group.label}: no {'ranks' if kind is None else kind}"
        first, last = blocks[0].first, blocks[-1].first + blocks[-1].size - 1
        ranks = f"rank {first}" if first == last else f"ranks {first}-{last}"
        nodes = compress([block.node.node_rank for block in blocks])
        noun = "node" if len(blocks) == 1 else "nodes"
        if kind is not None:
            what = f" (each a {kind})"
        elif self.whole:
            with_devices = group.hardware_type or any(b.node.num_accelerators for b in blocks)
            what = f" (each a whole node{'' if with_devices else '; none has accelerators'})"
        else:
            what = ""
        return f"{group.label}: {ranks} on {noun} {nodes}{what}"


def check_types(groups: Sequence[NodeGroup]) -> tuple[NodeGroup, ...]:
    """Return the groups as a tuple.

    Raises:
        ShoalTypeError: One of them is not a `NodeGroup`.
    """
    members = tuple(groups)
    for group in members:
        if not isinstance(group, NodeGroup):
            raise ShoalTypeError(f"a group must be a NodeGroup, not {type_name(group)}")
    return members
