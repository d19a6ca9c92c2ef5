"""The `cluster` section of a configuration: read, checked, and turned into dataclasses."""

from shoal.config.model import ClusterConfig, NodeGroupConfig, NodeGroupEnvConfig
from shoal.config.ranks import parse_rank_config
from shoal.config.source import load, read_section

__all__ = [
    "ClusterConfig",
    "NodeGroupConfig",
    "NodeGroupEnvConfig",
    "load",
    "parse_rank_config",
    "read_section",
]
