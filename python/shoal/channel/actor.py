"""`ChannelWorker`: the Ray actor of a channel on one node; `ChannelWorkerGroup` places several.

The actor creates the shared memory that stores the channel's items, and removes it at the end.
Processes of its node put and take without the actor. Those of other nodes do so through threads of
its process, which do not decode the items and do not need its interpreter. When its process dies, Ray
restarts the actor, and the new process continues with the same memory.
"""

import asyncio
import contextlib
import importlib
import logging
import math
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import ray

from shoal._backend import WorkerAddress
from shoal._ray import in_process
from shoal.bootstrap.output import announce_output
from shoal.channel import timing
from shoal.channel.actor_calls import Outcome, end, start
from shoal.context import describe_self, set_context
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelError,
    LaunchError,
    NameTakenError,
    PlacementError,
    ShoalError,
    TransportError,
)
from shoal.manager import NodeManager
from shoal.process import ProcessId, is_running, wait_for_exit
from shoal.queues.lane import listen
from shoal.queues.settings import MOST_ITEMS, ChannelSettings, MemoryLocation
from shoal.queues.shared import ROUTES, SessionQueues, counts_of
from shoal.shm import Queue, Session
from shoal.state import accept_calls, hide_process

if TYPE_CHECKING:
    from shoal.cluster import Cluster
    from shoal.placement import PlacementStrategy

__all__ = ["ChannelWorker", "ChannelWorkerGroup", "ask_manager"]

_log = logging.getLogger("shoal")

_MANY = 1024
"""Maximum number of queues that stay open."""
_NEAR = 0.8
"""Share of the capacity above which a warning is logged."""


class ChannelWorker:
    """Stores the items of a channel, or of some of its keys where the channel is distributed.

    Args:
        name: The actor's name.
        settings: Description of the channel, without its locations.
        namespace: The job's namespace. Ray knows only the namespace of the driver's connection,
            which other jobs on the same Ray share.
        log: Names the job whose collector of logs copies the actor's output; empty for none.
    """

    def __init__(
        self, name: str, settings: ChannelSettings, namespace: str, *, log: str = ""
    ) -> None:
        if in_process() is None:
            accept_calls(0)
        set_context(name=name, namespace=namespace)
        if log:
            announce_output(log, name, name.rpartition(":")[2])
        self._name = name
        self._settings = settings
        self._former: str | None = ask_manager("noted", name)  # the memory of a former process
        self._session = self._adopted() or self._made()
        self._location = MemoryLocation.of(self._session.token)
        self._session_queues = SessionQueues(settings, self._session, parcels=True)
        self._queues: dict[bytes, Queue] = {}
        self._actor_of: dict[bytes, int] = {}
        self._routes = self._remembered() if settings.num_actors > 1 else None
        self._lane: Any = None
        self._ends = False
        self._warned = False
        self._idle_ticks = 0
        self._spared = -math.inf
        self._raylet = os.getppid()  # the process of Ray that restarts the actor
        self._tasks: set[asyncio.Task[Any]] = set()
        self._spare()
        with contextlib.suppress(RuntimeError):  # no event loop runs yet: the first call begins
            self._begin()

    @classmethod
    def create_group(cls, maxsize: int = 0) -> "ChannelWorkerGroup":
        """Return actors that `launch` places and starts, for a subclass of `Channel`.

        `Channel.create` is all that other code needs.

        Args:
            maxsize: Items that each key holds before a put waits; 0 for no bound below 262,144.

        Raises:
            ShoalValueError: `maxsize` is not valid.
        """
        return ChannelWorkerGroup(cls, maxsize)

    def _adopted(self) -> Session | None:
        """Attach to the memory of the actor's previous process, if there was one."""
        if self._former is None:
            return None
        try:
            return Session.attach(self._former)
        except ShoalError as error:
            _log.error("%s: what the channel held is lost: %s", self._name, error)
            return None

    def _made(self) -> Session:
        settings = self._settings
        session = Session.create(
            max_bytes=settings.max_bytes,
            memory_policy=settings.memory_policy,
            backlog=settings.capacity,
        )
        ask_manager("note", self._name, session.token)
        return session

    def _remembered(self) -> Queue:
        """Open the queue that notes which actor has which key, and read what it holds.

        After a restart, the actor's next process learns the keys from this queue.
        """
        name = f"the routes of {self._name}"
        routes = Queue(self._session, None, MOST_ITEMS, encoded=ROUTES, name=name)
        self._actor_of.update(route for _, route in routes.peek())
        return routes

    async def ping(self, _: object = None) -> None:
        """Answer, and start the upkeep of the channel if it does not run yet."""
        self._begin()

    async def watch(self, process: ProcessId) -> None:
        """Return when a process of this node has ended."""
        if is_running(process):
            await wait_for_exit(process.pid)

    async def shoal_channel_settings(self) -> dict[str, Any]:
        """Return the channel's description, its memory's location, and whether it is closed."""
        self._begin()
        closed = self._session.sealed
        return {
            "settings": self._settings,
            "location": self._location,
            "closed": closed,
            "ending": self._ends or (closed and self._holds() == self._arriving()),
        }

    # Which actor has which key.

    def _route(self, encoded: bytes, node_rank: int) -> int:
        known = self._actor_of.get(encoded)
        if known is None:
            in_range = 0 <= node_rank < self._settings.num_actors
            known = self._actor_of[encoded] = node_rank if in_range else 0
            if self._routes is not None:
                # If the channel is closed, no process puts under the key any more. If there is no
                # room, the route is known for as long as this process lives.
                with contextlib.suppress(ChannelError):
                    self._routes.put_nowait((encoded, known))
        return known

    # For processes of other nodes.

    async def serve(self, request: tuple[str, str, tuple[Any, ...]]) -> tuple[int, Any]:
        """Carry out a request of a handle: (token, operation, arguments)."""
        self._begin()
        token, operation, arguments = request
        if token and token != self._session.token:
            return int(Outcome.CLOSED), None
        try:
            return int(Outcome.OK), await self._operations[operation](self, *arguments)
        except Exception as error:  # noqa: BLE001  (it is raised where the caller is)
            return int(Outcome.ERROR), error

    async def _do_route(self, encoded: bytes, node_rank: int) -> int:
        return self._route(encoded, node_rank)

    async def _do_lane(self) -> tuple[Any, ...]:
        """Return where processes of other nodes reach the session."""
        if self._lane is None:
            ip = ray.util.get_node_ip_address()
            try:
                self._lane = listen(self._session, ip)
            except TransportError as error:
                raise TransportError(
                    f"the actor {self._name} cannot be used from other nodes: {error}"
                ) from None
        return tuple(self._lane[1])

    async def _do_ask(self, what: str, key: tuple[bytes, str], *args: Any) -> Any:
        if what == "declare":
            self._queues[key[0]] = self._session_queues.declare(None, args[0], *key)
            return None
        queue = self._queue(key)
        match what:
            case "maxsize":
                return queue.maxsize
            case "counts":
                return tuple(counts_of(queue, self._session))
        return getattr(queue, what)()

    async def _do_end(self, now: bool) -> bool:
        """Accept no more items; return whether none is left, so that the actor ends."""
        self._session.close_queues()
        left = 0 if now else self._holds()
        if left == 0:
            self._end()
        return left == 0

    _operations: ClassVar[dict[str, Callable[..., Coroutine[Any, Any, Any]]]] = {
        "route": _do_route,
        "lane": _do_lane,
        "ask": _do_ask,
        "end": _do_end,
    }

    # Upkeep.

    def _queue(self, key: tuple[bytes, str]) -> Queue:
        encoded, shown = key
        queue = self._queues.get(encoded)
        if queue is None:
            if len(self._queues) >= _MANY:
                self._queues.clear()
            queue = self._queues[encoded] = self._session_queues.open(None, encoded, shown)
        return queue

    def _holds(self) -> int:
        """Return how many items are in the queues, on lease or on their way to a get."""
        routes = 0 if self._routes is None else self._routes.qsize()
        lent = self._lent_over_lane()
        messages = self._session.stats()["messages"]
        # The lane's threads go on meanwhile: a message that left a queue since then is lent now.
        return messages - routes + max(lent, self._lent_over_lane())

    def _lent_over_lane(self) -> int:
        return 0 if self._lane is None else int(self._lane[0].lent)

    def _arriving(self) -> int:
        """Return how many items are on their way to gets without a lease."""
        return 0 if self._lane is None else int(self._lane[0].lent - self._lane[0].leases)

    def _begin(self) -> None:
        if not self._tasks:
            self._keep(self._look_after())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_after(self) -> None:
        while not self._ends:
            await asyncio.sleep(timing.TIMING.tick_s)
            with contextlib.suppress(ChannelError):
                self._look_around()
                # Processes of this node close the channel without a call.
                if self._session.sealed and self._holds() == 0:
                    self._end()

    def _look_around(self) -> None:
        """Do one round of upkeep."""
        self._spare()
        if not self._warned and not self._settings.maxsize:
            self._warn_if_near()
        self._trim_if_drained()

    def _spare(self) -> None:
        """Protect the memory from cleanup until the actor has restarted, if this process dies."""
        if time.monotonic() - self._spared < timing.TIMING.spare_s:
            return
        self._spared = time.monotonic()
        # A process whose parent has ended has another one, such as process 1, which never ends.
        if os.getppid() == self._raylet:
            self._session.spare(self._raylet)

    def _trim_if_drained(self) -> None:
        """Give memory back that has held no items for a while."""
        found = self._session.stats()
        idle = found["bytes_reserved"] > 0 and found["bytes_in_use"] == 0
        self._idle_ticks = self._idle_ticks + 1 if idle else 0
        if self._idle_ticks * timing.TIMING.tick_s >= timing.TIMING.idle_s:
            self._idle_ticks = 0
            self._session.trim()

    def _warn_if_near(self) -> None:
        holds, capacity = self._holds(), self._settings.capacity
        if holds >= _NEAR * capacity:
            self._warned = True
            _log.warning(
                "the channel %r holds %d items, and a key of it may hold %d: then puts will wait",
                self._settings.name,
                holds,
                capacity,
            )

    def _end(self) -> None:
        if not self._ends:
            self._ends = True
            self._keep(self._linger())

    async def end(self) -> None:
        """Remove the memory when the channel or the job ends."""
        self._spared = math.inf
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        # Waits of other processes end, and their puts are refused; what they have mapped stays.
        with contextlib.suppress(ChannelError):
            self._session.close_queues()
        if self._lane is not None:
            self._lane[0].stop()
        self._session.remove()
        hide_process()  # it ends on purpose, but Ray kills it

    async def _linger(self) -> None:
        await asyncio.sleep(timing.TIMING.linger_s)
        await self.end()
        try:
            # Handles that still ask learn that the actor has ended and did not die.
            await asyncio.to_thread(ask_manager, "note", self._name, None)
        finally:
            ray.kill(ray.get_runtime_context().current_actor)  # frees the name at once


class ChannelWorkerGroup:
    """The actors of a channel, `<name>:0` to `<name>:<N-1>`; made by `ChannelWorker.create_group`.

    It is for a subclass of `Channel` that places the actors itself and binds to them with
    `_initialize`. Other processes find the channel with `Channel.connect`.

    Args:
        worker_cls: `ChannelWorker`.
        maxsize: Items that each key holds before a put waits; 0 for no bound below 262,144.
    """

    @dataclass(frozen=True)
    class WorkerRank:
        """An actor's rank and its handle."""

        worker: Any
        rank: int

    def __init__(self, worker_cls: type, maxsize: int = 0) -> None:
        self._worker_cls = worker_cls
        self._name = f"worker_group_{worker_cls.__name__}"
        self._settings = ChannelSettings(self._name, maxsize)
        self._workers: list[ChannelWorkerGroup.WorkerRank] = []

    @property
    def worker_cls_name(self) -> str:
        """The name of the actors' class."""
        return self._worker_cls.__name__

    @property
    def worker_group_name(self) -> str:
        """The name of the group and of the channel."""
        return self._name

    @property
    def worker_info_list(self) -> list["ChannelWorkerGroup.WorkerRank"]:
        """The actors with their handles, in rank order."""
        return list(self._workers)

    def launch(
        self,
        cluster: "Cluster",
        placement_strategy: "PlacementStrategy | None" = None,
        name: str | None = None,
        max_concurrency: int | bool | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = True,
        *,
        timeout: float | None = None,
    ) -> Self:
        """Start the actors and wait until they answer.

        Args:
            cluster: The cluster.
            placement_strategy: One process for each actor; None for one actor on node 0.
            name: The name of the group and of the channel; None for `worker_group_ChannelWorker`.
            max_concurrency: Ignored: any number of calls may wait.
            isolate_gpu: Ignored: the actors use no accelerators.
            catch_system_failure: Ignored.
            disable_distributed_log: Whether the output of the actors stays out of the job's log
                folder.
            timeout: Maximum seconds of the start; None for the default.

        Returns:
            The group.

        Raises:
            NameTakenError: A worker or a channel has the name.
            PlacementError: The placement does not fit the cluster, or has no process.
            LaunchError: The group is launched already.
            ChannelError: The cluster is a local one of `shoal.testing`, which has no actors.
            ShoalTimeoutError: An actor did not start in time.
            ShoalTypeError: The class is abstract, or the cluster, the strategy or the name is
                something else.
        """
        del max_concurrency, isolate_gpu, catch_system_failure
        # Not imported above: the processes of actors import this module, and need no cluster.
        arguments = importlib.import_module("shoal.cluster.launch_arguments")
        arguments.check_launch(self._worker_cls, cluster, placement_strategy, name)
        if self._workers:
            raise LaunchError(f"the group {self._name!r} is launched already")
        if in_process() is not None:
            raise ChannelError(
                f"{describe_self()}: ChannelWorker.create_group: a local cluster has no actors of "
                "channels; use Channel.create"
            )
        nodes = [0]
        if placement_strategy is not None:
            placements = placement_strategy.get_placement(cluster, isolate_accelerator=False)
            nodes = [placement.cluster_node_rank for placement in placements]
        chosen = self._name if name is None else str(WorkerAddress(name))
        if not nodes:
            raise PlacementError(f"the placement of {chosen!r} has no process")
        settings = ChannelSettings(chosen, self._settings.maxsize, num_actors=len(nodes))
        try:
            _, handles = start(
                self._worker_cls,
                settings,
                nodes,
                Deadline(timeout),
                log=not disable_distributed_log,
            )
        except NameTakenError as error:
            raise NameTakenError(
                f"{describe_self()}: the name {chosen!r} belongs to a worker group or a channel "
                "that is alive; choose another name, or connect with Channel.connect"
            ) from error
        self._name = chosen
        self._workers = [
            ChannelWorkerGroup.WorkerRank(handle, rank) for rank, handle in enumerate(handles)
        ]
        return self

    def close(self) -> None:
        """End the actors, drop what they hold, and free the name. Idempotent."""
        workers, self._workers = self._workers, []
        # The first name goes last: a process that takes it must not meet the other actors.
        for rank in reversed(workers):
            end(rank.worker)

    def _close(self) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ChannelWorkerGroup {self._name} of {len(self._workers)} actors>"


def ask_manager(method: str, *args: Any) -> Any:
    """Ask the manager and wait; `ray.get` would warn about waiting inside an event loop."""
    asked = getattr(NodeManager.get_proxy().actor, method).remote(*args)
    return asked.future().result(timing.TIMING.manager_s)
