"""`LinkTable`: which link of the configuration a message takes, and whose bandwidth it uses."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shoal.config import NetEmulationConfig
from shoal.config.net_emulation import CHANNEL, GROUP, NODE

__all__ = ["Endpoint", "Link", "LinkTable", "channel_endpoint", "normalized", "worker_endpoint"]

_SUFFIX = "Group"
_ANY = "*"


Endpoint = tuple[str, ...]
"""The sender or the receiver of a message: its names in the configuration, the most specific first."""


class Link(NamedTuple):
    """A link of the configuration.

    Attributes:
        delay_s: Seconds that a message takes longer.
        uplink: The number of the sender's bandwidth group; None for no limit.
        downlink: The number of the receiver's bandwidth group; None for no limit.
    """

    delay_s: float
    uplink: int | None
    downlink: int | None

    @property
    def is_limited(self) -> bool:
        """Whether its bandwidth is limited, so that messages share it."""
        return self.uplink is not None or self.downlink is not None


def normalized(endpoint: str) -> str:
    """Return an endpoint as the table knows it: without one `Group` at the end of the name."""
    if endpoint.startswith((CHANNEL, NODE)):
        return endpoint
    kind = GROUP if endpoint.startswith(GROUP) else ""
    name, colon, rank = endpoint.removeprefix(kind).partition(":")
    return f"{kind}{name.removesuffix(_SUFFIX)}{colon}{rank}"


def worker_endpoint(name: str, node_rank: int = -1) -> Endpoint:
    """Return the endpoint of a worker.

    Args:
        name: Its address; a worker below another counts as that one. `driver` for a driver.
        node_rank: The rank of its node; -1 if it is not known.
    """
    group, _, path = name.partition(":")
    rank = path.partition(":")[0] or "0"
    plain = normalized(f"{group}:{rank}")
    return GROUP + plain, plain, *_node_endpoint(node_rank)


def channel_endpoint(name: str, index: int = 0, node_rank: int = -1) -> Endpoint:
    """Return the endpoint of an actor of a channel.

    Args:
        name: The channel.
        index: The index of the actor.
        node_rank: The rank of the actor's node; -1 if it is not known.
    """
    plain = normalized(f"{name}:{index}")
    any_rank = f"{plain.partition(':')[0]}:{_ANY}"
    return CHANNEL + name, plain, any_rank, *_node_endpoint(node_rank)


def _node_endpoint(node_rank: int) -> Endpoint:
    return (f"{NODE}{node_rank}",) if node_rank >= 0 else ()


class LinkTable:
    """The links of a configuration, by their endpoints.

    A later pair, or bandwidth group, replaces an earlier one for the same endpoints.

    Args:
        config: The configuration.

    Attributes:
        rates: Bytes per second of each bandwidth group, by its number.
    """

    def __init__(self, config: NetEmulationConfig) -> None:
        self._links: dict[tuple[str, str], tuple[float, str, str]] = {}
        for pair in config.crossdc_pairs:
            source, target = normalized(pair.src), normalized(pair.dst)
            delay_s = pair.delay_ms / 1000
            self._links[source, target] = (delay_s, source, target)
            if config.symmetric:
                self._links[target, source] = (delay_s, target, source)
        self._add_any_rank()
        self._groups: dict[str, int] = {}
        self.rates: list[float] = []
        for number, group in enumerate(config.bandwidth_groups):
            self.rates.append(group.bandwidth_mbps * 1e6 / 8)
            for member in group.members:
                self._groups[normalized(member)] = number
        self._sources = {source for source, _ in self._links}
        self._targets = {target for _, target in self._links}
        self.names = {normalized(endpoint) for _, endpoint in config.endpoints()}
        """All endpoints of the configuration."""

    def _add_any_rank(self) -> None:
        """Add the links of channels that have the name of a group: the shortest to any rank."""
        for (source, target), link in list(self._links.items()):
            for key in ((source, _any_rank(target)), (_any_rank(source), target)):
                found = self._links.get(key)
                if found is None or link[0] < found[0]:
                    self._links[key] = link

    def find(self, source: Endpoint, target: Endpoint) -> Link | None:
        """Return the link from one endpoint to another; None if messages pass at once."""
        for one in source:
            for other in target:
                found = self._links.get((one, other))
                if found is not None:
                    delay_s, *ends = found
                    up, down = (
                        self._group_of((end, *endpoint))
                        for end, endpoint in zip(ends, (source, target), strict=True)
                    )
                    return Link(delay_s, up, down)
        return None

    def has_source(self, endpoint: Endpoint) -> bool:
        """Whether any link begins at an endpoint."""
        return not self._sources.isdisjoint(endpoint)

    def has_target(self, endpoint: Endpoint) -> bool:
        """Whether any link ends at an endpoint."""
        return not self._targets.isdisjoint(endpoint)

    def used(self, endpoint: Iterable[str]) -> Iterator[str]:
        """Yield the endpoints of the configuration that mean this one."""
        for key in endpoint:
            name = key.removesuffix(_ANY)
            yield from (known for known in self.names if known == key)
            if name != key:
                yield from (known for known in self.names if known.startswith(name))

    def _group_of(self, keys: tuple[str, ...]) -> int | None:
        """Return the number of the first limited bandwidth group that has one of the keys."""
        for key in keys:
            number = self._groups.get(key)
            if number is not None:
                return number if self.rates[number] > 0 else None
        return None


def _any_rank(key: str) -> str:
    if key.startswith((CHANNEL, GROUP, NODE)):
        return key
    return f"{key.partition(':')[0]}:{_ANY}"
