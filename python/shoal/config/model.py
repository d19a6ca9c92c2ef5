"""The configuration as its users see it: plain dataclasses, checked where they are read."""

import importlib
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from shoal.errors import ClusterConfigError

__all__ = ["ClusterConfig", "NodeGroupConfig", "NodeGroupEnvConfig"]


@dataclass
class NodeGroupEnvConfig:
    """Variables and interpreter of some nodes of a group.

    Attributes:
        node_ranks: The nodes, by their rank in the cluster.
        env_vars: One mapping of one variable each.
        python_interpreter_path: The interpreter for workers there; None for the node's own.
    """

    node_ranks: list[int]
    env_vars: list[dict[str, str]] | None = None
    python_interpreter_path: str | None = None


@dataclass
class NodeGroupConfig:
    """A labelled set of nodes.

    Attributes:
        label: The name that placements use.
        node_ranks: The nodes, by their rank in the cluster.
        env_configs: Variables and interpreters of some of the nodes.
        hardware: The group's own hardware; this version has none but detected accelerators.
        hardware_type: The type that the ranks of the group count; None to detect it.
        ignore_hardware: Whether the nodes are to be used as if they had no hardware.
    """

    label: str
    node_ranks: list[int]
    env_configs: list[NodeGroupEnvConfig] | None = None
    hardware: Any = None
    hardware_type: str | None = None
    ignore_hardware: bool = False

    def __post_init__(self) -> None:
        if self.hardware is not None:
            raise ClusterConfigError(
                f"node group {self.label!r}: 'hardware' is not supported by this version of shoal, "
                "which detects accelerators and nothing else; leave it out"
            )


@dataclass
class ClusterConfig:
    """The `cluster` section.

    Attributes:
        num_nodes: How many nodes the job has.
        component_placement: Which component runs where, one mapping an entry.
        node_groups: The labelled sets of nodes, besides `cluster` and `node`, which always exist.
        profiling: Settings of a profiler; this version has none.
    """

    num_nodes: int
    component_placement: list[dict[str, Any]]
    node_groups: list[NodeGroupConfig] | None = None
    profiling: Any = None

    def __post_init__(self) -> None:
        if self.profiling is not None:
            raise ClusterConfigError(
                "'profiling' is not supported by this version of shoal; leave it out"
            )

    @staticmethod
    def from_dict_cfg(cfg_dict: Any) -> "ClusterConfig":
        """Read a configuration; see `load`, which this is the older name of."""
        # Reading needs pydantic (0.2 s), and a worker that was sent a configuration does not read.
        config: ClusterConfig = importlib.import_module("shoal.config.source").load(cfg_dict)
        return config

    def get_node_labels_by_rank(self, node_rank: int) -> list[str]:
        """Return the labels of the groups that a node belongs to."""
        return [group.label for group in self.node_groups or [] if node_rank in group.node_ranks]

    def get_node_python_interpreter_path_by_rank(self, node_rank: int) -> list[str]:
        """Return the interpreters that the groups of a node ask for there."""
        return [
            env.python_interpreter_path
            for group in self.node_groups or []
            for env in group.env_configs or []
            if node_rank in env.node_ranks and env.python_interpreter_path is not None
        ]

    def __str__(self) -> str:
        fields = asdict(self)
        del fields["component_placement"]
        return yaml.safe_dump(fields, sort_keys=False).rstrip()
