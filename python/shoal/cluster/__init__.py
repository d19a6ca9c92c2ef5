"""The cluster of a job: its nodes, its managers and the processes on them."""

from shoal.cluster.cluster import Cluster
from shoal.cluster.env import ClusterEnvVar, PathEnvMergeMode
from shoal.topology import NodeGroupInfo, NodeInfo

__all__ = ["Cluster", "ClusterEnvVar", "NodeGroupInfo", "NodeInfo", "PathEnvMergeMode"]
