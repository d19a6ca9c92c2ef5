"""The actor that holds queues for other processes.

Requests and replies are packed (`wire`); what a caller has to be told is an `Outcome` in the
reply, not an exception. A call that has to wait is answered within the slice of time that the
client names: with PENDING, after which the waiter keeps its place and the client asks again with
`poll`. So a client that died, wherever it ran, is noticed when it stops asking, and what it was
given meanwhile goes back to the front of its queue.
"""

import asyncio
import logging
from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

import ray

from shoal.process import ProcessId, is_running
from shoal.transport.queues import CAPACITY, KeyedQueues, Message, Outcome, Waiter
from shoal.transport.wire import Bulk, Payload, pack, unpack

__all__ = ["Attendance", "QueueHost"]

LEASE_S = 10.0
"""How long a waiter that nobody asks about keeps its place."""

_REMEMBER_S = 3600.0
"""How long a put that was accepted while its client did not ask is remembered."""

_LINGER_S = 0.2
"""Between the last answer of a closed host and its end: replies on their way must arrive."""

_log = logging.getLogger("shoal")

Packed = bytes | Bulk


class Attendance(NamedTuple):
    """How a client waits.

    Attributes:
        ticket: Names the waiter; unique to the client and the operation.
        client: The process that waits.
        seconds: How long this call may take to answer.
        last: Whether the client gives up afterwards.
    """

    ticket: tuple[int, int]
    client: ProcessId
    seconds: float
    last: bool

    def plain(self) -> tuple[Any, ...]:
        """Return a form that pickles in a fraction of the time."""
        return tuple(self.ticket), tuple(self.client), self.seconds, self.last

    @classmethod
    def of(cls, plain: tuple[Any, ...]) -> "Attendance":
        """Make an attendance of what `plain` returned."""
        ticket, client, seconds, last = plain
        return cls(ticket, ProcessId(*client), seconds, last)


def _reply(outcome: Outcome, body: Any = None) -> Packed:
    return pack((int(outcome), body))


_OK = _reply(Outcome.OK)


class QueueHost:
    """Holds keyed queues of messages for the processes of a job.

    Args:
        name: The actor's name, for messages.
        maxsize: Messages per key; 0 for `capacity`.
        capacity: The bound of a key without `maxsize`.
        max_bytes: Bytes per key; 0 for no bound.
    """

    def __init__(
        self,
        name: str,
        maxsize: int = 0,
        capacity: int = CAPACITY,
        max_bytes: int = 0,
    ) -> None:
        self._name = name
        self._queues = KeyedQueues(maxsize, capacity, max_bytes)
        self._parked: dict[tuple[int, int], tuple[Waiter, asyncio.TimerHandle | None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def ping(self) -> None:
        """Answer."""

    # Messages in.

    async def put(self, request: Packed) -> Packed:
        """Append a message, or wait for room: (key, weight, payload, attendance or None)."""
        key, weight, plain, attendance = unpack(request)
        message = _message(weight, plain)
        outcome = self._queues.put(key, message)
        if outcome is Outcome.OK:
            return _OK
        if outcome is not Outcome.FULL or attendance is None:
            return _reply(outcome)
        return await self._attend(Attendance.of(attendance), self._queues.wait_put(key, message))

    async def put_many(self, request: Packed) -> Packed:
        """Append as many messages as there is room for: (key, [(weight, payload), ...])."""
        key, entries = unpack(request)
        accepted, near = 0, False
        for weight, plain in entries:
            outcome = self._queues.put(key, _message(weight, plain))
            if outcome is Outcome.CLOSED:
                return _reply(Outcome.CLOSED, accepted)
            if outcome is Outcome.FULL:
                break
            near = near or outcome is Outcome.NEAR_CAPACITY
            accepted += 1
        return _reply(Outcome.NEAR_CAPACITY if near else Outcome.OK, accepted)

    # Messages out.

    async def get(self, request: Packed) -> Packed:
        """Take one message, or a batch, or wait: (key, target, attendance or None)."""
        key, target, attendance = unpack(request)
        items = self._queues.take(key, target)
        if items:
            return self._deliver(items)
        if self._queues.closed:
            return _reply(Outcome.CLOSED)
        if attendance is None:
            return _reply(Outcome.EMPTY)
        waiter = self._queues.wait_get(key, target)
        attendance = Attendance.of(attendance)
        waiter.alive = partial(is_running, attendance.client)
        return await self._attend(attendance, waiter)

    async def give_back(self, request: Packed) -> None:
        """Take messages back that a client did not use: (key, [(weight, payload), ...])."""
        key, entries = unpack(request)
        self._queues.give_back(key, [_message(w, p) for w, p in entries])

    # Waiting.

    async def poll(self, request: Packed) -> Packed:
        """Go on waiting: an attendance. CANCELLED when the waiter has expired."""
        attendance = Attendance.of(unpack(request))
        waiter, timer = self._parked.pop(attendance.ticket, (None, None))
        if waiter is None:
            return _reply(Outcome.CANCELLED)
        if timer is not None:
            timer.cancel()
        return await self._attend(attendance, waiter)

    async def cancel(self, request: Packed) -> None:
        """Give up waiting: a ticket. The call that attends the waiter answers at once."""
        ticket = unpack(request)
        waiter, timer = self._parked.pop(ticket, (None, None))
        if timer is not None:
            timer.cancel()
        if waiter is not None:
            self._queues.cancel(waiter)
            waiter.wake()

    async def _attend(self, attendance: Attendance, waiter: Waiter) -> Packed:
        loop = asyncio.get_running_loop()
        # Parked while it is attended, too: `cancel` must find it.
        self._parked[attendance.ticket] = (waiter, None)
        if waiter.outcome is Outcome.PENDING:
            woken = loop.create_future()
            waiter.wake = partial(_wake, woken)
            timer = loop.call_later(attendance.seconds, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()
        if waiter.outcome is Outcome.PENDING and not self._has_receiver(waiter.key):
            self._queues.cancel(waiter)
            waiter.outcome = Outcome.GONE
        if waiter.outcome is Outcome.PENDING and not attendance.last:
            timer = loop.call_later(LEASE_S, self._expire, attendance.ticket)
            self._parked[attendance.ticket] = (waiter, timer)
            return _reply(Outcome.PENDING)
        self._parked.pop(attendance.ticket, None)
        if waiter.outcome is Outcome.PENDING:
            self._queues.cancel(waiter)
            return _reply(Outcome.TIMEOUT)
        if waiter.items:
            return self._deliver(waiter.items)
        return _reply(waiter.outcome)

    def _has_receiver(self, key: Hashable) -> bool:
        """Whether somebody may still take what is put under a key; asked now and then."""
        del key  # anybody may read any key of a channel
        return True

    def _expire(self, ticket: tuple[int, int]) -> None:
        waiter, _ = self._parked.pop(ticket, (None, None))
        if waiter is None:
            return
        if waiter.outcome is Outcome.OK and not waiter.items:
            # The client may only have been stopped. Told that it lost its place, it would put the
            # message a second time.
            loop = asyncio.get_running_loop()
            timer = loop.call_later(_REMEMBER_S, self._parked.pop, ticket, None)
            self._parked[ticket] = (waiter, timer)
        else:
            _log.warning(
                "%s: a client that waited at key %r stopped asking; its place is given up",
                self._name,
                waiter.key,
            )
            self._queues.cancel(waiter)

    def _deliver(self, items: list[Message]) -> Packed:
        if self._queues.closed:
            self._end_when_drained()
        return _reply(Outcome.OK, [(item.weight, item.payload.plain()) for item in items])

    # Questions.

    async def qsize(self, key: Hashable) -> int:
        """Return how many messages a key holds."""
        return self._queues.qsize(key)

    async def empty(self, key: Hashable) -> bool:
        """Return whether a key holds nothing."""
        return self._queues.qsize(key) == 0

    async def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        return self._queues.full(key)

    async def maxsize(self, key: Hashable) -> int:
        """Return a key's bound; 0 for none."""
        return self._queues.maxsize(key)

    async def peek_all(self, request: Packed) -> Packed:
        """Return what a key holds: [(weight, payload), ...]."""
        found = self._queues.peek_all(unpack(request))
        return _reply(Outcome.OK, [(item.weight, item.payload.plain()) for item in found])

    async def get_memory_usage(self) -> tuple[int, int]:
        """Return the bytes of all messages, twice: nothing is reserved beyond them."""
        return self._queues.size, self._queues.size

    # The whole host.

    async def create_queue(self, key: Hashable, maxsize: int = 0) -> None:
        """Give a key a bound of its own."""
        self._queues.declare(key, maxsize)

    async def close(self) -> bool:
        """Accept nothing more, and end once the queues are empty; tell whether they are."""
        self._queues.close()
        self._end_when_drained()
        return self._queues.empty

    def _end_when_drained(self) -> None:
        # The time to linger starts anew with each delivery.
        for task in self._tasks:
            task.cancel()
        task = asyncio.get_running_loop().create_task(self._linger())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _linger(self) -> None:
        await asyncio.sleep(_LINGER_S)
        # Messages come back when their getter was cancelled: then there is more to wait for.
        waits = any(waiter.items for waiter, _ in self._parked.values())
        if self._queues.empty and not waits:
            ray.kill(ray.get_runtime_context().current_actor)  # frees the name at once


def _message(weight: int, plain: Any) -> Message:
    payload = Payload.of(plain)
    return Message(weight, payload.size, payload)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
