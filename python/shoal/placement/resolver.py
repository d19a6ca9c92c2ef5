"""Maps a resource rank to its node and group if several node groups are numbered together."""

import bisect
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from shoal.errors import PlacementError, PlacementIndexError
from shoal.placement.groups import GroupLike, NodeLike, hardware_count

__all__ = ["MultiNodeGroupResolver"]

_Group = TypeVar("_Group", bound=GroupLike)


class MultiNodeGroupResolver(Generic[_Group]):
    """Looks up resource ranks that are numbered consecutively over several node groups.

    Ranks count the hardware of a group, node by node, or whole nodes if a group has no hardware.

    Args:
        node_groups: The groups, in the order in which their ranks are numbered.

    Raises:
        PlacementError: There are no groups.
    """

    def __init__(self, node_groups: Sequence[_Group]) -> None:
        self.node_groups: list[_Group] = list(node_groups)
        if not self.node_groups:
            raise PlacementError("a placement needs at least one node group")
        self._blocks: list[tuple[_Group, NodeLike]] = []
        sizes: list[int] = []
        for group in self.node_groups:
            kind = group.hardware_type
            for node in sorted(group.nodes, key=lambda node: node.node_rank):
                count = 1 if kind is None else hardware_count(node, kind)
                if count:
                    self._blocks.append((group, node))
                    sizes.append(count)
        self._ends = list(itertools.accumulate(sizes))

    @property
    def hardware_resource_count(self) -> int:
        """The number of resources of all groups."""
        return self._ends[-1] if self._ends else 0

    @property
    def hardware_types(self) -> list[str] | None:
        """The hardware types of the groups, each once; None if any group counts whole nodes."""
        kinds = [group.hardware_type for group in self.node_groups]
        found = [kind for kind in kinds if kind is not None]
        return list(dict.fromkeys(found)) if len(found) == len(kinds) else None

    def get_node_by_hardware_rank(self, global_hw_rank: int) -> NodeLike:
        """Return the node that has a resource.

        Raises:
            PlacementIndexError: There is no such rank.
        """
        return self._blocks[self._index(global_hw_rank)][1]

    def get_node_group(self, global_hw_rank: int) -> _Group:
        """Return the group that a resource belongs to.

        Raises:
            PlacementIndexError: There is no such rank.
        """
        return self._blocks[self._index(global_hw_rank)][0]

    def get_node_group_label(self, global_hw_rank: int) -> str:
        """Return the label of the group that a resource belongs to.

        Raises:
            PlacementIndexError: There is no such rank.
        """
        return self.get_node_group(global_hw_rank).label

    def get_hardware_type_for_rank(self, global_hw_rank: int) -> str | None:
        """Return the hardware type of a resource, or None for a whole node.

        Raises:
            PlacementIndexError: There is no such rank.
        """
        return self.get_node_group(global_hw_rank).hardware_type

    def get_local_hardware_rank(self, global_hw_rank: int) -> int:
        """Return the rank of a resource among those on its node.

        Raises:
            PlacementIndexError: There is no such rank.
        """
        index = self._index(global_hw_rank)
        return global_hw_rank - (self._ends[index - 1] if index else 0)

    def _index(self, rank: int) -> int:
        if not 0 <= rank < self.hardware_resource_count:
            labels = ", ".join(repr(group.label) for group in self.node_groups)
            raise PlacementIndexError(
                f"there is no resource rank {rank}; the node groups {labels} have "
                f"{self.hardware_resource_count} resources"
            )
        return bisect.bisect_right(self._ends, rank)
