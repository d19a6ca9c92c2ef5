"""Describes the node groups of a cluster to the solver."""

from collections.abc import Sequence
from typing import Protocol

from shoal._backend import NodeGroup, NodeResources
from shoal.errors import PlacementError
from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.nearest import did_you_mean

__all__ = ["ClusterLike", "GroupLike", "NodeLike", "describe", "find_groups", "hardware_count"]

_ALWAYS = ("cluster", "node")


class NodeLike(Protocol):
    """The attributes of a node that placement uses."""

    @property
    def node_rank(self) -> int:
        """Its rank in the cluster."""

    @property
    def num_accelerators(self) -> int:
        """The number of its accelerators."""

    @property
    def accelerator_type(self) -> str:
        """The type of its accelerators."""

    def get_hw_resource_count(self, hw_type: str, /) -> int:
        """Return the number of its resources of a hardware type."""


class GroupLike(Protocol):
    """The attributes of a node group that placement uses."""

    @property
    def label(self) -> str:
        """Its label."""

    @property
    def nodes(self) -> Sequence[NodeLike]:
        """Its nodes."""

    @property
    def hardware_type(self) -> str | None:
        """The hardware type that its ranks count; None if each rank is a whole node."""


class ClusterLike(Protocol):
    """The methods of a cluster that placement uses."""

    def get_node_group(self, label: str, /) -> GroupLike | None:
        """Return the group with a label; return None or raise `AssertionError` if there is none."""


def find_groups(cluster: ClusterLike, labels: Sequence[str]) -> list[NodeGroup]:
    """Find node groups by label and describe them to the solver.

    Args:
        cluster: The cluster to search.
        labels: The labels, in the order in which the groups' ranks are numbered.

    Raises:
        PlacementError: The cluster has no such group.
    """
    found = []
    for label in labels:
        group = _find(cluster, label)
        if group is None:
            known = _labels(cluster)
            raise PlacementError(
                f"there is no node group {label!r}; there are {', '.join(known)}"
                f"{did_you_mean(label, known)}"
            )
        found.append(describe(group))
    return found


def _find(cluster: ClusterLike, label: str) -> GroupLike | None:
    try:
        return cluster.get_node_group(label)
    except AssertionError:
        return None


def _labels(cluster: ClusterLike) -> list[str]:
    """Return the labels of a cluster's groups: those that always exist, and its nodes' labels."""
    everything = _find(cluster, "cluster")
    nodes = everything.nodes if everything else ()
    return sorted({*_ALWAYS, *(label for n in nodes for label in getattr(n, "node_labels", ()))})


def describe(group: GroupLike) -> NodeGroup:
    """Describe a node group to the solver: its nodes by rank, with their resources."""
    kind = group.hardware_type
    nodes = []
    for node in sorted(group.nodes, key=_node_rank):
        count = 0 if kind is None else hardware_count(node, kind)
        nodes.append(
            NodeResources(node.node_rank, count, node.num_accelerators, node.accelerator_type)
        )
    return NodeGroup(group.label, kind, nodes)


def hardware_count(node: NodeLike, kind: str) -> int:
    """Return the number of a node's resources of a hardware type."""
    return (
        node.num_accelerators if kind == ACCELERATOR_HW_TYPE else node.get_hw_resource_count(kind)
    )


def _node_rank(node: NodeLike) -> int:
    return node.node_rank
