"""A cluster that is only planned: nodes and their groups, as placement asks for them."""

from collections.abc import Sequence

from shoal.errors import ShoalValueError
from shoal.topology import NodeGroupInfo, NodeInfo

__all__ = ["PlannedCluster"]


class PlannedCluster:
    """Nodes and node groups, without any process behind them.

    Args:
        nodes: The nodes, by rank.
        groups: The node groups, by label.
    """

    def __init__(self, nodes: Sequence[NodeInfo], groups: dict[str, NodeGroupInfo]) -> None:
        self._nodes = list(nodes)
        self._groups = groups

    @property
    def nodes(self) -> list[NodeInfo]:
        """The nodes, by rank."""
        return list(self._nodes)

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    @property
    def num_accelerators(self) -> int:
        """The number of accelerators of all nodes."""
        return sum(node.num_accelerators for node in self._nodes)

    def get_node_group(self, label: object = "cluster", /) -> NodeGroupInfo | None:
        """Return the node group of a label (None means `cluster`); None where there is none."""
        return self._groups.get("cluster" if label is None else str(label))

    def get_node_info(self, node_rank: int, /) -> NodeInfo:
        """Return a node.

        Raises:
            ShoalValueError: There is no such node.
        """
        if not 0 <= node_rank < len(self._nodes):
            raise ShoalValueError(
                f"node {node_rank} does not exist; there are nodes 0 to {len(self._nodes) - 1}"
            )
        return self._nodes[node_rank]
