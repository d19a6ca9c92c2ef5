"""The managers of a local cluster as plain objects, and the directory of its workers."""

import concurrent.futures
import inspect
import math
import threading
from collections.abc import Callable
from typing import Any

from shoal._backend import WorkerAddress
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ClusterNotFoundError
from shoal.loop import submit
from shoal.manager import (
    CollectiveGroupInfo,
    CollectiveManager,
    DeviceLockManager,
    Manager,
    NodeManager,
    PortLockManager,
    WorkerInfo,
    WorkerManager,
    unknown_group,
)
from shoal.net_emulation import NetEmulationManager
from shoal.tracing import Tracer
from shoal.work import AsyncWork

__all__ = ["LocalDirectory", "LocalManagers"]


class LocalManagers:
    """The managers of one local cluster; the methods that wait do so in the caller's thread.

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
        self.changed = threading.Condition()
        self.workers = CollectiveManager()
        workers = _LocalProxy(self.workers, self)
        count = sum(node.num_accelerators for node in nodes.get_nodes())
        self._proxies: dict[type[Manager], _LocalProxy | _LoopProxy] = {
            DeviceLockManager: _LoopProxy(DeviceLockManager(count)),
            PortLockManager: _LocalProxy(PortLockManager(), self),
            NodeManager: _LocalProxy(nodes, self),
            WorkerManager: workers,
            CollectiveManager: workers,
        }
        if tracer is not None:
            self._proxies[Tracer] = _LocalProxy(tracer, self)
        if links is not None:
            self._proxies[NetEmulationManager] = _LocalProxy(links, self)

    def __contains__(self, cls: type[Manager]) -> bool:
        return cls in self._proxies

    def proxy(self, cls: type[Manager]) -> Any:
        """Return the proxy of a manager.

        Raises:
            ClusterNotFoundError: A local cluster has no such manager.
        """
        found = self._proxies.get(cls)
        if found is None:
            raise ClusterNotFoundError(f"a local cluster has no {cls.MANAGER_NAME}")
        return found

    def release_locks(self, name: str) -> None:
        """Release the locks of a worker that has ended."""
        self.proxy(PortLockManager).release_all_ports(name)
        self.proxy(DeviceLockManager).release_all_devices(name)

    def wait_until(
        self, look: Callable[[], Any], describe: Callable[[], str], deadline: Deadline
    ) -> Any:
        """Wait until `look` returns something else than None; return None at the deadline."""
        wait = LongWait(describe, deadline)
        while True:
            with self.changed:
                found = look()
                if found is not None or deadline.expired:
                    return found
                seconds = wait.step()
                self.changed.wait(None if math.isinf(seconds) else seconds)
            wait.tick()

    def wait_for_worker(
        self,
        address: WorkerAddress,
        group: str | None,
        describe: Callable[[], str],
        deadline: Deadline,
    ) -> WorkerInfo | None:
        """Wait for a worker's record as `WorkerManager.wait_worker_info` does."""

        def look() -> WorkerInfo | bool | None:
            return self.workers.find_worker(address, group) or (
                self.workers.is_too_high(address) or None
            )

        found = self.wait_until(look, describe, deadline)
        return found if isinstance(found, WorkerInfo) else None


class _LocalProxy:
    """Calls a manager's methods, one at a time; has the interface of `ManagerProxy`."""

    def __init__(self, manager: Manager, managers: LocalManagers) -> None:
        self._manager = manager
        self._managers = managers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._manager, name, None)
        if name.startswith("_") or not callable(method):
            cls = type(self._manager).__name__
            raise AttributeError(f"{cls} has no public method {name!r}")
        if name == "wait_worker_info":
            return self._wait_worker_info
        if inspect.iscoroutinefunction(method):
            raise ClusterNotFoundError(f"a local cluster starts no actors: {name} needs Ray")

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._managers.changed:
                value = method(*args, **kwargs)
                self._managers.changed.notify_all()
                return value

        return call

    def _wait_worker_info(
        self, address: WorkerAddress, timeout: float | None = None, group: str | None = None
    ) -> Any:
        return self._managers.wait_for_worker(
            address,
            group,
            lambda: f"{describe_self()}: wait_worker_info waits for {address.get_name()}",
            Deadline(timeout),
        )


class _LoopProxy:
    """Calls a manager's methods on the background loop; has the interface of `ManagerProxy`.

    No caller's process is passed: all workers of a local cluster are one process.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def begin_call(
        self, method: str, /, *args: Any, **kwargs: Any
    ) -> "concurrent.futures.Future[Any]":
        """Call a method without waiting for it."""
        return submit(getattr(self._manager, method)(*args, **kwargs))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(type(self._manager), name, None)
        if name.startswith("_") or not inspect.iscoroutinefunction(method):
            cls = type(self._manager).__name__
            raise AttributeError(f"{cls} has no public method {name!r} that is a coroutine")

        def call(*args: Any, **kwargs: Any) -> Any:
            work = AsyncWork(self.begin_call(name, *args, **kwargs), name)
            try:
                return work.wait()
            except BaseException:
                work.cancel()
                raise

        return call


class LocalDirectory:
    """The `Directory` of the workers of a local cluster.

    Args:
        managers: The managers.
    """

    def __init__(self, managers: LocalManagers) -> None:
        self._managers = managers
        self._manager = managers.proxy(CollectiveManager)

    def wait_for(self, address: WorkerAddress, what: str, deadline: Deadline) -> WorkerInfo | None:
        """Return a worker's record as soon as it has registered, None if it does not."""

        def describe() -> str:
            hint = unknown_group(address.root_group_name, self.group_sizes())
            peer = f"{address.get_name()}, which is not registered yet" + (hint and f" ({hint})")
            return f"{describe_self()}: {what} waits for {peer}"

        return self._managers.wait_for_worker(address, None, describe, deadline)

    def group_sizes(self) -> dict[str, int | None]:
        """Return the number of ranks of each group, None if it is not known."""
        return self._managers.workers.get_group_sizes()

    def look_up(self, address: WorkerAddress) -> WorkerInfo | None:
        """Return a worker's record, None if it is not registered."""
        found: WorkerInfo | None = self._managers.workers.get_worker_info(address)
        return found

    def session(self, memory: str) -> str | None:
        """Return the token of the session of the workers with this memory, if there is one."""
        token: str | None = self._manager.get_session(memory)
        return token

    def offer_session(self, memory: str, token: str, instead_of: str | None) -> str:
        """Propose a session; return the token of the one to use."""
        agreed: str = self._manager.offer_session(memory, token, instead_of)
        return agreed

    def note_wait(self, waiter: str, number: int, peers: tuple[str, ...]) -> None:
        """Record that a worker waits for others."""
        self._manager.note_wait(waiter, number, peers)

    def end_wait(self, waiter: str, number: int) -> None:
        """Record that this wait has ended."""
        self._manager.end_wait(waiter, number)

    def wait_cycle(self, waiter: str, number: int) -> list[str]:
        """Return the workers through which a wait leads back to its waiter; empty for no cycle."""
        found: list[str] = self._manager.find_wait_cycle(waiter, number)
        return found

    def group(self, name: str, deadline: Deadline) -> CollectiveGroupInfo | None:
        """Return the record of a collective group, None if it is not registered."""
        del deadline
        found: CollectiveGroupInfo | None = self._manager.get_collective_group(name)
        return found

    def register_group(
        self, info: CollectiveGroupInfo, ended: CollectiveGroupInfo | None, deadline: Deadline
    ) -> None:
        """Record a collective group."""
        del deadline
        self._manager.register_collective_group(info, ended)

    def remove_group(self, info: CollectiveGroupInfo) -> None:
        """Remove this record of a collective group."""
        self._manager.remove_collective_group(info.group_name, info)
