"""What placement asks of a cluster, and how it is described to the solver."""

from collections.abc import Sequence
from typing import Protocol

from shoal._backend import NodeGroup, NodeResources
from shoal.errors import PlacementError
from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.nearest import did_you_mean

__all__ = ["ClusterLike", "GroupLike", "NodeLike", "describe", "find_groups", "hardware_count"]

_ALWAYS = ("cluster", "node")


class NodeLike(Protocol):
    """A node, as far as placement needs to know it."""

    @property
    def node_rank(self) -> int:
        """Its rank in the cluster."""

    @property
    def num_accelerators(self) -> int:
        """How many accelerators it has."""

    @property
    def accelerator_type(self) -> str:
        """Their type."""

    def get_hw_resource_count(self, hw_type: str, /) -> int:
        """Return how many resources of a hardware type it has."""


class GroupLike(Protocol):
    """A node group, as far as placement needs to know it."""

    @property
    def label(self) -> str:
        """Its label."""

    @property
    def nodes(self) -> Sequence[NodeLike]:
        """Its nodes."""

    @property
    def hardware_type(self) -> str | None:
        """What its ranks count; None where each is a whole node."""


class ClusterLike(Protocol):
    """A cluster, as far as placement needs to know it."""

    def get_node_group(self, label: str, /) -> GroupLike | None:
        """Return the group of a label; None, or an `AssertionError`, where there is none."""


def find_groups(cluster: ClusterLike, labels: Sequence[str]) -> list[NodeGroup]:
    """Describe node groups to the solver.

    Args:
        cluster: The cluster that has them.
        labels: Their labels, in the order in which their ranks are numbered.

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
    """Return the labels of a cluster's groups: those that always exist, and what its nodes tell."""
    everything = _find(cluster, "cluster")
    nodes = everything.nodes if everything else ()
    return sorted({*_ALWAYS, *(label for n in nodes for label in getattr(n, "node_labels", ()))})


def describe(group: GroupLike) -> NodeGroup:
    """Describe a node group to the solver: its nodes by rank, and what they count."""
    kind = group.hardware_type
    nodes = []
    for node in sorted(group.nodes, key=_node_rank):
        count = 0 if kind is None else hardware_count(node, kind)
        nodes.append(
            NodeResources(node.node_rank, count, node.num_accelerators, node.accelerator_type)
        )
    return NodeGroup(group.label, kind, nodes)


def hardware_count(node: NodeLike, kind: str) -> int:
    """Return how much hardware of a type a node has."""
    return (
        node.num_accelerators if kind == ACCELERATOR_HW_TYPE else node.get_hw_resource_count(kind)
    )


def _node_rank(node: NodeLike) -> int:
    return node.node_rank
