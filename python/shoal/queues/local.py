"""A channel within one process: no actor, no shared memory, and items are passed uncopied."""

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ShoalTimeoutError,
)
from shoal.futures import Asking, done, fail, fulfil
from shoal.queues.arrays import new_array
from shoal.queues.counts import Counts
from shoal.queues.keyed_queues import KeyedQueues, Message, Waiter
from shoal.queues.leases import LocalLease
from shoal.queues.protocol import (
    DEFAULT_KEY,
    NOTHING,
    ONE,
    Future,
    Got,
    Outcome,
    Taken,
    Want,
    WeightedItem,
    set_done,
)
from shoal.queues.settings import DROPPING, ChannelSettings
from shoal.shm.refusals import Refusal, timeout_error

__all__ = ["LocalChannel", "LocalQueues"]

_log = logging.getLogger("shoal")

_MANY = 4096
"""Keep put and get totals for at most this many keys; keys in use are always kept."""


class _Item(NamedTuple):
    """The payload of a message in a local channel.

    Attributes:
        value: The item.
        put_at: When it was put, by the monotonic clock.
        redelivered: Whether a lease of it was given back.
    """

    value: Any
    put_at: float
    redelivered: bool = False


class LocalQueues:
    """Keyed queues for the threads and event loops of one process.

    Args:
        settings: The channel.
    """

    transport = "local"

    def __init__(self, settings: ChannelSettings) -> None:
        self._settings = settings
        self._queues = KeyedQueues(settings.maxsize, settings.capacity)
        self._lock = threading.Lock()
        self._woken: list[Callable[[], None]] = []
        self._totals: dict[Hashable, list[int]] = {}
        self._most = _MANY
        self._warned = False

    @contextlib.contextmanager
    def _locked(self) -> Iterator[KeyedQueues]:
        """Hold the lock; callbacks of waiters that were woken run after it is released."""
        try:
            with self._lock:
                yield self._queues
        finally:
            woken, self._woken = self._woken, []
            for wake in woken:
                wake()

    # Puts.

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""
        if deadline is None or self._settings.policy == "error":
            with self._locked() as queues:
                self._check_put("put_nowait", key, self._offer(queues, key, item, weight), None)
            return
        self._wait(self._begin_put(key, item, weight), deadline, "room")

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        for count, (item, weight) in enumerate(zip(items, weights, strict=True)):
            try:
                self.put(key, item, weight, deadline)
            except Exception as error:
                set_done(error, count)
                raise

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put."""
        if self._settings.policy == "error":
            self.put(key, item, weight, None)
            return done(None)
        return self._later(self._begin_put(key, item, weight), deadline, lambda _: None)

    def reserve(self, key: Hashable, shape: tuple[int, ...], dtype: Any, _: Deadline) -> Any:
        """Return a new array, which a put passes on as it is."""
        if self._queues.closed:
            raise ChannelClosed(f"reserve: {self._settings.shown(key)} is closed")
        return new_array(shape, dtype)

    def _offer(self, queues: KeyedQueues, key: Hashable, item: Any, weight: int) -> Outcome:
        """Put an item if there is room, or if the channel's policy makes room."""
        message = Message(weight, _Item(item, time.monotonic()))
        outcome = queues.put(key, message)
        if outcome is Outcome.FULL and self._settings.policy in DROPPING:
            everything = self._settings.policy == "keep_latest"
            for _ in range(queues.qsize(key) if everything else 1):
                queues.take(key)
            outcome = queues.put(key, message)
        if outcome in (Outcome.OK, Outcome.NEAR_CAPACITY):
            self._count(key, puts=1)
        if outcome is Outcome.NEAR_CAPACITY and not self._warned:
            self._warned = True
            _log.warning(
                "%s: it holds more than 80 %% of the %d items that a key without maxsize may hold; "
                "then puts will wait",
                self._settings.shown(key),
                self._settings.capacity,
            )
        return outcome

    def _begin_put(self, key: Hashable, item: Any, weight: int) -> tuple[Waiter, Future, Want]:
        with self._locked() as queues:
            outcome = self._offer(queues, key, item, weight)
            waiter = Waiter(key, outcome=outcome)
            if outcome is Outcome.FULL:
                waiter = queues.wait_put(key, Message(weight, _Item(item, time.monotonic())))
                self._count(key, puts=1)
            return self._watch(waiter, ONE)

    def _check_put(
        self, operation: str, key: Hashable, outcome: Outcome, deadline: Deadline | None
    ) -> None:
        where = self._settings.shown(key)
        if outcome in (Outcome.FULL, Outcome.TIMEOUT):
            # As at the refusal: another thread may have taken messages since.
            own = self._queues.maxsize(key)
            bound = own or self._settings.capacity
            refusal = Refusal("messages" if own else "backlog", bound, bound, 0)
            # The core's words for a backlog name the session's, which a local channel does not have.
            counted = f"it holds {bound} messages, as many as capacity={bound} allows"
            why = refusal.why() if own else counted
            late = deadline if outcome is Outcome.TIMEOUT else None
            within = "" if late is None else f" within {late.timeout:g} s"
            cls = ChannelFull if late is None else ShoalTimeoutError
            refused = cls(f"{operation}: no room in {where}{within}: {why}")
            refused.refusal = refusal[:]
            raise refused
        if outcome in (Outcome.CLOSED, Outcome.GONE):
            raise ChannelClosed(f"{operation}: {where} is closed")

    # Gets.

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""
        if deadline is None:
            with self._locked() as queues:
                items = self._pop(queues, key, want)
            if not items:
                self._raise_nothing(key, want, None, closed=self._queues.closed)
            return self._made_of(key, want, items)
        for phase, until in want.phases(deadline):
            waiter, _, _ = begun = self._begin_get(key, phase)
            try:
                self._wait(begun, until, "an item")
            except ShoalTimeoutError:
                if until is deadline:
                    raise
            else:
                return self._made_of(key, want, waiter.items)
        return None

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get."""
        phases = list(want.phases(deadline))
        return self._start_phase(key, want, phases)

    def _start_phase(
        self, key: Hashable, want: Want, phases: list[tuple[Want, Deadline]]
    ) -> Future:
        (phase, until), *later = phases
        begun = self._begin_get(key, phase)
        waiter = begun[0]

        def made(_: Waiter) -> Taken:
            value = self._made_of(key, want, waiter.items)
            return Taken(value, give_back=partial(self._cancel, waiter))

        future = self._later(begun, until, made)
        if not later:
            return future
        outer: Future = concurrent.futures.Future()

        def go_on(first: Future) -> None:
            if first.cancelled():
                outer.cancel()
            elif isinstance(first.exception(), ShoalTimeoutError):
                second = self._start_phase(key, want, later)
                outer.add_done_callback(lambda o: second.cancel() if o.cancelled() else None)
                second.add_done_callback(partial(_copy, outer))
            else:
                _copy(outer, first)

        outer.add_done_callback(lambda o: future.cancel() if o.cancelled() else None)
        future.add_done_callback(go_on)
        return outer

    def _pop(self, queues: KeyedQueues, key: Hashable, want: Want) -> list[Message]:
        if want.kind == "batch":
            items = queues.take(key, want.amount, want.least)
        else:
            items = []
            while len(items) < want.amount and (more := queues.take(key)):
                items += more
        self._count(key, gets=len(items))
        return items

    def _begin_get(self, key: Hashable, want: Want) -> tuple[Waiter, Future, Want]:
        with self._locked() as queues:
            items = self._pop(queues, key, want)
            if items:
                return self._watch(Waiter(key, outcome=Outcome.OK, items=items), want)
            if queues.closed:
                return self._watch(Waiter(key, outcome=Outcome.CLOSED), want)
            target = want.amount if want.kind == "batch" else 0
            return self._watch(queues.wait_get(key, target, want.least), want)

    def _made_of(self, key: Hashable, want: Want, items: list[Message]) -> Any:
        if want.lease:
            leases = [
                LocalLease(i.payload.value, i.payload.redelivered, partial(self._return, key, i))
                for i in items
            ]
            return leases[0] if want.kind == "one" else leases
        values = [item.payload.value for item in items]
        return values[0] if want.kind == "one" else values

    def _return(self, key: Hashable, message: Message) -> None:
        with self._locked() as queues:
            again = message.payload._replace(redelivered=True)
            queues.put_again(key, message._replace(payload=again))

    def _raise_nothing(
        self, key: Hashable, want: Want, deadline: Deadline | None, *, closed: bool
    ) -> None:
        operation, where = want.operation, self._settings.shown(key)
        if closed:
            raise ChannelClosed(f"{operation}: {where} is closed and empty")
        if deadline is None:
            empty = ChannelEmpty(f"{operation}_nowait: {where} is empty")
            empty.refusal = NOTHING[:]
            raise empty
        refusal = NOTHING
        if want.kind == "batch":
            needed = want.amount if want.least is None else want.least
            refusal = Refusal("weight", self._queues.qsize(key), needed, 0)
        raise timeout_error(operation, where, deadline.timeout, refusal)

    def set_aside(self, key: Hashable, error: ChannelDecodeError) -> None:
        """Do nothing: items of a local channel are not decoded."""

    # Questions.

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""
        with self._locked() as queues:
            return queues.qsize(key)

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        with self._locked() as queues:
            return queues.full(key)

    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""
        with self._locked() as queues:
            return queues.maxsize(key)

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own.

        Raises:
            ChannelExistsError: The key was used, with another bound.
        """
        with self._locked() as queues:
            used = any(self._totals.get(key, ())) or any(queues.waiting(key))
            there = queues.maxsize(key)
            if (used or queues.declared(key)) and there != maxsize:
                raise ChannelExistsError(
                    f"{self._settings.shown(key)} has maxsize={there}, not maxsize={maxsize}"
                )
            queues.declare(key, maxsize)

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        with self._locked() as queues:
            return [WeightedItem(m.weight, m.payload.value) for m in queues.peek_all(key)]

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key."""
        with self._locked() as queues:
            held = queues.peek_all(key)
            putters, getters = queues.waiting(key)
            oldest = time.monotonic() - held[0].payload.put_at if held else 0.0
            puts, gets = self._totals.get(key, (0, 0))
            return Counts(len(held), 0, puts - putters, gets, putters, getters, oldest)

    def close(self) -> None:
        """Accept no more items."""
        with self._locked() as queues:
            queues.close()

    def delete(self) -> None:
        """Accept no more items, and drop those that there are."""
        with self._locked() as queues:
            queues.close()
            for key in queues.active_keys():
                queues.drop(key)

    def _count(self, key: Hashable, puts: int = 0, gets: int = 0) -> None:
        """Add to the totals of a key; drop the totals of unused keys once there are many."""
        if not puts and not gets:
            return
        total = self._totals.setdefault(key, [0, 0])
        total[0] += puts
        total[1] += gets
        if len(self._totals) > self._most:
            used = {key, *self._queues.active_keys()}
            self._totals = {each: self._totals[each] for each in self._totals if each in used}
            self._most = max(_MANY, 2 * len(self._totals))

    # Waiting.

    def _watch(self, waiter: Waiter, want: Want) -> tuple[Waiter, Future, Want]:
        woken: Future = concurrent.futures.Future()
        if waiter.outcome is Outcome.PENDING:
            waiter.wake = lambda: self._woken.append(partial(self._wake, waiter, want, woken))
        else:
            woken.set_result(None)
        return waiter, woken, want

    def _wake(self, waiter: Waiter, want: Want, woken: Future) -> None:
        if waiter.message is None and waiter.items:
            # The waiter waited for one item; `get_many` takes more if there are any.
            more = want.amount - len(waiter.items) if want.kind == "many" else 0
            with self._locked() as queues:
                self._count(waiter.key, gets=len(waiter.items))
                if more:
                    rest = want._replace(amount=more)
                    waiter.items += self._pop(queues, waiter.key, rest)
        woken.set_result(None)

    def _wait(self, begun: tuple[Waiter, Future, Want], deadline: Deadline, awaited: str) -> None:
        waiter, woken, want = begun
        where = self._settings.shown(waiter.key)
        wait = LongWait(
            lambda: f"{describe_self()}: waits for {awaited} in {where}", deadline, deadline.elapsed
        )
        try:
            while not woken.done() and not deadline.expired:
                concurrent.futures.wait([woken], wait.step())
                wait.tick()
        except BaseException:
            self._cancel(waiter)
            raise
        self._time_out(waiter)
        self._check(waiter, want, deadline)

    def _check(self, waiter: Waiter, want: Want, deadline: Deadline) -> None:
        if waiter.items or waiter.outcome in (Outcome.OK, Outcome.NEAR_CAPACITY):
            return
        if waiter.message is not None:
            self._check_put("put", waiter.key, waiter.outcome, deadline)
        closed = waiter.outcome in (Outcome.CLOSED, Outcome.GONE, Outcome.CANCELLED)
        self._raise_nothing(waiter.key, want, deadline, closed=closed)

    def _later(
        self,
        begun: tuple[Waiter, Future, Want],
        deadline: Deadline,
        make: Callable[[Waiter], Any],
    ) -> Future:
        waiter, woken, want = begun
        future: Future = concurrent.futures.Future()
        if waiter.message is not None:
            # The item may be in the channel before the future is done.
            future = Asking(lambda: self._withdraw(waiter, future))
        timer: threading.Timer | None = None
        if not woken.done() and not math.isinf(deadline.timeout):
            timer = threading.Timer(deadline.remaining, self._time_out, (waiter,))
            timer.daemon = True
            timer.start()

        def result() -> Any:
            self._check(waiter, want, deadline)
            return make(waiter)

        def on_woken(_: Future) -> None:
            if not fulfil(future, result):
                self._cancel(waiter)

        def on_end(ended: Future) -> None:
            if timer is not None:
                timer.cancel()
            if ended.cancelled():
                self._cancel(waiter)

        woken.add_done_callback(on_woken)
        future.add_done_callback(on_end)
        return future

    def _time_out(self, waiter: Waiter) -> None:
        with self._locked() as queues:
            if waiter.outcome is Outcome.PENDING:
                queues.cancel(waiter)
                waiter.finish(Outcome.TIMEOUT)
                self._count(waiter.key, puts=-(waiter.message is not None))

    def _withdraw(self, waiter: Waiter, future: Future) -> None:
        """Cancel a put if it still waits."""
        self._cancel(waiter)
        if waiter.outcome is Outcome.CANCELLED and isinstance(future, Asking):
            future.end()

    def _cancel(self, waiter: Waiter) -> None:
        with self._locked() as queues:
            if waiter.outcome is Outcome.PENDING:
                self._count(waiter.key, puts=-(waiter.message is not None))
            self._count(waiter.key, gets=-len(waiter.items))
            queues.cancel(waiter)


def _copy(to: Future, source: Future) -> None:
    if source.cancelled():
        to.cancel()
        return
    error = source.exception()
    if error is not None:
        fail(to, error)
        return
    result = source.result()
    if not fulfil(to, lambda: result):
        result.give_back()


class LocalChannel:
    """A local channel with the methods that existing code calls.

    Args:
        maxsize: Items per key; 0 for no bound below 262,144.
        settings: Description of the channel; created from `maxsize` if not given.
    """

    def __init__(self, maxsize: int = 0, settings: ChannelSettings | None = None) -> None:
        self.settings = ChannelSettings("local", maxsize) if settings is None else settings
        self.queues = LocalQueues(self.settings)

    def create_queue(self, key: Hashable, maxsize: int = 0) -> None:
        """Give a key a bound of its own."""
        self.queues.declare(key, maxsize)

    def qsize(self, key: Hashable = DEFAULT_KEY) -> int:
        """Return how many items a key holds."""
        return self.queues.qsize(key)

    def empty(self, key: Hashable = DEFAULT_KEY) -> bool:
        """Return whether a key holds nothing."""
        return self.queues.qsize(key) == 0

    def full(self, key: Hashable = DEFAULT_KEY) -> bool:
        """Return whether a put would wait."""
        return self.queues.full(key)

    def maxsize(self, key: Hashable = DEFAULT_KEY) -> int:
        """Return the bound of a key."""
        return self.queues.maxsize(key)

    def put(
        self, item: Any, weight: int = 0, key: Hashable = DEFAULT_KEY, nowait: bool = False
    ) -> None:
        """Put an item.

        Raises:
            ChannelFull: There is no room, and `nowait` is set.
        """
        self.queues.put(key, item, weight, None if nowait else Deadline(math.inf))

    def get(self, key: Hashable = DEFAULT_KEY, nowait: bool = False) -> Any:
        """Get the oldest item.

        Raises:
            ChannelEmpty: The key holds no item, and `nowait` is set.
        """
        return self.queues.take(key, ONE, None if nowait else Deadline(math.inf))

    async def get_batch(self, target_weight: int, key: Hashable = DEFAULT_KEY) -> list[Any]:
        """Get items until their weights reach the target, without blocking the event loop."""
        want = Want("batch", target_weight)
        begun = self.queues.start_take(key, want, Deadline(math.inf))
        taken: Taken = await asyncio.wrap_future(begun)
        items: list[Any] = taken.value
        return items

    def peek_all(self, key: Hashable = DEFAULT_KEY) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        return self.queues.peek_all(key)
