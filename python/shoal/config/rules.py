"""The rules for values of a `cluster` section, beyond their types.

Each rule is defined once, here. The schema applies the rules to the values it reads and reports all
problems with their positions; the dataclasses apply them to the values passed to them directly.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from shoal.config.net_emulation import NODE, NetEmulationConfig
from shoal.config.ranks import parse_rank_config, show_ranks
from shoal.errors import ClusterConfigError
from shoal.hardware import Hardware, NodeHardwareConfig
from shoal.nearest import did_you_mean
from shoal.problems import ArgumentsError, Problem, shown

__all__ = [
    "EnvLike",
    "GroupConfigLike",
    "cluster_problems",
    "env_problems",
    "group_problems",
    "list_of_env_vars",
    "net_emulation_problems",
    "read_env_var",
    "read_env_vars",
    "read_interpreter",
    "read_label",
    "read_node_ranks",
    "read_num_nodes",
]

_RESERVED = ("cluster", "node")


class EnvLike(Protocol):
    """Environment variables and interpreter of some nodes."""

    node_ranks: list[int]
    env_vars: list[dict[str, str]] | None
    python_interpreter_path: str | None


class GroupConfigLike(Protocol):
    """The fields of a node group that are compared with those of other groups."""

    label: str
    node_ranks: list[int]
    hardware: NodeHardwareConfig | None


def read_num_nodes(value: Any) -> int:
    """Check and return a number of nodes."""
    if type(value) is not int or value <= 0:
        raise ClusterConfigError(f"'num_nodes' must be a positive integer, not {shown(value)}")
    return value


def read_label(value: Any) -> str:
    """Check the label of a group and return it as text; YAML may have made it a number."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise ClusterConfigError(f"a label must be a text, not {shown(value)}")
    label = str(value)
    if label in _RESERVED:
        raise ClusterConfigError(
            f"the label {label!r} is reserved: that group always exists; choose another"
        )
    if not label.strip() or "," in label or label != label.strip() or not label.isprintable():
        raise ClusterConfigError(
            "a label must not be empty, contain ',' or what cannot be printed, or have spaces "
            f"around it: {label!r}"
        )
    return label


def read_node_ranks(value: Any, nodes: Sequence[int] | None = None) -> list[int]:
    """Return the nodes that a text, a number or a list names.

    Args:
        value: The text, number or list.
        nodes: The nodes that exist; None to allow any.
    """
    try:
        ranks = parse_rank_config(value, nodes, "node")
    except ClusterConfigError as error:
        raise ClusterConfigError(f"Error parsing node_ranks: {error}") from None
    if not ranks:
        raise ClusterConfigError("Error parsing node_ranks: there are none")
    return ranks


def read_env_vars(value: Any) -> list[dict[str, str]] | None:
    """Check environment variables and return them, one mapping each."""
    listed = list_of_env_vars(value)
    if listed is None:
        return None
    read: list[dict[str, str]] = []
    for index, entry in enumerate(listed):
        try:
            read.append(read_env_var(entry))
        except ClusterConfigError as error:
            raise ArgumentsError([Problem((index,), str(error))]) from None
    return read


def list_of_env_vars(value: Any) -> list[Any] | None:
    """Return a value as the list it must be, without checking the variables in it."""
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ClusterConfigError(
            f"must be a list of one-key dictionaries (- NAME: value), not {shown(value)}"
        )
    return list(value)


def read_env_var(value: Any) -> dict[str, str]:
    """Check one environment variable and return it as `{name: text}`."""
    if not isinstance(value, Mapping):
        raise ClusterConfigError(
            f"Each node env_var must be a dict (- NAME: value), not {shown(value)}"
        )
    if len(value) != 1:
        raise ClusterConfigError(
            f"each entry must have exactly one key-value pair (- NAME: value), not {shown(dict(value))}"
        )
    ((key, text),) = value.items()
    name = str(key)
    if not name or "=" in name or "\0" in name:
        raise ClusterConfigError(f"the name of a variable must not be empty or hold '=': {name!r}")
    if isinstance(text, (Mapping, list, tuple)):
        raise ClusterConfigError(
            f"the value of {name!r} must be a text or a number, not {shown(text)}"
        )
    if "\0" in str(text):
        raise ClusterConfigError(f"the value of {name!r} must not hold a NUL")
    return {name: "" if text is None else str(text)}


def read_interpreter(value: Any) -> str | None:
    """Check and return the path of an interpreter."""
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ClusterConfigError(f"must be the path of a Python interpreter, not {shown(value)}")
    return value


def env_problems(env: EnvLike) -> Iterator[Problem]:
    """Yield a problem for each environment variable that one entry sets twice."""
    first: dict[str, int] = {}
    for index, entry in enumerate(env.env_vars or ()):
        for name in entry:
            if name in first:
                yield Problem(
                    ("env_vars", index),
                    f"the variable {name!r} is duplicated, first in env_vars[{first[name]}]",
                )
            first.setdefault(name, index)


def group_problems(
    node_ranks: Sequence[int],
    envs: Sequence[EnvLike],
    hardware: NodeHardwareConfig | None,
    hardware_type: str | None,
    ignore_hardware: bool,
) -> Iterator[Problem]:
    """Yield the contradictions within a group.

    Args:
        node_ranks: Its nodes; empty if they could not be read.
        envs: Its environment variables and interpreters.
        hardware: Its own hardware.
        hardware_type: The type of hardware that its ranks count.
        ignore_hardware: Whether to use its nodes as if they had no hardware.
    """
    own = set(node_ranks)
    seen: dict[int, int] = {}
    for index, env in enumerate(envs):
        path = ("env_configs", index)
        if own and (outside := sorted(set(env.node_ranks) - own)):
            yield Problem(
                (*path, "node_ranks"),
                f"must be a subset of the group's node_ranks ({show_ranks(node_ranks)}); "
                f"outside it: {show_ranks(outside)}",
            )
        yield from _overlap(envs, index, seen)
        seen |= {rank: index for rank in env.node_ranks if rank not in seen}
    yield from _hardware_problems(own, hardware, hardware_type)
    if ignore_hardware and (hardware is not None or hardware_type is not None):
        given = "hardware" if hardware is not None else "hardware_type"
        yield Problem(
            ("ignore_hardware",),
            f"must not be set together with {shown(given)}: leave one of them out",
        )


def _overlap(envs: Sequence[EnvLike], index: int, seen: Mapping[int, int]) -> Iterator[Problem]:
    """Yield the problems of an entry that names the same nodes as an earlier entry."""
    env = envs[index]
    twice = [rank for rank in env.node_ranks if rank in seen]
    if not twice:
        return
    other = envs[seen[twice[0]]]
    first = f"env_configs[{seen[twice[0]]}]"
    yield Problem(
        ("env_configs", index, "node_ranks"),
        f"the node ranks {show_ranks(twice)} are duplicated in this group, first in {first}",
    )
    path, before = env.python_interpreter_path, other.python_interpreter_path
    if path and before and path != before:
        yield Problem(
            ("env_configs", index, "python_interpreter_path"),
            f"node {twice[0]} has another interpreter already, {before!r} in {first}",
        )


def _hardware_problems(
    own: set[int], hardware: NodeHardwareConfig | None, hardware_type: str | None
) -> Iterator[Problem]:
    if hardware is not None:
        for index, config in enumerate(hardware.configs):
            if own and config.node_rank not in own:
                yield Problem(
                    ("hardware", "configs", index, "node_rank"),
                    f"must be within node_ranks of the group ({show_ranks(sorted(own))}), "
                    f"not {config.node_rank}",
                )
        if hardware_type not in (None, hardware.type):
            yield Problem(
                ("hardware_type",),
                f"must not be given together with 'hardware', whose type is {hardware.type!r}: "
                "leave it out",
            )
    elif hardware_type is not None:
        known = {**Hardware.policy_registry, **NodeHardwareConfig.hardware_config_registry}
        if hardware_type not in known:
            hint = did_you_mean(str(hardware_type), known) or (
                "; a model, such as H100, cannot be chosen here: list in node_ranks only the nodes "
                "that have it"
            )
            yield Problem(
                ("hardware_type",),
                f"Unsupported hardware type {hardware_type!r}; expected "
                f"{', '.join(sorted(known))}{hint}",
            )


def cluster_problems(
    num_nodes: int | None, groups: Sequence[GroupConfigLike | None]
) -> Iterator[Problem]:
    """Yield the contradictions between groups, and between a group and the number of nodes.

    Args:
        num_nodes: Number of nodes of the job; None if it could not be read.
        groups: The groups; None for each that could not be read.
    """
    labels: dict[str, int] = {}
    owners: dict[tuple[int, str], int] = {}
    for index, group in enumerate(groups):
        if group is None:
            continue
        path = ("node_groups", index)
        if group.label in labels:
            yield Problem(
                (*path, "label"),
                f"the label {group.label!r} is duplicated, first in "
                f"node_groups[{labels[group.label]}]",
            )
        labels.setdefault(group.label, index)
        if num_nodes is not None:
            try:
                read_node_ranks(group.node_ranks, range(num_nodes))
            except ClusterConfigError as error:
                yield Problem((*path, "node_ranks"), str(error))
        if group.hardware is not None:
            yield from _owner_problems(num_nodes, group.hardware, index, owners)


def _owner_problems(
    num_nodes: int | None,
    hardware: NodeHardwareConfig,
    group: int,
    owners: dict[tuple[int, str], int],
) -> Iterator[Problem]:
    path = ("node_groups", group, "hardware")
    for index, config in enumerate(hardware.configs):
        owner = owners.setdefault((config.node_rank, hardware.type), group)
        if owner != group:
            yield Problem(
                (*path, "configs", index),
                f"Cannot have multiple hardware configs of type {hardware.type!r} for node "
                f"{config.node_rank}: node_groups[{owner}] has one",
            )
        for name, value in vars(config).items():
            elsewhere = name.endswith("_node_rank") and type(value) is int
            if elsewhere and num_nodes is not None and not 0 <= value < num_nodes:
                yield Problem(
                    (*path, "configs", index, name),
                    f"node {value} does not exist; expected {show_ranks(range(num_nodes))}",
                )


def net_emulation_problems(
    num_nodes: int | None, emulation: NetEmulationConfig | None
) -> Iterator[Problem]:
    """Yield the problems of the nodes between which links are emulated."""
    if emulation is None or num_nodes is None:
        return
    known = range(num_nodes)
    told: set[tuple[str | int, ...]] = set()
    for path, endpoint in emulation.endpoints():
        rank = endpoint.removeprefix(NODE)
        if not endpoint.startswith(NODE) or not rank.isdecimal() or int(rank) in known:
            continue
        if (path[0], rank) in told:
            continue
        told.add((path[0], rank))
        message = f"{endpoint!r} does not exist; expected nodes among {show_ranks(known)}"
        yield Problem(("net_emulation", path[0]), message)
