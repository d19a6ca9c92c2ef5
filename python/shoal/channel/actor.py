"""`ChannelWorker`: the Ray actor of a channel on one node.

The actor creates the shared memory that stores the channel's items, and removes it at the end.
Processes of its node put and take without the actor. For processes of other nodes the actor puts
and takes, without decoding the items. When its process dies, Ray restarts the actor, and the new
process continues with the same memory.
"""

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, TypeVar

import ray

from shoal.bootstrap.output import announce_output
from shoal.channel.actor_group import ChannelWorkerGroup
from shoal.channel.actor_protocol import Bulk, pack, unpack
from shoal.context import set_context
from shoal.errors import (
    ChannelError,
    ShoalError,
    ShoalTimeoutError,
    TransportError,
)
from shoal.manager import NodeManager
from shoal.process import ProcessId, is_running, wait_for_exit
from shoal.queues.lane import listen
from shoal.queues.leases import Leases, arrival_s
from shoal.queues.order import NotYet
from shoal.queues.protocol import Outcome, Want
from shoal.queues.settings import MOST_ITEMS, ChannelSettings, MemoryLocation
from shoal.queues.shared import ROUTES, SessionQueues, counts_of, put_now, put_or_wait, take_or_wait
from shoal.shm import Parcel, Queue, Session

__all__ = ["ChannelWorker"]

_log = logging.getLogger("shoal")

_SPARE_S = 2.0
"""Seconds between renewals of the protection of the memory from cleanup.

Cleanup removes memory that no living process has open; protection keeps it during a restart.
"""
_LINGER_S = 0.2
"""Seconds between the last answer of a closed actor and its end, so that replies can arrive."""
_TICK_S = 0.25
"""Seconds between two rounds of upkeep."""
_IDLE_S = 2.0
"""Seconds without an item before memory is given back, so that a stream may pause."""
_MANAGER_S = 30.0
"""Maximum seconds that the job's manager takes to answer."""
_MANY = 1024
"""Maximum number of queues that stay open."""
_OVERTAKEN = 1024
"""Maximum number of cancellations to keep for calls that have not arrived yet."""
_AT_ONCE = 16
"""Number of items that `get_many` takes first, since they may be large."""
_MOST_BYTES = 64 * 1024 * 1024
"""A reply takes no further items once it holds this many bytes, even if more were asked for."""
_NEAR = 0.8
"""Share of the capacity above which a warning is logged."""

Packed = bytes | Bulk
T = TypeVar("T")


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
        set_context(name=name, namespace=namespace)
        if log:
            announce_output(log, name, name.rpartition(":")[2])
        self._name = name
        self._settings = settings
        self._session = self._adopted() or self._made()
        self._location = MemoryLocation.of(self._session.token)
        self._session_queues = SessionQueues(settings, self._session, parcels=True)
        self._queues: dict[bytes, Queue] = {}
        self._actor_of: dict[bytes, int] = {}
        self._routes = self._remembered() if settings.num_actors > 1 else None
        self._leases = Leases(name)
        self._lane: Any = None
        self._has_no_lane = False
        self._waiting: dict[tuple[int, int], asyncio.Future[Any]] = {}
        self._cancelled: dict[tuple[int, int], None] = {}
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
    def create_group(cls, maxsize: int = 0) -> ChannelWorkerGroup:
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
        token = _ask_manager("noted", self._name)
        if token is None:
            return None
        try:
            return Session.attach(token)
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
        _ask_manager("note", self._name, session.token)
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

    async def serve(self, request: Packed) -> Packed:
        """Carry out the request of a handle on another node: (operation, token, arguments)."""
        self._begin()
        operation, token, arguments = unpack(request)
        try:
            if token and token != self._session.token:
                return pack((int(Outcome.CLOSED), None))
            outcome, body = await self._operations[operation](self, *arguments)
        except Exception as error:  # noqa: BLE001  (it is raised where the caller is)
            return pack((int(Outcome.ERROR), error))
        return pack((int(outcome), body))

    async def _do_route(self, encoded: bytes, node_rank: int) -> tuple[Outcome, Any]:
        return Outcome.OK, self._route(encoded, node_rank)

    async def _do_lane(self) -> tuple[Outcome, Any]:
        """Return where processes of other nodes reach the session without calls; None if nowhere."""
        if self._lane is None and not self._ends and not self._has_no_lane:
            try:
                self._lane = listen(self._session, ray.util.get_node_ip_address())
            except TransportError as error:  # the address may be that of a machine around this one
                self._has_no_lane = True
                _log.warning("%s: puts from other nodes are calls to it: %s", self._name, error)
        return Outcome.OK, None if self._lane is None else tuple(self._lane[1])

    async def _do_put(
        self,
        key: tuple[bytes, str],
        parcel: Parcel,
        weight: int,
        seconds: float | None,
        ticket: tuple[int, int],
    ) -> tuple[Outcome, Any]:
        queue, policy = self._queue(key), self._settings.policy
        if seconds is None:
            put_now(queue, parcel, weight, policy)
            return Outcome.OK, None
        if ticket in self._cancelled:
            return Outcome.FULL, None
        attempt = partial(put_or_wait, queue, parcel, weight, policy)
        try:
            attempt()
        except NotYet as why:
            if seconds <= 0:
                return Outcome.FULL, why.refusal
            waiting = queue.attempted("put", attempt, NotYet, seconds, "put")
            try:
                await self._unless_cancelled(ticket, waiting)
            except (ShoalTimeoutError, asyncio.CancelledError) as last:
                return Outcome.FULL, getattr(last, "refusal", why.refusal)
        return Outcome.OK, None

    async def _unless_cancelled(self, ticket: tuple[int, int], work: Coroutine[Any, Any, T]) -> T:
        before = self._waiting.get(ticket)
        if before is not None:  # the answer was lost, and the caller asked again
            before.cancel()
        task = self._waiting[ticket] = asyncio.ensure_future(work)
        try:
            result: T = await task
        finally:
            if self._waiting[ticket] is task:
                del self._waiting[ticket]
        return result

    async def cancel(self, request: Packed) -> None:
        """End the wait of a put or get by its ticket; the ticket may arrive before the call."""
        ticket = unpack(request)
        task = self._waiting.get(ticket)
        if task is not None:
            task.cancel()
            return
        self._cancelled[ticket] = None
        if len(self._cancelled) > _OVERTAKEN:
            del self._cancelled[next(iter(self._cancelled))]

    async def _do_put_many(
        self, key: tuple[bytes, str], entries: list[tuple[int, Parcel]]
    ) -> tuple[Outcome, Any]:
        queue, policy = self._queue(key), self._settings.policy
        done = 0
        try:
            for weight, parcel in entries:
                put_now(queue, parcel, weight, policy)
                done += 1
        except Exception:
            if not done:
                raise
        return Outcome.OK, done

    async def _do_take(
        self,
        key: tuple[bytes, str],
        want: Want,
        seconds: float,
        client: tuple[Any, ...],
        ticket: tuple[int, int],
    ) -> tuple[Outcome, Any]:
        """Take items, waiting for them.

        The items are on lease until the handle confirms that it has them, so that no item is lost
        if this process dies, if the caller dies, or if the reply does not arrive.
        """
        if ticket in self._cancelled:
            return Outcome.PENDING, None
        queue, want, process = self._queue(key), Want(*want), ProcessId(*client)
        begun = time.monotonic()

        def attempt() -> list[Any]:
            return self._take(queue, want) if is_running(process) else []

        try:
            messages = attempt()
        except NotYet as why:
            if seconds <= 0:
                return Outcome.EMPTY, why.refusal
            waiting = queue.attempted("get", attempt, NotYet, seconds, "get")
            try:
                messages = await self._unless_cancelled(ticket, waiting)
            except (ShoalTimeoutError, asyncio.CancelledError):
                return Outcome.PENDING, why.refusal
        if not messages:
            return Outcome.PENDING, None  # the caller's process has ended
        waited = time.monotonic() - begun
        try:
            return Outcome.OK, (waited, *self._lent(messages, want, process))
        except BaseException:
            for message in messages:
                message.give_back()
            raise

    def _lent(
        self, messages: list[Any], want: Want, client: ProcessId
    ) -> tuple[float, list[int], list[Any]]:
        """Lease messages; return the seconds they may take to arrive, the leases and the items."""
        items = [message.value for message in messages]
        arrives = arrival_s(sum(item.nbytes for item in items))
        lend = partial(self._leases.add, client=client, seconds=arrives, arrives=not want.lease)
        if not want.lease:
            return arrives, [lend(messages)], items
        again = [message.redelivered for message in messages]
        return arrives, [lend([one]) for one in messages], list(zip(again, items, strict=True))

    @staticmethod
    def _take(queue: Queue, want: Want) -> list[Any]:
        leased = want._replace(lease=True)
        if want.kind == "one":
            return [take_or_wait(queue, leased)]
        if want.kind == "batch":
            return list(take_or_wait(queue, leased))
        messages: list[Any] = []
        size = 0
        while len(messages) < want.amount and size < _MOST_BYTES:
            # Few at first, since the items may be large.
            few = leased._replace(
                amount=min(want.amount, max(_AT_ONCE, 2 * len(messages))) - len(messages)
            )
            try:
                more = take_or_wait(queue, few)
            except Exception:
                if not messages:
                    raise
                break
            size += sum(message.value.nbytes for message in more)
            messages += more
        return messages

    async def _do_settle(self, numbers: list[int], acknowledged: bool) -> tuple[Outcome, Any]:
        self._leases.settle(numbers, acknowledged=acknowledged)
        return Outcome.OK, None

    async def received(self, request: Packed) -> None:
        """Acknowledge items that have arrived, by the numbers of their leases."""
        self._leases.settle(unpack(request), acknowledged=True)

    async def give_back(self, request: Packed) -> None:
        """Deliver items again that arrived after their get had ended."""
        self._leases.settle(unpack(request), acknowledged=False)

    async def _do_renew(self, numbers: list[int]) -> tuple[Outcome, Any]:
        return Outcome.OK, self._leases.renew(numbers)

    async def _do_ask(self, what: str, key: tuple[bytes, str], *args: Any) -> tuple[Outcome, Any]:
        if what == "declare":
            self._queues[key[0]] = self._session_queues.declare(None, args[0], *key)
            return Outcome.OK, None
        queue = self._queue(key)
        match what:
            case "maxsize":
                return Outcome.OK, queue.maxsize
            case "counts":
                return Outcome.OK, tuple(counts_of(queue, self._session))
        return Outcome.OK, getattr(queue, what)()

    async def _do_end(self, now: bool) -> tuple[Outcome, Any]:
        """Accept no more items; return whether none is left, so that the actor ends."""
        self._session.close_queues()
        left = 0 if now else self._holds()
        if left == 0:
            self._end()
        return Outcome.OK, left == 0

    _operations: ClassVar[dict[str, Callable[..., Coroutine[Any, Any, tuple[Outcome, Any]]]]] = {
        "route": _do_route,
        "lane": _do_lane,
        "put": _do_put,
        "put_many": _do_put_many,
        "take": _do_take,
        "settle": _do_settle,
        "renew": _do_renew,
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
        return messages - routes + len(self._leases) + max(lent, self._lent_over_lane())

    def _lent_over_lane(self) -> int:
        return 0 if self._lane is None else int(self._lane[0].lent)

    def _arriving(self) -> int:
        """Return how many items are on their way to gets without a lease."""
        over_lane = 0 if self._lane is None else self._lane[0].lent - self._lane[0].leases
        return self._leases.arriving + int(over_lane)

    def _begin(self) -> None:
        if not self._tasks:
            self._keep(self._look_after())

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_after(self) -> None:
        while not self._ends:
            await asyncio.sleep(_TICK_S)
            with contextlib.suppress(ChannelError):
                self._spare()
                self._leases.end_those_of_the_dead()
                if not self._warned and not self._settings.maxsize:
                    self._warn_if_near()
                self._trim_if_drained()
                # Processes of this node close the channel without a call.
                if self._session.sealed and self._holds() == 0:
                    self._end()

    def _spare(self) -> None:
        """Protect the memory from cleanup until the actor has restarted, if this process dies."""
        if time.monotonic() - self._spared < _SPARE_S:
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
        if self._idle_ticks * _TICK_S >= _IDLE_S:
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

    async def _linger(self) -> None:
        await asyncio.sleep(_LINGER_S)
        await self.end()
        try:
            # Handles that still ask learn that the actor has ended and did not die.
            await asyncio.to_thread(_ask_manager, "note", self._name, None)
        finally:
            ray.kill(ray.get_runtime_context().current_actor)  # frees the name at once


def _ask_manager(method: str, *args: Any) -> Any:
    """Ask the manager and wait; `ray.get` would warn about waiting inside an event loop."""
    asked = getattr(NodeManager.get_proxy().actor, method).remote(*args)
    return asked.future().result(_MANAGER_S)
