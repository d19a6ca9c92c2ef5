"""`SharedQueues`: a channel's queues in shared memory of this node, used without its actor."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from shoal._backend import ShmQueue
from shoal.channel.backend import Future, Got
from shoal.channel.facts import Facts
from shoal.channel.item import WeightedItem
from shoal.channel.late import counted, patiently, too_late
from shoal.channel.shelf import (
    NOTHING_YET,
    ROUTES,
    NoRoomYet,
    Shelf,
    offer,
    offer_patiently,
    take_now,
    take_within,
    taken,
)
from shoal.channel.stats import Counts
from shoal.channel.underway import Underway
from shoal.channel.want import Taken, Want
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelDecodeError, ChannelEmpty, ChannelFull, ShoalTimeoutError
from shoal.futures import Step, done
from shoal.shm import Parcel, Queue, Session
from shoal.shm.keys import canonical
from shoal.transport.queues import Outcome
from shoal.transport.sequence import PutSequence

__all__ = ["SharedQueues"]

_Put = tuple[Parcel, Step]

_MANY = 1024
"""Maximum number of open queues; then all are released, and opened again when they are used."""

_MEMORY_S = 0.1
"""Seconds that a put which may drop items waits for memory before it tries again."""


class SharedQueues(Underway):
    """Keyed queues in a session of `shoal.shm`.

    Args:
        facts: The channel.
        session: The shared memory.
        direct: Filled with the queues on which this process has no asynchronous calls pending, so
            that the core may use them directly.
        keeps: Whether the session outlives the last process that leaves it.
    """

    def __init__(
        self,
        facts: Facts,
        session: Session,
        direct: dict[Any, ShmQueue],
        *,
        keeps: bool = True,
    ) -> None:
        self.facts = facts
        self._shelf = Shelf(facts, session)
        if keeps:
            # Only the channel's actor removes the session, also while the actor restarts.
            session.keep()
        self._opened: dict[Hashable, Queue] = {}
        self.direct = direct
        super().__init__()

    def begin_anew(self) -> None:
        """Reset in a forked child."""
        super().begin_anew()
        self._withheld: Counter[Hashable] = Counter()

    # Puts.

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""
        queue = self._queue(key)
        if self._has_puts(key):
            # Asynchronous puts that this process made earlier come first.
            if deadline is None:
                raise ChannelFull(f"put_nowait: no room in {queue.name}: puts of this process wait")
            self._result_of(self._enqueue(key, queue, item, weight, deadline))
            return
        self._put(queue, item, weight, deadline)

    def _put(self, queue: Queue, item: Any, weight: int, deadline: Deadline | None) -> None:
        policy = self.facts.policy
        if deadline is None:
            offer(queue, item, weight, policy)
        elif policy == "block":
            attempt = partial(queue.put, item, weight)
            patiently(attempt, deadline, self._wait("put", queue, "room", deadline))
        else:
            self._put_by_policy(queue, item, weight, deadline)

    def _put_by_policy(self, queue: Queue, item: Any, weight: int, deadline: Deadline) -> None:
        """Put an item under a policy that does not wait for room; it may wait for memory."""
        wait = self._wait("put", queue, "memory", deadline)

        def attempt(seconds: float) -> None:
            try:
                offer_patiently(queue, item, weight, self.facts.policy)
            except NoRoomYet:
                queue.put(item, weight, min(seconds, _MEMORY_S))

        patiently(attempt, deadline, wait)

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        queue = self._queue(key)
        plain = self.facts.policy == "block" and not self._has_puts(key)
        put = 0
        wait = self._wait("put_many", queue, "room", deadline)

        def attempt(seconds: float) -> None:
            nonlocal put
            try:
                queue.put_many(items[put:], weights[put:], seconds)
            except Exception as error:
                put += int(getattr(error, "done", 0))
                raise

        try:
            if plain:
                patiently(attempt, deadline, wait)
                return
            for item, weight in zip(items, weights, strict=True):
                self.put(key, item, weight, deadline)
                put += 1
        except Exception as error:
            counted(error, put)
            raise

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put."""
        queue = self._queue(key)
        if not self._has_puts(key):
            try:
                offer_patiently(queue, item, weight, self.facts.policy)
            except NoRoomYet:
                pass
            else:
                return done(None)
        return self._enqueue(key, queue, item, weight, deadline)

    def _enqueue(
        self, key: Hashable, queue: Queue, item: Any, weight: int, deadline: Deadline
    ) -> Future:
        parcel = item if type(item) is Parcel else Parcel.of(item)
        self._withhold(key)
        with self._lock:
            sequence = self._sequences.get(key)
            if sequence is None:
                sequence = self._sequences[key] = self._sequence(queue)
        end = partial(_raise_if_late, queue, deadline)
        future = Step()
        sequence.add(weight, (parcel, future), parcel.nbytes, deadline, end, future)
        future.add_done_callback(lambda _: self._release(key))
        return future

    def _sequence(self, queue: Queue) -> PutSequence:
        policy = self.facts.policy

        async def put_some(entries: Sequence[tuple[int, _Put]]) -> tuple[Outcome, int]:
            for count, (weight, (parcel, future)) in enumerate(entries):
                try:
                    future.take(partial(offer, queue, parcel, weight, policy))
                except Exception:  # noqa: BLE001  (`put_one` meets the same error)
                    return Outcome.OK, count
            return Outcome.OK, len(entries)

        async def put_one(put: _Put, weight: int, deadline: Deadline) -> Outcome:
            parcel, future = put
            attempt = partial(future.take, partial(offer_patiently, queue, parcel, weight, policy))
            rest, whole = deadline.remaining, deadline.timeout
            await queue.attempted("put", attempt, NoRoomYet, rest, "put", whole)
            return Outcome.OK

        return PutSequence(put_some, put_one, _as_it_is)

    # Gets.

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""
        self._raise_spoilt(key)
        queue = self._queue(key)
        if deadline is None:
            return take_now(queue, want)
        if self._turns.busy(key):
            # Asynchronous gets that this process made earlier come first.
            taken = self._result_of(self.start_take(key, want, deadline))
            taken.deliver()
            return taken.value
        wait = self._wait("get", queue, "an item", deadline)
        for phase, until in want.phases(deadline):
            try:
                return patiently(partial(take_within, queue, phase), until, wait)
            except ShoalTimeoutError:
                if until is deadline:
                    raise
        return None

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get."""
        self._raise_spoilt(key)
        queue = self._queue(key)
        leased = want._replace(lease=True)
        if not self._turns.busy(key):
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
                operation = {"one": "get", "many": "get_many", "batch": "get_batch"}[phase.kind]
                try:
                    return await queue.attempted(
                        "get", attempt, NOTHING_YET, rest, operation, whole
                    )
                except ShoalTimeoutError:
                    if until is deadline:
                        raise
            return None

        def finish(found: Any) -> Taken:
            return taken(found, want)

        def no_turn() -> Exception:
            return ShoalTimeoutError(too_late(queue, ChannelEmpty(), deadline.timeout))

        self._withhold(key)
        self._turns.start(key, deadline, work, finish, no_turn, future=future)
        future.add_done_callback(lambda _: self._release(key))
        return future

    def set_aside(self, key: Hashable, error: ChannelDecodeError) -> None:
        """Let the next get of a key raise an error; stop direct gets, which would not raise it."""
        super().set_aside(key, error)
        with self._lock:
            self.direct.pop(key, None)

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
        self._shelf.declare(key, maxsize, None, "")

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        return [WeightedItem(weight, item) for weight, item in self._queue(key).peek()]

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of the session."""
        return counts_of(self._queue(key), self._shelf.session)

    def noted_host(self, key: Hashable) -> int | None:
        """Return the index of the actor that has a key, as noted in actor 0's memory.

        None if the key is new. Call this only on the queues of actor 0.
        """
        routes = Queue(self._shelf.session, None, encoded=ROUTES, name="the routes")
        return dict(route for _, route in routes.peek()).get(canonical(key))

    def close(self) -> None:
        """Accept no more items."""
        self._shelf.session.close_queues()

    # Queues.

    def _queue(self, key: Hashable) -> Queue:
        with self._lock:
            queue = self._opened.get(key)
            if queue is None:
                if len(self._opened) >= _MANY:
                    self._opened.clear()
                    self.direct.clear()
                queue = self._opened[key] = self._shelf.open(key)
            if key not in self._withheld and key not in self._spoilt:
                self.direct[key] = queue
            return queue

    def _withhold(self, key: Hashable) -> None:
        """Keep direct calls from overtaking asynchronous calls that are pending."""
        with self._lock:
            self._withheld[key] += 1
            self.direct.pop(key, None)

    def _release(self, key: Hashable) -> None:
        with self._lock:
            self._withheld[key] -= 1
            if self._withheld[key] <= 0:
                del self._withheld[key]
                self._sequences.pop(key, None)

    @staticmethod
    def _wait(what: str, queue: Queue, awaited: str, deadline: Deadline) -> LongWait:
        return LongWait(
            lambda: f"{describe_self()}: {what} waits for {awaited} in {queue.name}",
            deadline,
            deadline.elapsed,
        )


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
        raise ShoalTimeoutError(too_late(queue, ChannelFull(), deadline.timeout))


def _as_it_is(error: BaseException) -> BaseException:
    return error
