"""Notices the end of processes for a manager, also of those on other nodes.

A process of the manager's own machine is watched from there. For a process of another node, an
actor is started on that node when it is first needed, and watches there.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorUnavailableError

from shoal._ray import LOST, aget, find_actor
from shoal.deadline import Deadline
from shoal.errors import ClusterNotFoundError, NameTakenError, PeerLostError, TransportError
from shoal.manager import timing
from shoal.manager.base import Caller
from shoal.manager.node_manager import NodeManager
from shoal.process import ProcessId, is_running, own_process, wait_for_exit

__all__ = ["ProcessWatch", "ProcessWatches"]

_log = logging.getLogger("shoal")


class ProcessWatch:
    """The actor that watches the processes of its node."""

    async def ping(self) -> None:
        """Answer."""

    async def is_running(self, process: ProcessId) -> bool:
        """Return whether a process of this node runs.

        Raises:
            TransportError: The process is not on this machine, or is in another pid namespace.
        """
        own = own_process()
        if process.host != own.host:
            raise TransportError(
                f"process {process.pid} cannot be watched from its node: it runs in another pid "
                "namespace than Ray's processes there"
            )
        return is_running(process)

    async def watch(self, process: ProcessId) -> None:
        """Return when a process of this node has ended; raises like `is_running`."""
        if await self.is_running(process):
            await wait_for_exit(process.pid)


class ProcessWatches:
    """The processes that a manager watches.

    Args:
        namespace: The job's namespace; empty if the manager is not an actor. Then only processes of
            this machine can be watched.
        find: Returns an actor by its name and namespace.
    """

    def __init__(self, namespace: str = "", find: Callable[[str, str], Any] = find_actor) -> None:
        self._namespace = namespace
        self._find = find
        self._here = ProcessWatch()
        self._actors: dict[int, Any] = {}
        self._tasks: dict[Any, asyncio.Task[None]] = {}

    def call_at_end(
        self, caller: Caller, function: Callable[[ProcessId], None], owner: str
    ) -> None:
        """Call a function once when a process has ended; nothing if that is arranged already.

        Args:
            caller: The process.
            function: Releases what the process holds.
            owner: Names the process, for the log.
        """
        key = (caller.process, function)
        if key not in self._tasks and caller.process != own_process():
            watch = self._call_at_end(caller, function, owner)
            self._tasks[key] = asyncio.get_running_loop().create_task(watch)

    async def _call_at_end(
        self, caller: Caller, function: Callable[[ProcessId], None], owner: str
    ) -> None:
        logged = False
        while True:
            try:
                await self.ended(caller)
                break
            except Exception as error:  # noqa: BLE001  (without this task nothing is ever released)
                if not logged:
                    logged = True
                    _log.warning(
                        "%s: its death cannot be noticed, and would not release what it holds: "
                        "%s: %s; this is tried again every %g s",
                        owner, type(error).__name__, error, timing.TIMING.retry_s,
                    )  # fmt: skip
            await asyncio.sleep(timing.TIMING.retry_s)
        del self._tasks[caller.process, function]
        function(caller.process)

    async def ended(self, caller: Caller) -> None:
        """Return when a process has ended, or when its node is lost.

        Raises:
            ShoalError: The process cannot be watched.
            RayError: Ray failed.
        """
        if caller.process.host == own_process().host:
            await self._here.watch(caller.process)
            return
        while True:
            actor = await self._actor(caller.node_rank)
            try:
                await actor.watch.remote(caller.process)
            except ActorUnavailableError:
                await asyncio.sleep(timing.TIMING.watch_again_s)  # Ray starts the actor again
            except LOST:
                return  # Ray would start the actor again if its node were alive
            else:
                return

    async def is_running(self, caller: Caller, deadline: Deadline) -> bool:
        """Return whether a process runs; False if its node is lost.

        Raises:
            ShoalError: The process cannot be watched.
            ShoalTimeoutError: Its node does not answer.
        """
        if caller.process.host == own_process().host:
            return is_running(caller.process)
        actor = await self._actor(caller.node_rank)
        what, node = "asking for a process", f"node {caller.node_rank}"
        try:
            running: bool = await aget(
                actor.is_running.remote(caller.process), deadline, lambda: what, node
            )
        except PeerLostError:
            return False
        return running

    async def _actor(self, node_rank: int) -> Any:
        """Return the actor of a node; starts it if there is none.

        Raises:
            ClusterNotFoundError: This manager belongs to no job, the node is not known, or the
                actor ended at once.
        """
        actor = self._actors.get(node_rank)
        if actor is not None:
            return actor
        loop = asyncio.get_running_loop()
        manager = None
        if self._namespace and node_rank >= 0:
            # In a thread, because finding an actor blocks.
            name = NodeManager.MANAGER_NAME
            manager = await loop.run_in_executor(None, self._find, name, self._namespace)
        if manager is None:
            raise ClusterNotFoundError(
                f"a process of another machine, on node {node_rank} of the job "
                f"{self._namespace!r}, cannot be watched from here"
            )
        name = f"shoal-watch-{node_rank}"
        deadline = Deadline(timing.TIMING.start_s)
        start = manager.start_host.remote(
            name, ProcessWatch, node_rank=node_rank, timeout=timing.TIMING.start_s, restarts=True
        )
        try:
            actor = await aget(start, deadline, lambda: f"starting {name}", "NodeManager")
        except NameTakenError:  # another request started it meanwhile
            actor = await loop.run_in_executor(None, self._find, name, self._namespace)
            if actor is None:
                raise ClusterNotFoundError(
                    f"{name}, which watches the processes of node {node_rank} of the job "
                    f"{self._namespace!r}, ended while it was started"
                ) from None
        self._actors[node_rank] = actor
        return actor
