"""`NodeProbe`: the nodes of a running Ray, described without launching a job."""

from typing import Any

import ray

from shoal.cluster.bringup import find_nodes, wanted_nodes
from shoal.config import load
from shoal.deadline import Deadline
from shoal.errors import ClusterError
from shoal.topology import NodeGroupInfo, NodeInfo, build_groups

__all__ = ["NodeProbe"]

_HEAD = "node:__internal_head__"


class NodeProbe:
    """Describes the nodes of the Ray that this process is connected to.

    `Cluster` does the same for a job. No process stays on the nodes.

    Args:
        cluster_num_nodes: Number of nodes to wait for; 0 for all that are connected.
        cluster_cfg: The configuration, as for `Cluster`; None for none.
        timeout: Maximum seconds; None for the default.

    Raises:
        ShoalValueError: The number is not valid, or contradicts the configuration.
        ClusterError: This process is not connected to Ray, or the nodes are not as configured.
        ShoalTimeoutError: A node did not connect or answer in time.
    """

    def __init__(
        self,
        cluster_num_nodes: int = 0,
        cluster_cfg: Any = None,
        *,
        timeout: float | None = None,
    ) -> None:
        config = None if cluster_cfg is None else load(cluster_cfg)
        wanted = wanted_nodes(cluster_num_nodes or None, config)
        if not ray.is_initialized():
            raise ClusterError(
                "NodeProbe: this process is not connected to Ray: construct Cluster(...) or call "
                "ray.init() first"
            )
        self._nodes, _ = find_nodes(
            wanted or 0, local=False, config=config, deadline=Deadline(timeout)
        )
        self._groups = build_groups(self._nodes, config)
        heads = {node["NodeID"] for node in ray.nodes() if _HEAD in node["Resources"]}
        found = (node for node in self._nodes if node.ray_id in heads)
        self._head = next(found, self._nodes[0])

    @property
    def nodes(self) -> list[NodeInfo]:
        """The nodes, in rank order."""
        return self._nodes

    @property
    def node_groups(self) -> dict[str, NodeGroupInfo]:
        """The node groups, by label: those of the configuration, then `cluster` and `node`."""
        return self._groups

    @property
    def head_node(self) -> NodeInfo:
        """The node that Ray was started on; node 0 if it is not in use."""
        return self._head
