"""Records of nodes and node groups, which every process of a job receives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from shoal.errors import ClusterConfigError, PlacementIndexError
from shoal.hardware import (
    ACCELERATOR_HW_TYPE,
    AcceleratorType,
    Hardware,
    HardwareResource,
)

if TYPE_CHECKING:
    from shoal.config import NodeGroupEnvConfig

__all__ = ["NodeGroupInfo", "NodeInfo"]


@dataclass
class NodeInfo:
    """One node of the cluster.

    Attributes:
        node_labels: Labels of the node groups that it belongs to.
        node_rank: Its rank in the cluster.
        ray_id: Ray's identity of the node, hexadecimal.
        node_ip: Its IP address.
        num_cpus: Its number of CPUs, as Ray counts them.
        python_interpreter_path: The interpreter that runs Ray's workers.
        default_env_vars: The node's own `SHOAL_*`, `RLINF_*` and path-like variables, and those
            that control how its devices are used. No other variables leave their node.
        env_vars: The variables that the configuration adds.
        hardware_resources: Its hardware, one entry for each type.
        profiler_backends: The installed profilers.
        hostname: Its host name.
    """

    node_labels: list[str]
    node_rank: int
    ray_id: str
    node_ip: str
    num_cpus: int
    python_interpreter_path: str = ""
    default_env_vars: dict[str, str] = field(default_factory=dict)
    env_vars: dict[str, str] = field(default_factory=dict)
    hardware_resources: list[HardwareResource] = field(default_factory=list)
    profiler_backends: list[str] = field(default_factory=list)
    hostname: str = ""

    @property
    def num_accelerators(self) -> int:
        """The number of accelerators."""
        resource = self._resource(ACCELERATOR_HW_TYPE)
        return 0 if resource is None else len(resource.infos)

    @property
    def num_gpus(self) -> int:
        """Older name of `num_accelerators`."""
        return self.num_accelerators

    @property
    def accelerator_type(self) -> str:
        """The type of the node's accelerators, `NO_ACCEL` if it has none."""
        return self.accelerator_model.partition(":")[0] or AcceleratorType.NO_ACCEL.value

    @property
    def accelerator_model(self) -> str:
        """The model of the node's accelerators (`NV_GPU:H200`), empty if it has none."""
        resource = self._resource(ACCELERATOR_HW_TYPE)
        return resource.infos[0].model if resource is not None and resource.infos else ""

    def get_hw_resource_count(self, hw_type: str | None) -> int:
        """Return the number of the node's devices of a hardware type; 0 for None."""
        return len(self.get_hardware_infos(hw_type))

    def get_hardware_infos(self, hw_type: str | None) -> list[Any]:
        """Return the node's devices of a hardware type, in the order of their ranks."""
        resource = self._resource(hw_type)
        return [] if resource is None else resource.infos

    def device_names(self) -> list[str]:
        """Return the node's own names of its accelerators; empty if they are plain indices."""
        resource = self._resource(ACCELERATOR_HW_TYPE)
        return [] if resource is None else resource.device_names

    def egl_ids(self) -> list[int]:
        """Return the EGL index of each accelerator; empty if it is not known."""
        resource = self._resource(ACCELERATOR_HW_TYPE)
        return [] if resource is None else resource.egl_ids

    def __str__(self) -> str:
        hardware = {r.type: [f"{i.model}" for i in r.infos] for r in self.hardware_resources}
        shown = {
            "node_rank": self.node_rank,
            "hostname": self.hostname,
            "node_ip": self.node_ip,
            "ray_id": self.ray_id,
            "node_labels": self.node_labels,
            "num_cpus": self.num_cpus,
            "hardware_resources": hardware,
            "python_interpreter_path": self.python_interpreter_path,
            "profiler_backends": self.profiler_backends,
        }
        return yaml.safe_dump(shown, sort_keys=False).rstrip()

    def _resource(self, hw_type: str | None) -> HardwareResource | None:
        # A loop is faster than a generator here; placement calls this several times for each node.
        for resource in self.hardware_resources:
            if resource.type == hw_type:
                return resource
        return None


@dataclass
class NodeGroupInfo:
    """Nodes that share a label.

    Attributes:
        label: The label.
        nodes: The nodes, in rank order.
        hardware_type: The hardware type that its ranks count; None if each node is one resource.
        ignore_hardware: Whether to use the group as if it had no hardware.
        env_configs: Variables and interpreters of some of its nodes.
    """

    DEFAULT_GROUP_LABEL: ClassVar[str] = "cluster"
    NODE_PLACEMENT_GROUP_LABEL: ClassVar[str] = "node"
    RESERVED_LABELS: ClassVar[tuple[str, ...]] = ("cluster", "node")

    label: str
    nodes: list[NodeInfo]
    hardware_type: str | None = None
    ignore_hardware: bool = False
    env_configs: "Sequence[NodeGroupEnvConfig] | None" = None
    _env_of: "dict[int, list[NodeGroupEnvConfig]]" = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for config in self.env_configs or ():
            for rank in config.node_ranks:
                self._env_of.setdefault(rank, []).append(config)
        if self.label == self.NODE_PLACEMENT_GROUP_LABEL or self.ignore_hardware:
            self.hardware_type = None
        elif self.hardware_type is None:
            # Decided for the whole group: next to nodes with accelerators, one without counts 0.
            kind = Hardware.DEFAULT_HW_TYPE
            if any(node.get_hw_resource_count(kind) for node in self.nodes):
                self.hardware_type = kind

    @property
    def node_ranks(self) -> list[int]:
        """The cluster ranks of the nodes."""
        return [node.node_rank for node in self.nodes]

    @property
    def hardware_resource_count(self) -> int:
        """The number of resources: devices, or nodes if the group counts whole nodes."""
        return sum(self._count(node) for node in self.nodes)

    @property
    def local_hardware_ranks(self) -> list[list[int]]:
        """The resource ranks of each node within the group, in node order."""
        return [list(range(first, first + count)) for _, first, count in self._blocks()]

    def _count(self, node: NodeInfo) -> int:
        kind = self.hardware_type
        return 1 if kind is None else node.get_hw_resource_count(kind)

    def _blocks(self) -> Iterator[tuple[NodeInfo, int, int]]:
        """Each node with its first resource rank and its number of resources."""
        first = 0
        for node in self.nodes:
            count = self._count(node)
            yield node, first, count
            first += count

    def get_hardware_infos(self, node_rank: int) -> list[Any]:
        """Return the devices of the group's hardware type on a node; empty if it counts nodes.

        Raises:
            PlacementIndexError: The group has no such node.
        """
        for node in self.nodes:
            if node.node_rank == node_rank:
                return node.get_hardware_infos(self.hardware_type)
        raise PlacementIndexError(
            f"node group {self.label!r} has no node {node_rank}; it has {self.node_ranks}"
        )

    def group_ranks_to_global_ranks(self, group_ranks: Sequence[int]) -> list[int]:
        """Translate node ranks within the group to cluster node ranks.

        Raises:
            PlacementIndexError: The group has no such node.
        """
        for rank in group_ranks:
            if not 0 <= rank < len(self.nodes):
                raise PlacementIndexError(
                    f"node group {self.label!r} has {len(self.nodes)} nodes; there is no node {rank}"
                )
        return [self.nodes[rank].node_rank for rank in group_ranks]

    def get_node_by_hardware_rank(self, hardware_rank: int) -> NodeInfo | None:
        """Return the node that has a resource rank, or None."""
        for node, first, count in self._blocks():
            if 0 <= hardware_rank - first < count:
                return node
        return None

    def get_local_hardware_rank(self, hardware_rank: int) -> int:
        """Return a resource's rank on its own node, -1 if there is no such resource."""
        for _, first, count in self._blocks():
            if 0 <= hardware_rank - first < count:
                return hardware_rank - first
        return -1

    def get_node_env_vars(self, node_rank: int) -> dict[str, str]:
        """Return the variables that the configuration sets on a node."""
        found: dict[str, str] = {}
        for config in self._env_of.get(node_rank, ()):
            for entry in config.env_vars or ():
                found.update(entry)
        return found

    def get_node_python_interpreter_path(self, node_rank: int) -> str | None:
        """Return the interpreter that the configuration asks for on a node, or None.

        Raises:
            ClusterConfigError: The configuration asks for several interpreters.
        """
        paths = {
            config.python_interpreter_path
            for config in self._env_of.get(node_rank, ())
            if config.python_interpreter_path
        }
        if len(paths) > 1:
            raise ClusterConfigError(
                f"node group {self.label!r} asks for several interpreters on node {node_rank}: "
                f"{', '.join(sorted(paths))}"
            )
        return next(iter(paths), None)
