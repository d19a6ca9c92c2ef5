"""A cluster described by its nodes and node groups, running or only planned."""

from collections.abc import Sequence
from typing import Any

from shoal.errors import PlacementIndexError, ShoalValueError
from shoal.integers import as_int
from shoal.topology.node import NodeGroupInfo, NodeInfo

__all__ = ["DescribedCluster"]


class DescribedCluster:
    """The nodes and node groups of a cluster, for placement; no cluster needs to run.

    Args:
        nodes: The nodes, by rank.
        groups: The node groups, by label.
    """

    _nodes: list[NodeInfo]
    _node_groups: dict[str, NodeGroupInfo]

    def __init__(self, nodes: Sequence[NodeInfo], groups: dict[str, NodeGroupInfo]) -> None:
        self._nodes = list(nodes)
        self._node_groups = groups

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    @property
    def nodes(self) -> list[NodeInfo]:
        """The nodes, in rank order."""
        return list(self._nodes)

    @property
    def num_accelerators(self) -> int:
        """The number of accelerators of all nodes."""
        return sum(node.num_accelerators for node in self._nodes)

    @property
    def accelerator_ranks(self) -> list[list[int]]:
        """Cluster-wide ranks of each node's accelerators, in node order."""
        ranks: list[list[int]] = []
        first = 0
        for node in self._nodes:
            ranks.append(list(range(first, first + node.num_accelerators)))
            first += node.num_accelerators
        return ranks

    @property
    def num_accelerators_in_cluster(self) -> int:
        """Older name of `num_accelerators`."""
        return self.num_accelerators

    @property
    def node_accelerator_ids(self) -> list[list[int]]:
        """Older name of `accelerator_ranks`."""
        return self.accelerator_ranks

    def get_node_num_accelerators(self, node_id: int) -> int:
        """Return the number of a node's accelerators.

        Raises:
            ShoalValueError: There is no such node.
        """
        return self.get_node_info(node_id).num_accelerators

    def get_node_id_from_accel_id(self, accel_id: int) -> int:
        """Return the rank of the node that has an accelerator.

        Raises:
            ShoalValueError: There is no accelerator of this cluster-wide rank.
        """
        return self._node_and_local_rank(accel_id)[0]

    def global_accel_id_to_local_accel_id(self, accel_id: int) -> int:
        """Return the rank on its node of the accelerator of a cluster-wide rank.

        Raises:
            ShoalValueError: There is no accelerator of this rank.
        """
        return self._node_and_local_rank(accel_id)[1]

    def _node_and_local_rank(self, accelerator_rank: int) -> tuple[int, int]:
        for node_rank, ranks in enumerate(self.accelerator_ranks):
            if accelerator_rank in ranks:
                return node_rank, ranks.index(accelerator_rank)
        raise ShoalValueError(
            f"accelerator {accelerator_rank!r} does not exist; this cluster has "
            f"{self.num_accelerators}, with ranks from 0"
        )

    def get_node_group(self, label: object = "cluster") -> NodeGroupInfo | None:
        """Return the node group with a label (None means `cluster`), or None."""
        return self._node_groups.get("cluster" if label is None else str(label))

    def get_node_info(self, node_rank: int) -> NodeInfo:
        """Return a node.

        Raises:
            PlacementIndexError: There is no such node.
        """
        return self._node(node_rank, 0)

    def get_node_ip(self, node_rank: int) -> str:
        """Return a node's IP address; negative ranks count from the end, as in a list.

        Raises:
            PlacementIndexError: There is no such node.
        """
        return self._node(node_rank, -len(self._nodes)).node_ip

    def _node(self, node_rank: Any, least: int) -> NodeInfo:
        rank = as_int(node_rank, least, len(self._nodes) - 1)
        if rank is None:
            raise PlacementIndexError(
                f"node {node_rank!r} does not exist; this cluster has nodes 0 to {len(self._nodes) - 1}"
            )
        return self._nodes[rank]
