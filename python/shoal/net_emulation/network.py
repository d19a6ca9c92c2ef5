"""`EmulatedNetwork`: one process's view of the emulated links, and whether there are any."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shoal.config import NetEmulationConfig
from shoal.context import current, env_value
from shoal.errors import ShoalError
from shoal.manager import NodeManager
from shoal.manager.base import find_namespace
from shoal.net_emulation.links import (
    Endpoint,
    Link,
    LinkTable,
    channel_endpoint,
    worker_endpoint,
)
from shoal.net_emulation.manager import NetEmulationManager

__all__ = [
    "VARIABLE",
    "EmulatedNetwork",
    "emulated_network",
    "forget_network",
    "use_network",
    "warn_of_unknown",
]

VARIABLE = "NET_EMULATION"
"""Name, after `SHOAL_`, of the variable that tells a worker whether its job emulates links."""

_ANSWER_S = 30.0
"""Maximum seconds for an answer of the manager."""

_log = logging.getLogger("shoal")


class EmulatedNetwork:
    """The emulated links of a job, in one process.

    Args:
        config: The configuration of the job.
        manager: Returns the proxy of the manager, or the manager; None for the job's.
    """

    def __init__(
        self, config: NetEmulationConfig, manager: Callable[[], Any] | None = None
    ) -> None:
        self.table = LinkTable(config)
        self._manager = manager or _proxy

    def own(self) -> Endpoint:
        """Return the endpoint of this process, or of the scope that this code runs in."""
        context = current()
        return worker_endpoint(context.name, context.node_rank)

    def channel(self, name: str, index: int, node_rank: int) -> Endpoint | None:
        """Return the endpoint of a channel's actor; None if no link begins or ends there."""
        endpoint = channel_endpoint(name, index, node_rank)
        if self.table.has_source(endpoint) or self.table.has_target(endpoint):
            return endpoint
        return None

    def note(self, name: str, endpoint: Endpoint) -> None:
        """Tell the manager that a worker or channel exists."""
        try:
            self._manager().note_endpoint(name, endpoint)
        except ShoalError as error:  # the job goes on; a report at its end lacks this name
            _log.debug("the manager of the network emulation was not told of %s: %s", name, error)

    def seconds(self, links: Sequence[Link], size: int) -> list[float]:
        """Book a message on links with one uplink; return the seconds until it arrives over each.

        Raises:
            ShoalError: The manager does not answer.
        """
        if any(link.is_limited for link in links):
            return list(self._manager().book([tuple(link) for link in links], size))
        return [link.delay_s for link in links]


def _proxy() -> Any:
    return NetEmulationManager.get_proxy(timeout=_ANSWER_S)


_networks: dict[str, EmulatedNetwork | None] = {}


def use_network(config: NetEmulationConfig | None, namespace: str) -> None:
    """Set the network of a job for this process; None if the job emulates none."""
    if config is not None and config.enabled:
        _networks[namespace] = EmulatedNetwork(config)
    else:
        _networks[namespace] = None


def forget_network(namespace: str) -> None:
    """Forget the network of a job that has ended."""
    _networks.pop(namespace, None)


def emulated_network() -> EmulatedNetwork | None:
    """Return the network of this process's job; None if the job emulates none.

    A driver knows it from its configuration. A worker asks the job's manager, once, if its
    variable `SHOAL_NET_EMULATION` is `1`.
    """
    namespace = find_namespace()
    with suppress(KeyError):
        return _networks[namespace]
    if not namespace or env_value(VARIABLE) != "1":
        return None
    config = NodeManager.get_proxy(timeout=_ANSWER_S).get_cluster_cfg()
    use_network(None if config is None else config.net_emulation, namespace)
    return _networks[namespace]


def warn_of_unknown(manager: Any) -> None:
    """Log each endpoint of the configuration that nothing in the job had; called at its end."""
    try:
        for sentence in manager.find_unknown():
            _log.warning("%s", sentence)
    except ShoalError as error:
        _log.debug("the manager of the network emulation did not answer: %s", error)
