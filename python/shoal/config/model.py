"""The dataclasses of a configuration; they also check values that are passed to them directly."""

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from types import ModuleType
from typing import Any

import yaml

from shoal.bootstrap.extension import load_user_extension_module
from shoal.config import rules
from shoal.config.document import read_document
from shoal.config.entries import parse_entries
from shoal.config.net_emulation import NetEmulationConfig
from shoal.config.omega import plain_section
from shoal.config.tracer import TracerConfig
from shoal.errors import ClusterConfigError
from shoal.hardware import NodeHardwareConfig
from shoal.problems import ArgumentsError, Problem
from shoal.profiling import ProfileConfig

__all__ = ["ClusterConfig", "NodeGroupConfig", "NodeGroupEnvConfig", "load"]


@dataclass
class NodeGroupEnvConfig:
    """Environment variables and interpreter of some nodes of a group.

    Attributes:
        node_ranks: The nodes, by their rank in the cluster.
        env_vars: Mappings of one variable each.
        python_interpreter_path: The interpreter for workers there; None for the node's own.

    Raises:
        ClusterConfigError: A value is invalid.
    """

    node_ranks: list[int]
    env_vars: list[dict[str, str]] | None = None
    python_interpreter_path: str | None = None

    def __post_init__(self) -> None:
        where = "NodeGroupEnvConfig: "
        _apply(self, "node_ranks", rules.read_node_ranks, where)
        _apply(self, "env_vars", rules.read_env_vars, where)
        _apply(self, "python_interpreter_path", rules.read_interpreter, where)
        _raise_for(list(rules.env_problems(self)), where)


@dataclass
class NodeGroupConfig:
    """A labelled set of nodes.

    Attributes:
        label: The name that placements use.
        node_ranks: The nodes, by their rank in the cluster.
        env_configs: Variables and interpreters of some of the nodes.
        hardware: The group's own hardware, robots for example; None to use the detected hardware.
        hardware_type: The type of hardware that the group's ranks count: the type of `hardware`, or
            one of the detected types; None to detect it.
        ignore_hardware: Whether to use the nodes as if they had no hardware.

    Raises:
        ClusterConfigError: A value is invalid, or values contradict each other.
    """

    label: str
    node_ranks: list[int]
    env_configs: list[NodeGroupEnvConfig] | None = None
    hardware: NodeHardwareConfig | None = None
    hardware_type: str | None = None
    ignore_hardware: bool = False

    def __post_init__(self) -> None:
        given: dict[str, Any] = vars(self)  # a user may pass other types
        if not (
            _are(NodeGroupEnvConfig, given["env_configs"])
            and isinstance(given["hardware"], NodeHardwareConfig | None)
        ):
            _read_by(self, NodeGroupConfig, "read_group")
        where = f"node group {self.label!r}: "
        _apply(self, "label", rules.read_label, where)
        _apply(self, "node_ranks", rules.read_node_ranks, where)
        found = rules.group_problems(
            self.node_ranks,
            self.env_configs or (),
            self.hardware,
            self.hardware_type,
            self.ignore_hardware,
        )
        _raise_for(list(found), where)
        if self.hardware is not None:
            self.hardware_type = self.hardware.type


@dataclass
class ClusterConfig:
    """The `cluster` section.

    Attributes:
        num_nodes: Number of nodes of the job.
        component_placement: Which component runs where; one mapping for each entry.
        node_groups: The labelled sets of nodes, besides `cluster` and `node`, which always exist.
        profiling: The profiler and what it profiles; None for no profiling.
        tracer: Whether the job is traced, and the file of the trace; None for no trace.
        net_emulation: The slow links that the job emulates; None for none.

    Raises:
        ClusterConfigError: A value is invalid, or values contradict each other.
    """

    num_nodes: int
    component_placement: list[dict[str, Any]]
    node_groups: list[NodeGroupConfig] | None = None
    profiling: ProfileConfig | None = None
    tracer: TracerConfig | None = None
    net_emulation: NetEmulationConfig | None = None

    def __post_init__(self) -> None:
        given: dict[str, Any] = vars(self)  # a user may pass other types
        if not (
            _are(NodeGroupConfig, given["node_groups"])
            and isinstance(given["profiling"], ProfileConfig | None)
            and isinstance(given["tracer"], TracerConfig | None)
            and isinstance(given["net_emulation"], NetEmulationConfig | None)
            and isinstance(given["component_placement"], list | dict)
        ):
            _read_by(self, ClusterConfig, "read_cluster")
            return
        _apply(self, "num_nodes", rules.read_num_nodes, "cluster: ")
        found = [p for _, wrong in parse_entries(self.component_placement) for p in wrong]
        found += rules.cluster_problems(self.num_nodes, self.node_groups or ())
        found += rules.net_emulation_problems(self.num_nodes, self.net_emulation)
        _raise_for(found, "cluster: ")

    @staticmethod
    def from_dict_cfg(cfg_dict: Any) -> "ClusterConfig":
        """Read and check a configuration. Older name of `load`."""
        return load(cfg_dict)

    def get_node_labels_by_rank(self, node_rank: int) -> list[str]:
        """Return the labels of the groups that a node belongs to."""
        return [group.label for group in self.node_groups or [] if node_rank in group.node_ranks]

    def get_node_python_interpreter_path_by_rank(self, node_rank: int) -> list[str]:
        """Return the interpreters that the groups configure for a node."""
        return [
            env.python_interpreter_path
            for group in self.node_groups or []
            for env in group.env_configs or []
            if node_rank in env.node_ranks and env.python_interpreter_path is not None
        ]

    def get_node_hw_configs_by_rank(self, node_rank: int) -> list[Any]:
        """Return the hardware configurations that the groups have for a node."""
        return [
            config
            for group in self.node_groups or []
            if group.hardware is not None
            for config in group.hardware.configs
            if config.node_rank == node_rank
        ]

    def __str__(self) -> str:
        data = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        del data["component_placement"]
        return yaml.dump(data, Dumper=_Dumper, sort_keys=False).rstrip()


def load(source: Any) -> ClusterConfig:
    """Read and check a configuration.

    Args:
        source: A mapping, an OmegaConf `DictConfig` or the path of a YAML file. It is the whole
            document if it has a key `cluster`, otherwise the `cluster` section alone. A
            `ClusterConfig` is returned as it is.

    Raises:
        ClusterConfigError: The configuration is invalid; the error lists all problems, each with
            its path.
    """
    if isinstance(source, ClusterConfig):
        return source
    load_user_extension_module()  # it may register hardware that the configuration names
    document = read_document(source)
    config: ClusterConfig = _schema().check(document, _kinds())
    return config


def _schema() -> ModuleType:
    """Import the check and pydantic (0.2 s), which only a process that reads needs."""
    return importlib.import_module("shoal.config.schema")


def _kinds() -> Any:
    return _schema().Kinds(ClusterConfig, NodeGroupConfig, NodeGroupEnvConfig)


class _Dumper(yaml.SafeDumper):
    """Writes values of unknown types, of a user's hardware for example, as text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write an object that occurs twice in full both times."""
        del data
        return True


_Dumper.add_multi_representer(object, lambda dumper, value: dumper.represent_str(str(value)))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _are(cls: type[Any], entries: Any) -> bool:
    """Return whether entries is a list of `cls` objects, or None."""
    return entries is None or (
        isinstance(entries, list) and all(isinstance(entry, cls) for entry in entries)
    )


def _read_by(given: Any, cls: type[Any], reader: str) -> None:
    """Convert mappings in fields that should hold dataclasses, as `load` would."""
    names = [field.name for field in fields(cls)]
    values = {name: getattr(given, name) for name in names}
    read = getattr(_schema(), reader)
    found = read(plain_section(values, None, names, cls.__name__), _kinds())
    for name in names:
        setattr(given, name, getattr(found, name))


def _apply(given: Any, field: str, rule: Callable[[Any], Any], where: str) -> None:
    try:
        setattr(given, field, rule(getattr(given, field)))
    except ArgumentsError as error:
        raise ArgumentsError([p.under(field) for p in error.found], where) from None
    except ClusterConfigError as error:
        raise ArgumentsError([Problem((field,), str(error))], where) from None


def _raise_for(problems: list[Problem], where: str) -> None:
    if problems:
        raise ArgumentsError(problems, where)
