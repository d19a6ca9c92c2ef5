"""The description of a cluster: its nodes and node groups. Works without Ray."""

from shoal.topology.described import DescribedCluster
from shoal.topology.groups import build_groups
from shoal.topology.node import NodeGroupInfo, NodeInfo

__all__ = ["DescribedCluster", "NodeGroupInfo", "NodeInfo", "build_groups"]
