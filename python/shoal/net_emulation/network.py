"""`EmulatedNetwork`: one process's view of the emulated links, and whether there are any."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal.config import NetEmulationConfig
from shoal.context import current, describe_self, env_value
from shoal.deadline import expect_event
from shoal.errors import ShoalError, ShoalTimeoutError
from shoal.fork import ChildStage, in_child
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
from shoal.process import own_process
from shoal.tracing.clock import Clock, Skew

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
_SLICE_S = 5.0
"""Maximum seconds between two looks at the clock during a wait."""

_log = logging.getLogger("shoal")


class EmulatedNetwork:
    """The emulated links of a job, in one process.

    Times are seconds of the manager's clock, so that they mean the same on all nodes.

    Args:
        config: The configuration of the job.
        manager: Returns the proxy of the manager, or the manager; None for the job's.
    """

    def __init__(
        self, config: NetEmulationConfig, manager: Callable[[], Any] | None = None
    ) -> None:
        self.table = LinkTable(config)
        self._manager = manager or _proxy
        self._clock = Clock(0)
        self._skew = Skew(self._clock, own_process().host, lambda: self._manager().get_clock())
        self._has_warned = False

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
            self._manager().note_endpoint(name, endpoint.keys)
        except ShoalError as error:  # the job goes on; a report at its end lacks this name
            _log.debug("the manager of the network emulation was not told of %s: %s", name, error)

    def now(self) -> float:
        """Return the time by the manager's clock, which the first call waits for.

        Raises:
            ShoalError: The manager has not told its clock yet, and does not answer.
        """
        skew = self._skew
        # A thread that has an estimate does not wait for another thread that asks again.
        if _asking.acquire(timeout=0.0 if skew.is_known else _ANSWER_S):
            try:
                skew.update()
            except ShoalError:
                if not skew.is_known:
                    raise
            finally:
                _asking.release()
        elif not skew.is_known:
            raise ShoalTimeoutError(
                f"{describe_self()}: {NetEmulationManager.MANAGER_NAME} has not told its clock within "
                f"{_ANSWER_S:g} s, so the time on an emulated link is not known"
            )
        return self._estimate()

    def now_at_once(self) -> float | None:
        """Return the time by the manager's clock; None if `now` would ask the manager, or wait."""
        skew = self._skew
        return self._estimate() if skew.is_known and not skew.is_due else None

    def _estimate(self) -> float:
        return (self._clock.now() + self._skew.nanoseconds) / 1e9

    def seconds(self, links: Sequence[Link], size: int) -> list[float]:
        """Book a message on links with one uplink; return the seconds until it arrives over each.

        Raises:
            ShoalError: The manager does not answer.
        """
        if any(link.is_limited for link in links):
            return list(self._manager().book([tuple(link) for link in links], size))
        return [link.delay_s for link in links]

    def arrivals(self, links: Sequence[Link], size: int) -> list[float]:
        """Book a message on links with one uplink, and return when it arrives over each."""
        seconds, now = self.seconds(links, size), self.now()
        return [now + one for one in seconds]

    def wait_until(self, arrival: float, ended: threading.Event | None = None) -> None:
        """Wait until a message arrives, or until `ended` is set.

        If the manager's clock is not known, the message arrives at once: it must not be lost.
        """
        while (left := self._left(arrival)) > 0:
            expect_event(left)
            step = min(left, _SLICE_S)
            if ended is None:
                time.sleep(step)
            elif ended.wait(step):
                return

    def _left(self, arrival: float) -> float:
        try:
            return arrival - self.now()
        except ShoalError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s: messages arrive without the delay of their emulated links: %s",
                    describe_self(), error,
                )  # fmt: skip
            return 0.0


def _proxy() -> Any:
    return NetEmulationManager.get_proxy(timeout=_ANSWER_S)


_asking = threading.Lock()  # held by the thread that asks a manager for its clock
_lock = threading.Lock()
_networks: dict[str, EmulatedNetwork | None] = {}


def use_network(config: NetEmulationConfig | None, namespace: str) -> None:
    """Set the network of a job for this process; None if the job emulates none."""
    with _lock:
        if config is None or not config.enabled:
            _networks[namespace] = None
        else:
            _networks[namespace] = EmulatedNetwork(config)


def forget_network(namespace: str) -> None:
    """Forget the network of a job that has ended."""
    with _lock:
        _networks.pop(namespace, None)


def emulated_network() -> EmulatedNetwork | None:
    """Return the network of this process's job; None if the job emulates none.

    A driver knows it from its configuration. A worker asks the job's manager, once, if its
    variable `SHOAL_NET_EMULATION` is `1`.
    """
    namespace = find_namespace()
    with _lock:
        if namespace in _networks:
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


def _begin_again() -> None:
    # A thread of the parent may have held them during the fork.
    global _asking, _lock
    _asking, _lock = threading.Lock(), threading.Lock()


in_child(ChildStage.RENEW, _begin_again)
