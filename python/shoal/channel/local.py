"""A channel within one process: real waiting, no actor, and items are passed as they are."""

import concurrent.futures
import contextlib
import math
import threading
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from shoal.channel.backend import Future, Got, OnGot, OnPut
from shoal.channel.item import DEFAULT_KEY, WeightedItem
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelEmpty, ChannelFull
from shoal.transport.pending import fulfil
from shoal.transport.queues import CAPACITY, KeyedQueues, Message, Outcome, Waiter

__all__ = ["LocalChannel", "LocalQueues"]


class LocalQueues:
    """Keyed queues for the threads and event loops of one process.

    Args:
        maxsize: Items per key, 0 for `capacity`.
        capacity: The bound of a key without `maxsize`.
        name: The channel's name, for the log.
    """

    def __init__(self, maxsize: int = 0, capacity: int = CAPACITY, name: str = "") -> None:
        self._name = name
        self._queues = KeyedQueues(maxsize, capacity)
        self._lock = threading.Lock()
        self._woken: list[Callable[[], None]] = []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[KeyedQueues]:
        """Hold the lock; what woke up meanwhile runs afterwards, free to use the queues."""
        with self._lock:
            yield self._queues
            woken, self._woken = self._woken, []
        for wake in woken:
            wake()

    def put(
        self, key: Hashable, weight: int, item: Any, deadline: Deadline | None, then: OnPut
    ) -> None:
        """Put an item; without a deadline do not wait."""
        if deadline is None:
            with self._locked() as queues:
                outcome = queues.put(key, Message(weight, 0, item))
            then(outcome)
            return
        self._wait(self._begin_put(key, weight, item), deadline, lambda w: then(w.outcome))

    def start_put(
        self, key: Hashable, weight: int, item: Any, deadline: Deadline, then: OnPut
    ) -> Future:
        """Start a put."""
        waiter, woken = self._begin_put(key, weight, item)
        return self._later(waiter, woken, deadline, lambda: then(waiter.outcome))

    def get(self, key: Hashable, target: int, deadline: Deadline | None, then: OnGot) -> Any:
        """Get an item or a batch; without a deadline do not wait."""
        if deadline is None:
            with self._locked() as queues:
                items = queues.take(key, target)
                nothing = Outcome.CLOSED if queues.closed else Outcome.EMPTY
            return then(Outcome.OK if items else nothing, _weighted(items))
        begun = self._begin_get(key, target)
        return self._wait(begun, deadline, lambda w: then(w.outcome, _weighted(w.items)))

    def start_get(
        self, key: Hashable, target: int, deadline: Deadline, then: OnGot
    ) -> tuple[Future, Callable[[], None]]:
        """Start a get."""
        waiter, woken = self._begin_get(key, target)
        future = self._later(
            waiter, woken, deadline, lambda: then(waiter.outcome, _weighted(waiter.items))
        )
        return future, partial(self._cancel, waiter)

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""
        with self._locked() as queues:
            return queues.qsize(key)

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        with self._locked() as queues:
            return queues.full(key)

    def maxsize(self, key: Hashable) -> int:
        """Return a key's bound."""
        with self._locked() as queues:
            return queues.maxsize(key)

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""
        with self._locked() as queues:
            queues.declare(key, maxsize)

    def peek_all(self, key: Hashable) -> Got:
        """Return what a key holds."""
        with self._locked() as queues:
            return _weighted(queues.peek_all(key))

    def close(self) -> None:
        """Accept nothing more."""
        with self._locked() as queues:
            queues.close()

    def _begin_put(self, key: Hashable, weight: int, item: Any) -> tuple[Waiter, Future]:
        with self._locked() as queues:
            message = Message(weight, 0, item)
            outcome = queues.put(key, message)
            if outcome is Outcome.FULL:
                return self._watch(queues.wait_put(key, message))
            return self._watch(Waiter(key, outcome=outcome))

    def _begin_get(self, key: Hashable, target: int) -> tuple[Waiter, Future]:
        with self._locked() as queues:
            items = queues.take(key, target)
            if items:
                return self._watch(Waiter(key, outcome=Outcome.OK, items=items))
            if queues.closed:
                return self._watch(Waiter(key, outcome=Outcome.CLOSED))
            return self._watch(queues.wait_get(key, target))

    def _watch(self, waiter: Waiter) -> tuple[Waiter, Future]:
        woken: Future = concurrent.futures.Future()
        if waiter.outcome is Outcome.PENDING:
            waiter.wake = lambda: self._woken.append(partial(woken.set_result, None))
        else:
            woken.set_result(None)
        return waiter, woken

    def _wait(
        self, begun: tuple[Waiter, Future], deadline: Deadline, then: Callable[[Waiter], Any]
    ) -> Any:
        waiter, woken = begun
        wait = LongWait(partial(self._describe, waiter), deadline)
        try:
            while not woken.done() and not deadline.expired:
                concurrent.futures.wait([woken], wait.step())
                wait.tick()
        except BaseException:
            self._cancel(waiter)
            raise
        self._time_out(waiter)
        return then(waiter)

    def _later(
        self, waiter: Waiter, woken: Future, deadline: Deadline, make: Callable[[], Any]
    ) -> Future:
        future: Future = concurrent.futures.Future()
        timer: threading.Timer | None = None
        if not woken.done() and not math.isinf(deadline.timeout):
            timer = threading.Timer(deadline.remaining, self._time_out, (waiter,))
            timer.daemon = True
            timer.start()

        def on_woken(_: Future) -> None:
            if timer is not None:
                timer.cancel()
            if not fulfil(future, make):
                self._cancel(waiter)

        woken.add_done_callback(on_woken)
        future.add_done_callback(lambda done: self._cancel(waiter) if done.cancelled() else None)
        return future

    def _describe(self, waiter: Waiter) -> str:
        awaited = "an item" if waiter.message is None else "room"
        return (
            f"{describe_self()}: waits for {awaited} in the local channel {self._name!r}, "
            f"key {waiter.key!r}"
        )

    def _time_out(self, waiter: Waiter) -> None:
        with self._locked() as queues:
            if waiter.outcome is Outcome.PENDING:
                queues.cancel(waiter)
                waiter.finish(Outcome.TIMEOUT)

    def _cancel(self, waiter: Waiter) -> None:
        with self._locked() as queues:
            queues.cancel(waiter)


def _weighted(items: list[Message]) -> Got:
    return [WeightedItem(item.weight, item.payload) for item in items]


class LocalChannel:
    """The queues of a local channel under the names that existing code uses.

    Args:
        maxsize: Items per key, 0 for no bound below 262,144.
    """

    def __init__(self, maxsize: int = 0) -> None:
        self.queues = LocalQueues(maxsize)

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
        """Return a key's bound."""
        return self.queues.maxsize(key)

    def put(
        self, item: Any, weight: int = 0, key: Hashable = DEFAULT_KEY, nowait: bool = False
    ) -> None:
        """Put an item.

        Raises:
            ChannelFull: There is no room and `nowait` is set.
        """

        def check(outcome: Outcome) -> None:
            if outcome is Outcome.FULL:
                raise ChannelFull(f"local channel, key {key!r}: it holds all it may")

        self.queues.put(key, weight, item, None if nowait else Deadline(math.inf), check)

    def get(self, key: Hashable = DEFAULT_KEY, nowait: bool = False) -> Any:
        """Get the oldest item.

        Raises:
            ChannelEmpty: There is none and `nowait` is set.
        """

        def one(_: Outcome, items: Got) -> Any:
            if not items:
                raise ChannelEmpty(f"local channel, key {key!r}: it holds nothing")
            return items[0].item

        return self.queues.get(key, 0, None if nowait else Deadline(math.inf), one)

    def peek_all(self, key: Hashable = DEFAULT_KEY) -> Got:
        """Return what a key holds."""
        return self.queues.peek_all(key)
