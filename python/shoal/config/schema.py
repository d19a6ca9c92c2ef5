"""Check a `cluster` section with pydantic, and build its dataclasses.

The only module of this package that imports pydantic.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from shoal.config import rules
from shoal.config.document import Document
from shoal.config.entries import Entry, parse_entries
from shoal.config.net_emulation import NetEmulationConfig, read_net_emulation
from shoal.config.tracer import TracerConfig
from shoal.errors import ClusterConfigError
from shoal.hardware import NodeHardwareConfig
from shoal.nearest import did_you_mean
from shoal.problems import ArgumentsError, Problem, construct, shown
from shoal.profiling import ProfileConfig

__all__ = ["Kinds", "check", "read_cluster", "read_group"]

M = TypeVar("M", bound=BaseModel)
_UNKNOWN = "unknown"


class Kinds(NamedTuple):
    """The dataclasses to make. They call this module, which therefore does not import them."""

    cluster: type[Any]
    group: type[Any]
    env: type[Any]


def _by(rule: Callable[[Any], Any]) -> BeforeValidator:
    """Return a rule as a validator of pydantic."""

    def validate(value: Any) -> Any:
        try:
            return rule(value)
        except ClusterConfigError as error:
            raise _custom(error) from None

    return BeforeValidator(validate)


def _custom(error: ClusterConfigError) -> PydanticCustomError:
    return PydanticCustomError("shoal", "{message}", {"message": str(error)})


def _ranks(value: Any, info: ValidationInfo) -> list[int]:
    nodes = (info.context or {}).get("nodes")
    try:
        return rules.read_node_ranks(value, None if nodes == _UNKNOWN else nodes)
    except ClusterConfigError as error:
        if nodes == _UNKNOWN and "all" in str(value).lower():
            # The nodes depend on num_nodes, whose problem is reported already.
            return []
        raise _custom(error) from None


_Listed = Annotated[
    list[Any] | None,
    BeforeValidator(lambda value: list(value) if isinstance(value, tuple) else value),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Env(_Strict):
    node_ranks: Annotated[list[int], BeforeValidator(_ranks)]
    env_vars: Annotated[
        list[Annotated[dict[str, str], _by(rules.read_env_var)]] | None,
        _by(rules.list_of_env_vars),
    ] = None
    python_interpreter_path: Annotated[str | None, _by(rules.read_interpreter)] = None


class _Group(_Strict):
    label: Annotated[str, _by(rules.read_label)]
    node_ranks: Annotated[list[int], BeforeValidator(_ranks)]
    env_configs: _Listed = None
    hardware: Any = None
    hardware_type: str | None = None
    ignore_hardware: bool = False


class _Cluster(_Strict):
    num_nodes: Annotated[int, _by(rules.read_num_nodes)]
    component_placement: Any
    node_groups: _Listed = None
    profiling: Any = None
    tracer: Any = None
    net_emulation: Any = None


@dataclass
class _Parts:
    """The parts of a node group, as far as they could be read."""

    label: str
    node_ranks: list[int]
    envs: list[Any] | None
    hardware: NodeHardwareConfig | None
    hardware_type: str | None
    ignore_hardware: bool

    def make(self, kinds: Kinds) -> Any:
        """Return the group as its dataclass."""
        envs = None
        if self.envs is not None:
            envs = [
                env
                if isinstance(env, kinds.env)
                else kinds.env(env.node_ranks, env.env_vars, env.python_interpreter_path)
                for env in self.envs
            ]
        return kinds.group(
            self.label,
            self.node_ranks,
            envs,
            self.hardware,
            self.hardware_type,
            self.ignore_hardware,
        )


def check(document: Document, kinds: Kinds) -> Any:
    """Check a section and return it as dataclasses.

    Args:
        document: The configuration that contains the section.
        kinds: The dataclasses to make.

    Raises:
        ClusterConfigError: The section has problems; the error lists all, each with its path.
    """
    section, fields = document.section, _Cluster.model_fields
    known = {key: section[key] for key in section if key in fields}
    absent = [name for name in fields if fields[name].is_required() and name not in section]
    hints = {key: did_you_mean(key, absent) for key in section if key not in fields}
    # A key of another program, unless a required one is missing that it may mean.
    _warn_of_unknown(document.name, [key for key, hint in hints.items() if not hint])
    problems = [
        Problem((key,), f"unknown key {key!r}{hint}", key=True)
        for key, hint in hints.items()
        if hint
    ]
    config = _cluster(known, document.entries, problems, kinds)
    if config is None:
        lines = [f"{document.where(*p.path, key=p.key)}: {p.message}" for p in problems]
        noun = "a problem" if len(lines) == 1 else f"{len(lines)} problems"
        listed = "\n".join(f"  {line}" for line in lines)
        raise ClusterConfigError(f"{document.name} has {noun}:\n{listed}", problems=lines)
    return config


def read_cluster(values: Mapping[str, Any], kinds: Kinds) -> Any:
    """Make a `ClusterConfig` from its fields, some of which may still be mappings.

    Raises:
        ArgumentsError: The values have problems; the error lists all.
    """
    problems: list[Problem] = []
    entries = parse_entries(values.get("component_placement"))
    config = _cluster(values, entries, problems, kinds)
    if config is None:
        raise ArgumentsError(problems, "cluster: ")
    return config


def read_group(values: Mapping[str, Any], kinds: Kinds) -> Any:
    """Make a `NodeGroupConfig` from its fields, some of which may still be mappings.

    Raises:
        ArgumentsError: The values have problems; the error lists all.
    """
    problems: list[Problem] = []
    parts = _group(values, None, problems, kinds)
    if problems or parts is None:
        raise ArgumentsError(problems, f"node group {values.get('label')!r}: ")
    return parts.make(kinds)


def _warn_of_unknown(name: str, unknown: list[str]) -> None:
    if unknown:
        listed = ", ".join(f"{key!r}{did_you_mean(key, _Cluster.model_fields)}" for key in unknown)
        warnings.warn(f"{name}: cluster: ignored unknown keys: {listed}", UserWarning, stacklevel=4)


def _cluster(
    values: Mapping[str, Any],
    entries: Iterable[tuple[Entry | None, list[Problem]]],
    problems: list[Problem],
    kinds: Kinds,
) -> Any:
    cluster = _validate(_Cluster, values, problems)
    num_nodes: int | None = None
    with contextlib.suppress(ClusterConfigError):  # reported already
        num_nodes = rules.read_num_nodes(values.get("num_nodes"))
    problems += [problem for _, wrong in entries for problem in wrong]
    raw = values.get("node_groups")
    groups: list[_Parts | None] = []
    nodes = _UNKNOWN if num_nodes is None else range(num_nodes)
    for index, entry in enumerate(raw if isinstance(raw, (list, tuple)) else ()):
        found: list[Problem] = []
        groups.append(_group(entry, nodes, found, kinds))
        problems += [problem.under("node_groups", index) for problem in found]
    problems += rules.cluster_problems(num_nodes, groups)
    profiling = values.get("profiling")
    if profiling is not None and not isinstance(profiling, ProfileConfig):
        profiling, found = ProfileConfig.read(profiling)
        problems += [problem.under("profiling") for problem in found]
    tracer = values.get("tracer")
    if tracer is not None and not isinstance(tracer, TracerConfig):
        tracer, found = _tracer(tracer)
        problems += [problem.under("tracer") for problem in found]
    emulation = values.get("net_emulation")
    if emulation is not None and not isinstance(emulation, NetEmulationConfig):
        emulation, found = read_net_emulation(emulation)
        problems += [problem.under("net_emulation") for problem in found]
    problems += rules.net_emulation_problems(num_nodes, emulation)
    if problems or cluster is None:
        return None
    made = [parts.make(kinds) for parts in groups if parts is not None]
    config = object.__new__(kinds.cluster)  # its constructor would check it all again
    config.num_nodes = cluster.num_nodes
    config.component_placement = _listed(cluster.component_placement)
    config.node_groups = None if raw is None else made
    config.profiling = profiling
    config.tracer = tracer
    config.net_emulation = emulation
    return config


def _tracer(values: Any) -> tuple[TracerConfig | None, list[Problem]]:
    if not isinstance(values, Mapping):
        message = f"must be a mapping with enable and output_file, not {shown(values)}"
        return None, [Problem((), message)]
    return construct(TracerConfig, values)


def _listed(placement: Any) -> list[dict[str, Any]]:
    if isinstance(placement, Mapping):
        return [{str(key): entry} for key, entry in placement.items()]
    return [{str(key): entry for key, entry in mapping.items()} for mapping in placement]


def _group(entry: Any, nodes: Any, problems: list[Problem], kinds: Kinds) -> _Parts | None:
    """Read a group as far as possible; paths of problems are relative to the group."""
    if isinstance(entry, kinds.group):
        entry = {name: getattr(entry, name) for name in _Group.model_fields}
    context = {"nodes": nodes}
    group = _validate(_Group, entry, problems, context)
    if not isinstance(entry, Mapping):
        return None
    node_ranks = group.node_ranks if group else _tried(entry.get("node_ranks"), nodes)
    found: list[Problem] = []
    envs = _envs(entry.get("env_configs"), node_ranks, context, found, kinds)
    problems += found
    hardware = _hardware(entry.get("hardware"), problems)
    unread = hardware is None and entry.get("hardware") is not None
    kind = group.hardware_type if group and not unread else None
    ignore = group is not None and group.ignore_hardware
    problems += rules.group_problems(node_ranks, envs or (), hardware, kind, ignore)
    if group is None or found:
        return None
    return _Parts(group.label, node_ranks, envs, hardware, kind, ignore)


def _tried(value: Any, nodes: Any) -> list[int]:
    """Read the nodes of a group or entry that has problems, to compare other parts with them."""
    try:
        return rules.read_node_ranks(value, None if nodes == _UNKNOWN else nodes)
    except ClusterConfigError:
        return []


def _envs(
    raw: Any, own: list[int], context: Mapping[str, Any], problems: list[Problem], kinds: Kinds
) -> list[Any] | None:
    if not isinstance(raw, (list, tuple)):
        return None
    envs: list[Any] = []
    for index, entry in enumerate(raw):
        found: list[Problem] = []
        env: Any = entry
        if not isinstance(entry, kinds.env):
            env = _validate(_Env, _all_of(own, entry), found, context)
        if env is None:
            # The entry has problems: read only its nodes, to compare them with the group's.
            ranks = entry.get("node_ranks") if isinstance(entry, Mapping) else None
            env = _Env.model_construct(node_ranks=_tried(ranks, context["nodes"]))
        found += rules.env_problems(env)
        problems += [problem.under("env_configs", index) for problem in found]
        envs.append(env)
    return envs


def _all_of(own: list[int], entry: Any) -> Any:
    """Replace `all` by the nodes of the group; it does not mean those of the cluster here."""
    if not own or not isinstance(entry, Mapping):
        return entry
    given = entry.get("node_ranks")
    listed = given if isinstance(given, (list, tuple)) else [given]
    parts = [
        part for text in listed for part in (text.split(",") if isinstance(text, str) else [text])
    ]
    all_of = [isinstance(part, str) and part.strip().lower() == "all" for part in parts]
    if not any(all_of):
        return entry
    others = [part for part, is_all in zip(parts, all_of, strict=True) if not is_all]
    return {**entry, "node_ranks": [*own, *others]}


def _hardware(value: Any, problems: list[Problem]) -> NodeHardwareConfig | None:
    if value is None or isinstance(value, NodeHardwareConfig):
        return value
    if not isinstance(value, Mapping):
        message = f"must be a mapping with type and configs, not {shown(value)}"
        problems.append(Problem(("hardware",), message))
        return None
    hardware, found = construct(NodeHardwareConfig, value)
    problems += [problem.under("hardware") for problem in found]
    return hardware


def _validate(
    model: type[M],
    value: Any,
    problems: list[Problem],
    context: Mapping[str, Any] | None = None,
) -> M | None:
    if not isinstance(value, Mapping):
        message = f"Each node yaml config must be a dictionary, not {shown(value)}"
        problems.append(Problem((), message))
        return None
    try:
        return model.model_validate({str(k): v for k, v in value.items()}, context=context)
    except ValidationError as error:
        problems += _problems(error, model)
        return None


def _problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    found: list[Problem] = []
    missing: list[str] = []
    for detail in error.errors(include_url=False):
        path = detail["loc"]
        if detail["type"] == "missing":
            missing.append(str(path[-1]))
        elif detail["type"] == "extra_forbidden":
            name = str(path[-1])
            message = (
                f"Unknown fields '{ {name} }' detected{did_you_mean(name, model.model_fields)}"
            )
            found.append(Problem(path, message, key=True))
        else:
            found.append(Problem(path, _message(detail)))
    if missing:
        found.insert(0, Problem((), f"Missing fields '{missing}' detected"))
    return found


def _message(detail: ErrorDetails) -> str:
    if detail["type"] == "shoal":
        return detail["msg"]
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, not {shown(detail['input'])}"
