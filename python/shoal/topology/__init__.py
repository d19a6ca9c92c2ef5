"""What a cluster consists of: nodes, and groups of nodes. Nothing here needs Ray."""

from shoal.topology.described import DescribedCluster
from shoal.topology.groups import build_groups
from shoal.topology.node import NodeGroupInfo, NodeInfo

__all__ = ["DescribedCluster", "NodeGroupInfo", "NodeInfo", "build_groups"]
