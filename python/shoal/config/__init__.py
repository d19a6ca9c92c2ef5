"""The `cluster` section of a configuration: read, check and convert it to dataclasses."""

from shoal.config.document import Document, read_document
from shoal.config.model import ClusterConfig, NodeGroupConfig, NodeGroupEnvConfig, load
from shoal.config.net_emulation import BandwidthGroup, CrossDCPair, NetEmulationConfig
from shoal.config.ranks import parse_rank_config
from shoal.config.tracer import TracerConfig
from shoal.problems import dataclass_arg_check

__all__ = [
    "BandwidthGroup",
    "ClusterConfig",
    "CrossDCPair",
    "Document",
    "NetEmulationConfig",
    "NodeGroupConfig",
    "NodeGroupEnvConfig",
    "TracerConfig",
    "dataclass_arg_check",
    "load",
    "parse_rank_config",
    "read_document",
]
