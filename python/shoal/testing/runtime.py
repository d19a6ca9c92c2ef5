"""`LocalRuntime`: the part of Ray's interface that shoal uses, for actors of this process."""

import concurrent.futures
import logging
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ray.exceptions import GetTimeoutError, RayTaskError

from shoal.manager import Manager, NodeManager
from shoal.net_emulation import NetEmulationManager
from shoal.testing import timing
from shoal.testing.actors import LocalActor, LocalRef, Watch
from shoal.testing.channels import LocalChannels
from shoal.testing.directory import LocalDirectory, LocalManagers
from shoal.tracing import Tracer

__all__ = ["IP", "LocalRuntime"]

IP = "127.0.0.1"
"""Address of every node of a local cluster that does not name one."""

_log = logging.getLogger("shoal")


class LocalRuntime:
    """The actors, managers and channels of one local cluster.

    Args:
        nodes: The manager of the nodes.
        tracer: The manager of the trace; None if the cluster is not traced.
        links: The manager of the emulated links; None if there are none.
    """

    def __init__(
        self,
        nodes: NodeManager,
        tracer: Tracer | None = None,
        links: NetEmulationManager | None = None,
    ) -> None:
        self.watch = Watch()
        self.managers = LocalManagers(nodes, tracer, links)
        self.directory = LocalDirectory(self.managers)
        self.actors: dict[str, LocalActor] = {}
        self.names: set[str] = set()
        self.channels = LocalChannels(nodes.num_nodes(), self.is_group)
        self.util = SimpleNamespace(get_node_ip_address=lambda: IP)
        self._connected = True

    def add(self, actor: LocalActor, name: str) -> None:
        """Make an actor known by its name."""
        self.actors[name] = actor
        self.names.add(name)

    def is_group(self, name: str) -> bool:
        """Whether a name belongs to a worker group."""
        return f"{name}:0" in self.actors

    def manager(self, cls: type[Manager]) -> Any:
        """Return the proxy of a manager."""
        return self.managers.proxy(cls)

    def shutdown(self) -> None:
        """End all actors and channels."""
        for actor in list(self.actors.values()):
            self.kill(actor)
        self.channels.close()
        self._connected = False

    # The interface of Ray.

    ObjectRef = LocalRef

    def is_initialized(self) -> bool:
        """Whether the cluster has not ended."""
        return self._connected

    def get_actor(self, name: str, namespace: str | None = None) -> LocalActor:
        """Return the actor of a name.

        Raises:
            ValueError: There is none.
        """
        del namespace
        found = self.actors.get(name)
        if found is None:
            raise ValueError(f"Failed to look up actor with name {name!r}")
        return found

    def kill(self, actor: LocalActor) -> None:
        """End an actor and free its name."""
        name = actor._shoal_name  # noqa: SLF001  (the actor's other names are the user's methods)
        is_known = self.actors.get(name) is actor
        if is_known:
            del self.actors[name]
        actor._shoal_kill()  # noqa: SLF001  (as above)
        if not actor._shoal_join(timing.TIMING.end_s):  # noqa: SLF001  (as above)
            _log.warning(
                "%s still runs after it was ended: a thread cannot be killed, and this one neither "
                "returns nor waits in shoal",
                name,
            )
        if is_known:
            self.managers.release_locks(name)

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        """Return the reply of a call, or the replies of several.

        Raises:
            GetTimeoutError: Not all are there in time.
        """
        wanted: list[LocalRef] = refs if isinstance(refs, list) else [refs]
        futures = [ref.future() for ref in wanted]
        if concurrent.futures.wait(futures, _seconds(timeout)).not_done:
            raise GetTimeoutError(f"no reply within {timeout} s")
        try:
            values = [future.result() for future in futures]
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        return values if isinstance(refs, list) else values[0]

    def wait(
        self, refs: Sequence[LocalRef], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[LocalRef], list[LocalRef]]:
        """Wait until some calls have ended; return those that have, and the others."""
        futures = [ref.future() for ref in refs]
        when = concurrent.futures.ALL_COMPLETED
        if num_returns < len(futures):
            when = concurrent.futures.FIRST_COMPLETED
        concurrent.futures.wait(futures, _seconds(timeout), when)
        ready = [ref for ref in refs if ref.future().done()][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None or math.isinf(timeout) else timeout
