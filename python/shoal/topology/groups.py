"""Builds the node groups of a job from its nodes and its configuration."""

from shoal.config import ClusterConfig
from shoal.errors import ClusterError
from shoal.topology.node import NodeGroupInfo, NodeInfo

__all__ = ["build_groups"]


def build_groups(nodes: list[NodeInfo], config: ClusterConfig | None) -> dict[str, NodeGroupInfo]:
    """Return the configured node groups, then `cluster` and `node`, which contain all nodes.

    Also adds the configured variables and the group labels to the nodes.

    Raises:
        ClusterError: A configured group names nodes that do not exist.
    """
    groups: dict[str, NodeGroupInfo] = {}
    for entry in (config.node_groups if config is not None else None) or []:
        missing = [rank for rank in entry.node_ranks if rank >= len(nodes)]
        if missing:
            raise ClusterError(
                f"node group {entry.label!r} names the nodes {missing}; this cluster has "
                f"nodes 0 to {len(nodes) - 1}"
            )
        groups[entry.label] = NodeGroupInfo(
            label=entry.label,
            nodes=[nodes[rank] for rank in sorted(entry.node_ranks)],
            hardware_type=entry.hardware_type,
            ignore_hardware=entry.ignore_hardware,
            env_configs=entry.env_configs,
        )
    for label in NodeGroupInfo.RESERVED_LABELS:
        groups[label] = NodeGroupInfo(label=label, nodes=nodes)
    for label, group in groups.items():
        for node in group.nodes:
            node.env_vars.update(group.get_node_env_vars(node.node_rank))
            if label not in node.node_labels:
                node.node_labels.append(label)
    return groups
