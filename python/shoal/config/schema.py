"""The check of a `cluster` section; the only place that knows pydantic."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from shoal.config.document import Document
from shoal.config.model import ClusterConfig, NodeGroupConfig, NodeGroupEnvConfig
from shoal.config.ranks import parse_rank_config
from shoal.errors import ClusterConfigError
from shoal.nearest import did_you_mean

__all__ = ["check"]

_RESERVED = ("cluster", "node")


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("shoal", "{message}", {"message": message})


def _num_nodes(value: object) -> object:
    if type(value) is not int or value <= 0:
        raise _wrong(f"'num_nodes' must be a positive integer, not {value!r}")
    return value


def _label(value: object) -> str:
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise _wrong(f"a label must be a text, not {value!r}")
    label = str(value)
    if label in _RESERVED:
        raise _wrong(f"the label {label!r} is reserved: that group always exists; choose another")
    if not label.strip() or "," in label:
        raise _wrong(f"a label must not be empty or contain ',': {label!r}")
    return label


def _ranks(value: Any, info: ValidationInfo) -> list[int]:
    available = (info.context or {}).get("nodes")
    try:
        ranks = parse_rank_config(value, available, "node")
    except ClusterConfigError as error:
        raise _wrong(f"Error parsing node_ranks: {error}") from None
    if not ranks:
        raise _wrong("Error parsing node_ranks: there are none")
    return ranks


def _mapping(value: object) -> object:
    if not isinstance(value, Mapping):
        raise _wrong(f"Each node yaml config must be a dictionary, not {value!r}")
    return dict(value)


def _env_vars(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise _wrong(f"must be a list of one-key dictionaries (- NAME: value), not {value!r}")
    entries: dict[str, str] = {}
    for entry in value:
        if not isinstance(entry, Mapping):
            raise _wrong(f"Each node env_var must be a dict (- NAME: value), not {entry!r}")
        if len(entry) != 1:
            raise _wrong(f"each entry must have exactly one key-value pair, not {dict(entry)!r}")
        (key, text), *_ = entry.items()
        if str(key) in entries:
            raise _wrong(f"the variable {str(key)!r} is duplicated")
        if isinstance(text, (Mapping, list)):
            raise _wrong(f"the value of {str(key)!r} must be a text or a number, not {text!r}")
        entries[str(key)] = "" if text is None else str(text)
    return [{key: text} for key, text in entries.items()]


def _later(value: object) -> None:
    if value is not None:
        raise _wrong("is not supported by this version of shoal; leave it out")


def _placements(value: object) -> object:
    if isinstance(value, Mapping):
        return [{str(key): entry} for key, entry in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        for entry in value:
            if not isinstance(entry, Mapping):
                raise _wrong(f"each entry must be a mapping (component: ranks), not {entry!r}")
        return [{str(key): entry for key, entry in mapping.items()} for mapping in value]
    raise _wrong(f"must be a mapping of components to ranks, not {value!r}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Env(_Strict):
    node_ranks: Annotated[list[int], BeforeValidator(_ranks)]
    env_vars: Annotated[list[dict[str, str]] | None, BeforeValidator(_env_vars)] = None
    python_interpreter_path: str | None = None


class _Group(_Strict):
    label: Annotated[str, BeforeValidator(_label)]
    node_ranks: Annotated[list[int], BeforeValidator(_ranks)]
    env_configs: list[Annotated[_Env, BeforeValidator(_mapping)]] | None = None
    hardware: Annotated[Any, BeforeValidator(_later)] = None
    hardware_type: Annotated[Any, BeforeValidator(_later)] = None
    ignore_hardware: bool = False


class _Cluster(_Strict):
    num_nodes: Annotated[int, BeforeValidator(_num_nodes)]
    component_placement: Annotated[list[dict[str, Any]], BeforeValidator(_placements)]
    node_groups: list[Any] | None = None
    profiling: Annotated[Any, BeforeValidator(_later)] = None


def check(document: Document) -> ClusterConfig:
    """Check a section and return it as dataclasses.

    Args:
        document: The configuration that has it.

    Raises:
        ClusterConfigError: It has problems; all of them, each with its path.
    """
    section, name = document.section, document.name
    problems: list[str] = []
    known = {key: value for key, value in section.items() if key in _Cluster.model_fields}
    _warn_of_unknown(section, name)
    cluster: _Cluster | None = None
    try:
        cluster = _Cluster.model_validate(known)
    except ValidationError as error:
        problems += _problems(error, "cluster", _Cluster)
    groups = _groups(known, problems)
    if problems or cluster is None:
        noun = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        raise ClusterConfigError(f"{name} has {noun}:\n{lines}", problems=problems)
    return ClusterConfig(
        num_nodes=cluster.num_nodes,
        component_placement=cluster.component_placement,
        node_groups=groups if cluster.node_groups is not None else None,
    )


def _warn_of_unknown(section: Mapping[str, Any], name: str) -> None:
    unknown = [key for key in section if key not in _Cluster.model_fields]
    if unknown:
        listed = ", ".join(f"{key!r}{did_you_mean(key, _Cluster.model_fields)}" for key in unknown)
        warnings.warn(f"{name}: cluster: ignored unknown keys: {listed}", stacklevel=5)


def _groups(known: Mapping[str, Any], problems: list[str]) -> list[NodeGroupConfig]:
    raw = known.get("node_groups")
    num_nodes = known.get("num_nodes")
    valid = type(num_nodes) is int and num_nodes > 0
    context = {"nodes": list(range(num_nodes)) if valid and num_nodes is not None else None}
    groups: list[NodeGroupConfig] = []
    for index, entry in enumerate(raw if isinstance(raw, (list, tuple)) else []):
        path = f"cluster.node_groups[{index}]"
        try:
            group = _Group.model_validate(_mapping(entry), context=context)
        except PydanticCustomError as error:
            problems.append(f"{path}: {error}")
            continue
        except ValidationError as error:
            problems += _problems(error, path, _Group)
            continue
        if any(group.label == other.label for other in groups):
            problems.append(f"{path}.label: the label {group.label!r} is duplicated")
        problems += _env_problems(group, path)
        groups.append(_to_group(group))
    return groups


def _env_problems(group: _Group, path: str) -> list[str]:
    problems = []
    seen: set[int] = set()
    for index, env in enumerate(group.env_configs or []):
        where = f"{path}.env_configs[{index}].node_ranks"
        if outside := sorted(set(env.node_ranks) - set(group.node_ranks)):
            problems.append(
                f"{where}: must be a subset of the group's node_ranks; {outside} are not in it"
            )
        if twice := sorted(seen & set(env.node_ranks)):
            problems.append(f"{where}: the node ranks {twice} are duplicated in this group")
        seen |= set(env.node_ranks)
    return problems


def _to_group(group: _Group) -> NodeGroupConfig:
    envs = group.env_configs
    return NodeGroupConfig(
        label=group.label,
        node_ranks=group.node_ranks,
        env_configs=None
        if envs is None
        else [
            NodeGroupEnvConfig(env.node_ranks, env.env_vars, env.python_interpreter_path)
            for env in envs
        ],
        ignore_hardware=group.ignore_hardware,
    )


def _problems(error: ValidationError, root: str, model: type[BaseModel]) -> list[str]:
    details = error.errors(include_url=False)
    lines: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    for detail in details:
        *parents, last = detail["loc"] or ("",)
        parent = root + _join(parents)
        if detail["type"] == "missing":
            missing.setdefault(parent, []).append(str(last))
        elif detail["type"] == "extra_forbidden":
            fields = _Env.model_fields if "env_configs" in parents else model.model_fields
            unknown = {str(last)}
            lines.setdefault(parent, []).append(
                f"Unknown fields '{unknown}' detected{did_you_mean(str(last), fields)}"
            )
        else:
            lines.setdefault(root + _join(detail["loc"]), []).append(_message(detail))
    for parent, names in missing.items():
        lines.setdefault(parent, []).append(f"Missing fields '{names}' detected")
    return [f"{path}: {message}" for path, messages in lines.items() for message in messages]


def _message(detail: ErrorDetails) -> str:
    if detail["type"] == "shoal":
        return detail["msg"]
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}, not {detail['input']!r}"


def _join(loc: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
