"""`NetEmulationConfig`: the slow links that a job emulates between its workers, channels and nodes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.config.ranks import parse_rank_config
from shoal.errors import ClusterConfigError
from shoal.nearest import did_you_mean
from shoal.problems import ArgumentsError, Problem, shown

__all__ = [
    "CHANNEL",
    "GROUP",
    "NODE",
    "BandwidthGroup",
    "CrossDCPair",
    "NetEmulationConfig",
    "read_net_emulation",
]

CHANNEL, GROUP, NODE = "channel/", "group/", "node:"
"""Beginnings of the endpoints that name a channel, a group of workers only, or nodes."""

_LISTS = ("crossdc_pairs", "bandwidth_groups")
_KEYS = ("enabled", "symmetric", *_LISTS)


@dataclass(frozen=True)
class CrossDCPair:
    """A link in one direction.

    Attributes:
        src: The endpoint that sends, `Name:rank`.
        dst: The endpoint that receives.
        delay_ms: Milliseconds that each message takes longer.
    """

    src: str
    dst: str
    delay_ms: float


@dataclass(frozen=True)
class BandwidthGroup:
    """Endpoints that share one uplink and one downlink.

    Attributes:
        members: The endpoints.
        bandwidth_mbps: Megabits per second (1,000,000 bits) of each of the two; 0 or less for no
            limit.
    """

    members: tuple[str, ...]
    bandwidth_mbps: float


@dataclass(frozen=True)
class NetEmulationConfig:
    """The `net_emulation` section of a configuration.

    Attributes:
        enabled: Whether the job emulates the links.
        symmetric: Whether each pair is a link in the other direction as well.
        crossdc_pairs: The links.
        bandwidth_groups: The limits of bandwidth; they hold for messages on the links only.
    """

    enabled: bool = False
    symmetric: bool = True
    crossdc_pairs: tuple[CrossDCPair, ...] = ()
    bandwidth_groups: tuple[BandwidthGroup, ...] = ()

    @classmethod
    def from_cfg(cls, cfg: Any) -> "NetEmulationConfig | None":
        """Read a `net_emulation` section.

        Args:
            cfg: The section: a mapping or an OmegaConf `DictConfig`.

        Returns:
            The configuration; None if `cfg` is not a mapping, or `enabled` is not true.

        Raises:
            ClusterConfigError: The section has problems; the error lists all. It is also a
                `KeyError` if a key is missing, and a `TypeError` if a list has no value.
        """
        if not isinstance(cfg, Mapping) or not cfg.get("enabled", False):
            return None
        found, problems = read_net_emulation(cfg)
        if problems:
            raise _error(problems)
        return found

    def endpoints(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield all endpoints, each with the path of its entry in the section."""
        for index, pair in enumerate(self.crossdc_pairs):
            yield ("crossdc_pairs", index, "src"), pair.src
            yield ("crossdc_pairs", index, "dst"), pair.dst
        for index, group in enumerate(self.bandwidth_groups):
            for member in group.members:
                yield ("bandwidth_groups", index, "members"), member


class _MissingKeyError(ArgumentsError, KeyError):
    """The error of a section in which a key is missing; callers may expect a `KeyError`."""

    __str__ = Exception.__str__


class _NoListError(ArgumentsError, TypeError):
    """The error of a section that has something else than a list."""


@dataclass(frozen=True)
class _Missing(Problem):
    """A key is missing."""


@dataclass(frozen=True)
class _NoList(Problem):
    """A value is not a list."""


def _error(problems: list[Problem]) -> ArgumentsError:
    kind = ArgumentsError
    if any(isinstance(problem, _Missing) for problem in problems):
        kind = _MissingKeyError
    elif any(isinstance(problem, _NoList) for problem in problems):
        kind = _NoListError
    return kind([problem.under("net_emulation") for problem in problems])


def read_net_emulation(cfg: Any) -> tuple[NetEmulationConfig | None, list[Problem]]:
    """Read a `net_emulation` section, also one that is not enabled.

    Returns:
        The configuration, or None if there are problems; and the problems.
    """
    if not isinstance(cfg, Mapping):
        return None, [Problem((), f"must be a mapping with {', '.join(_KEYS)}, not {shown(cfg)}")]
    problems = list(_unknown(cfg, _KEYS))
    enabled = _flag(cfg, "enabled", problems, default=False)
    symmetric = _flag(cfg, "symmetric", problems, default=True)
    pairs: list[CrossDCPair] = []
    groups: list[BandwidthGroup] = []
    for entry, path in _entries(cfg, _LISTS[0], ("src", "dst", "delay_ms"), problems):
        pairs += _pairs(entry, path, problems)
    for entry, path in _entries(cfg, _LISTS[1], ("members", "bandwidth_mbps"), problems):
        members = _endpoints(entry["members"], (*path, "members"), problems)
        rate = _number(entry["bandwidth_mbps"], (*path, "bandwidth_mbps"), problems, -math.inf)
        groups.append(BandwidthGroup(tuple(members), rate))
    if problems:
        return None, problems
    return NetEmulationConfig(enabled, symmetric, tuple(pairs), tuple(groups)), []


def _flag(cfg: Mapping[Any, Any], name: str, problems: list[Problem], *, default: bool) -> bool:
    value = cfg.get(name, default)
    if not isinstance(value, bool):
        problems.append(Problem((name,), f"must be true or false, not {shown(value)}"))
    return value is True


def _unknown(
    entry: Mapping[Any, Any], names: Sequence[str], path: tuple[str | int, ...] = ()
) -> Iterator[Problem]:
    for name in map(str, entry):
        if name not in names:
            message = f"Unknown fields '{ {name} }' detected{did_you_mean(name, names)}"
            yield Problem((*path, name), message, key=True)


def _entries(
    cfg: Mapping[Any, Any], name: str, keys: Sequence[str], problems: list[Problem]
) -> Iterator[tuple[Mapping[Any, Any], tuple[str | int, ...]]]:
    """Yield the complete entries of a list, each with its path."""
    listed = cfg.get(name, ())
    if not _is_list(listed):
        problems.append(_NoList((name,), f"must be a list, not {shown(listed)}"))
        return
    for index, entry in enumerate(listed):
        path = (name, index)
        if not isinstance(entry, Mapping):
            message = f"must be a mapping with {', '.join(keys)}, not {shown(entry)}"
            problems.append(Problem(path, message))
            continue
        problems += _unknown(entry, keys, path)
        missing = [key for key in keys if key not in entry]
        if missing:
            problems.append(_Missing(path, f"Missing fields '{missing}' detected"))
        else:
            yield entry, path


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _pairs(
    entry: Mapping[Any, Any], path: tuple[str | int, ...], problems: list[Problem]
) -> list[CrossDCPair]:
    sources = _endpoints(entry["src"], (*path, "src"), problems)
    targets = _endpoints(entry["dst"], (*path, "dst"), problems)
    delay = _number(entry["delay_ms"], (*path, "delay_ms"), problems, 0.0)
    return [CrossDCPair(src, dst, delay) for src in sources for dst in targets]


def _endpoints(value: Any, path: tuple[str | int, ...], problems: list[Problem]) -> list[str]:
    """Read `Name:ranks` or a list of these; return one endpoint for each rank."""
    given = [value] if isinstance(value, str) else value
    if not _is_list(given) or not given:
        message = f"{path[-1]} must be 'Name:ranks' or a list of these with at least one entry"
        problems.append(Problem(path, f"{message}, not {shown(value)}"))
        return []
    found: list[str] = []
    for entry in given:
        try:
            found += _expanded(entry)
        except ClusterConfigError as error:
            problems.append(Problem(path, f"{shown(entry)}: {error}"))
    return found


def _expanded(entry: Any) -> list[str]:
    if not isinstance(entry, str):
        raise ClusterConfigError("expected a text of the form 'Name:ranks'")
    if entry.startswith(CHANNEL):
        name = entry.removeprefix(CHANNEL).partition(":")[0]
        if not name.strip():
            raise ClusterConfigError(f"expected the name of a channel after {CHANNEL!r}")
        return [CHANNEL + name]
    name, colon, ranks = entry.partition(":")
    if not colon:
        raise ClusterConfigError(
            "not enough values to unpack: expected 'Name:ranks', such as 'Env:0-3', 'node:0' or "
            f"'{CHANNEL}Name'"
        )
    if not name.removeprefix(GROUP).strip():
        raise ClusterConfigError("expected the name of a group before the colon, such as 'Env:0-3'")
    return [f"{name}:{rank}" for rank in parse_rank_config(ranks)]


def _number(
    value: Any, path: tuple[str | int, ...], problems: list[Problem], least: float
) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or number < least:
        expected = "a number" if math.isinf(least) else f"a number, at least {least:g}"
        problems.append(Problem(path, f"must be {expected}, not {shown(value)}"))
        return 0.0
    return number
