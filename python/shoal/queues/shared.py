"""`SharedQueues`: a channel's queues in shared memory of this node, used without its actor."""

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from shoal._backend import ShmQueue
from shoal.deadline import Deadline
from shoal.errors import ChannelDecodeError, ChannelFull, ShoalTimeoutError
from shoal.futures import Step, done
from shoal.queues.counts import Counts
from shoal.queues.order import PendingCalls, PutSequence, result_of
from shoal.queues.protocol import NOTHING, Future, Got, Outcome, Taken, Want, WeightedItem, set_done
from shoal.queues.session_queues import (
    NOTHING_YET,
    ROUTES,
    NoRoomYet,
    SessionQueues,
    log_waits,
    make_room,
    put_now,
    put_or_wait,
    take_now,
    take_within,
    taken,
    with_whole_timeout,
)
from shoal.queues.settings import ChannelSettings
from shoal.shm import Parcel, Queue, Reservation, Session
from shoal.shm.keys import canonical
from shoal.shm.refusals import Refusal, timeout_error

__all__ = ["SharedQueues"]

_Put = tuple[Parcel | Reservation, Step]

_MANY = 1024
"""Maximum number of open queues; then all are released, and opened again when they are used."""


class SharedQueues:
    """Keyed queues in a session of `shoal.shm`.

    Args:
        settings: The channel.
        session: The shared memory.
        direct: Filled with the queues on which this process has no asynchronous calls pending, so
            that the core may use them directly.
        keeps: Whether the session outlives the last process that leaves it.
    """

    transport = "shm"

    def __init__(
        self,
        settings: ChannelSettings,
        session: Session,
        direct: dict[Any, ShmQueue],
        *,
        keeps: bool = True,
    ) -> None:
        self.settings = settings
        self._session_queues = SessionQueues(settings, session)
        if keeps:
            # Only the channel's actor removes the session, also while the actor restarts.
            session.keep()
        self._opened: dict[Hashable, Queue] = {}
        self._pending = PendingCalls(direct)

    # Puts.

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""
        queue = self._queue(key)
        if self._pending.has_puts(key):
            # Asynchronous puts that this process made earlier come first.
            if deadline is None:
                raise ChannelFull(f"put_nowait: no room in {queue.name}: puts of this process wait")
            result_of(self._enqueue(key, queue, item, weight, deadline))
            return
        self._put(queue, item, weight, deadline)

    def _put(self, queue: Queue, item: Any, weight: int, deadline: Deadline | None) -> None:
        policy = self.settings.policy
        if deadline is None:
            put_now(queue, item, weight, policy)
        elif policy == "block":
            waiting = log_waits("put", "room", queue, deadline)
            self._put_within(queue, item, weight, deadline, waiting)
        else:
            self._put_by_policy(queue, item, weight, deadline)

    @staticmethod
    def _put_within(
        queue: Queue, item: Any, weight: int, deadline: Deadline, waiting: Callable[[], None]
    ) -> None:
        try:
            queue.put(item, weight, deadline.remaining, waiting=waiting)
        except ShoalTimeoutError as error:
            raise with_whole_timeout(error, "put", queue, deadline) from None

    def _put_by_policy(self, queue: Queue, item: Any, weight: int, deadline: Deadline) -> None:
        """Put an item under a policy that does not wait for room; it may wait for memory."""
        policy = self.settings.policy
        log = log_waits("put", "memory", queue, deadline)

        def waiting() -> None:
            log()
            make_room(queue, policy)  # others may have filled the queue meanwhile

        try:
            put_or_wait(queue, item, weight, policy)
        except NoRoomYet:
            self._put_within(queue, item, weight, deadline, waiting)

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        queue = self._queue(key)
        if self.settings.policy == "block" and not self._pending.has_puts(key):
            waiting = log_waits("put_many", "room", queue, deadline)
            try:
                queue.put_many(items, weights, deadline.remaining, waiting=waiting)
            except ShoalTimeoutError as error:
                raise with_whole_timeout(error, "put_many", queue, deadline) from None
            return
        for count, (item, weight) in enumerate(zip(items, weights, strict=True)):
            try:
                self.put(key, item, weight, deadline)
            except Exception as error:
                set_done(error, count)
                raise

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put."""
        queue = self._queue(key)
        if not self._pending.has_puts(key):
            try:
                put_or_wait(queue, item, weight, self.settings.policy)
            except NoRoomYet:
                pass
            else:
                return done(None)
        return self._enqueue(key, queue, item, weight, deadline)

    def reserve(
        self, key: Hashable, shape: tuple[int, ...], dtype: Any, deadline: Deadline
    ) -> Reservation:
        """Reserve the channel's memory for an array, waiting for memory."""
        queue = self._queue(key)
        waiting = log_waits("reserve", "memory", queue, deadline)
        try:
            return queue.reserve(shape, dtype, deadline.remaining, waiting=waiting)
        except ShoalTimeoutError as error:
            raise with_whole_timeout(error, "reserve", queue, deadline) from None

    def _enqueue(
        self, key: Hashable, queue: Queue, item: Any, weight: int, deadline: Deadline
    ) -> Future:
        # A reservation is in memory already: its put moves no bytes.
        parcel = item if isinstance(item, (Parcel, Reservation)) else Parcel.of(item)
        size = 0 if isinstance(parcel, Reservation) else parcel.nbytes
        self._pending.withhold(key)
        end = partial(_raise_if_late, queue, deadline)
        future = Step()

        def add(sequence: PutSequence) -> Future:
            return sequence.add(weight, (parcel, future), size, deadline, end, future)

        self._pending.add_put(key, partial(self._sequence, queue), add)
        future.add_done_callback(lambda _: self._pending.release(key))
        return future

    def _sequence(self, queue: Queue) -> PutSequence:
        policy = self.settings.policy

        async def put_some(entries: Sequence[tuple[int, _Put]]) -> tuple[Outcome, int]:
            for count, (weight, (parcel, future)) in enumerate(entries):
                try:
                    future.take(partial(put_now, queue, parcel, weight, policy))
                except Exception:  # noqa: BLE001  (`put_one` meets the same error)
                    return Outcome.OK, count
            return Outcome.OK, len(entries)

        async def put_one(put: _Put, weight: int, deadline: Deadline) -> Outcome:
            parcel, future = put
            attempt = partial(future.take, partial(put_or_wait, queue, parcel, weight, policy))
            rest, whole = deadline.remaining, deadline.timeout
            await queue.attempted("put", attempt, NoRoomYet, rest, "put", whole)
            return Outcome.OK

        return PutSequence(put_some, put_one, _as_it_is)

    # Gets.

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""
        self._pending.raise_set_aside(key)
        queue = self._queue(key)
        if deadline is None:
            return take_now(queue, want)
        if self._pending.has_gets(key):
            # Asynchronous gets that this process made earlier come first.
            taken = result_of(self.start_take(key, want, deadline))
            taken.deliver()
            return taken.value
        waiting = log_waits("get", "an item", queue, deadline)
        for phase, until in want.phases(deadline):
            try:
                return take_within(queue, phase, until.remaining, waiting)
            except ShoalTimeoutError as error:
                if until is deadline or Refusal.of(error) is None:
                    raise with_whole_timeout(error, want.operation, queue, deadline) from None
        return None

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get."""
        self._pending.raise_set_aside(key)
        queue = self._queue(key)
        leased = want._replace(lease=True)
        if not self._pending.has_gets(key):
            with contextlib.suppress(*NOTHING_YET):
                first, _ = next(leased.phases(deadline))
                return done(taken(take_now(queue, first), want))

        # The get cannot be cancelled once it took an item, which would go to the end of its queue.
        future = Step()

        def take(phase: Want) -> Any:
            found = future.take(partial(take_now, queue, phase))
            if found is None:
                raise asyncio.CancelledError
            return found

        async def work() -> Any:
            for phase, until in leased.phases(deadline):
                attempt = partial(take, phase)
                rest, whole = until.remaining, deadline.timeout
                try:
                    return await queue.attempted(
                        "get", attempt, NOTHING_YET, rest, want.operation, whole
                    )
                except ShoalTimeoutError:
                    if until is deadline:
                        raise
            return None

        def finish(found: Any) -> Taken:
            return taken(found, want)

        def no_turn() -> Exception:
            return timeout_error("get", queue.name, deadline.timeout, NOTHING)

        self._pending.withhold(key)
        self._pending.gets.start(key, deadline, work, finish, no_turn, future=future)
        future.add_done_callback(lambda _: self._pending.release(key))
        return future

    def set_aside(self, key: Hashable, error: ChannelDecodeError) -> None:
        """Let the next get of a key raise an error."""
        self._pending.set_aside(key, error)

    # Questions.

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""
        return self._queue(key).qsize()

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        return self._queue(key).full()

    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""
        return self._queue(key).maxsize

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""
        self._session_queues.declare(key, maxsize, None, "")

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        return [WeightedItem(weight, item) for weight, item in self._queue(key).peek()]

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of the session."""
        return counts_of(self._queue(key), self._session_queues.session)

    def noted_actor(self, key: Hashable) -> int | None:
        """Return the index of the actor that has a key, as noted in actor 0's memory.

        None if the key is new. Call this only on the queues of actor 0.
        """
        routes = Queue(self._session_queues.session, None, encoded=ROUTES, name="the routes")
        return dict(route for _, route in routes.peek()).get(canonical(key))

    def close(self) -> None:
        """Accept no more items."""
        self._session_queues.session.close_queues()

    # Queues.

    def _queue(self, key: Hashable) -> Queue:
        with self._pending.lock:
            queue = self._opened.get(key)
            if queue is None:
                if len(self._opened) >= _MANY:
                    self._opened.clear()
                    self._pending.direct.clear()
                queue = self._opened[key] = self._session_queues.open(key)
            self._pending.allow_direct(key, queue)
            return queue


def counts_of(queue: Queue, session: Session) -> Counts:
    """Return the counters of a queue and of its session."""
    found, memory = queue.stats(), session.stats()
    return Counts(
        depth=int(found["messages"]),
        bytes=int(found["bytes"]),
        puts=int(found["puts"]),
        gets=int(found["gets"]),
        waiting_producers=int(found["producers_waiting"]),
        waiting_consumers=int(found["consumers_waiting"]),
        oldest_s=found["oldest_s"],
        memory_used=memory["bytes_in_use"],
        memory_reserved=memory["bytes_reserved"],
        memory_limit=memory["max_bytes"],
    )


def _raise_if_late(queue: Queue, deadline: Deadline, outcome: Outcome) -> None:
    if outcome is Outcome.TIMEOUT:
        raise timeout_error("put", queue.name, deadline.timeout, None)


def _as_it_is(error: BaseException) -> BaseException:
    return error
