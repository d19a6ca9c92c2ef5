"""The cluster of a job: its nodes, its managers and the processes on them."""

from shoal.bootstrap.extension import load_user_extension_module
from shoal.cluster.cluster import Cluster
from shoal.cluster.env import ClusterEnvVar, PathEnvMergeMode
from shoal.cluster.logs import DistributedRayLogCollector
from shoal.cluster.probe import NodeProbe
from shoal.cluster.proxies import without_http_proxies
from shoal.topology import NodeGroupInfo, NodeInfo

__all__ = [
    "Cluster",
    "ClusterEnvVar",
    "DistributedRayLogCollector",
    "NodeGroupInfo",
    "NodeInfo",
    "NodeProbe",
    "PathEnvMergeMode",
    "load_user_extension_module",
    "without_http_proxies",
]
