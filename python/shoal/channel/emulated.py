"""`EmulatedQueues`: a channel's queues behind emulated links, on which items take time.

A put is over when its item has arrived, as with a channel on another node, so items that were put
are in the channel whatever becomes of their producer. Asynchronous puts are on their way together.
A get waits for the way of its items from the channel to the consumer.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import math
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait, expect_event
from shoal.errors import ShoalTimeoutError
from shoal.fork import ChildStage, in_child, reset_in_child
from shoal.futures import Step, ends_in_time, fail, fulfil
from shoal.loop import submit
from shoal.net_emulation import EmulatedNetwork, Endpoint, Link
from shoal.pickling import nbytes_of
from shoal.queues.arrays import new_array
from shoal.queues.counts import Counts
from shoal.queues.protocol import (
    NOTHING,
    Future,
    Got,
    Queues,
    Taken,
    Want,
    leased,
    set_done,
)
from shoal.queues.settings import ChannelSettings
from shoal.queues.shared import taken as taken_of
from shoal.queues.wait import long_wait, result_of
from shoal.shm import Parcel
from shoal.shm.refusals import Refusal, timeout_error

__all__ = ["EmulatedQueues"]

_LEAST_S = 0.001
"""Shortest sleep, in seconds."""
_EXIT_S = 10.0
"""Seconds that the end of a process waits for an item longer than its way takes."""


class EmulatedQueues:
    """Keyed queues of an actor to which and from which items take time.

    Args:
        queues: The queues without the links.
        network: The links.
        settings: The channel.
        endpoint: The actor's endpoint.
        encode: Makes the message of an item, which has its bytes as `nbytes`.

    Attributes:
        inner: The queues without the links.
    """

    def __init__(
        self,
        queues: Queues,
        network: EmulatedNetwork,
        settings: ChannelSettings,
        endpoint: Endpoint,
        encode: Callable[[Any], Any] = Parcel.of,
    ) -> None:
        self.inner = queues
        self._network = network
        self._settings = settings
        self._endpoint = endpoint
        self._encode = encode
        self.reset()
        reset_in_child(self)

    @property
    def transport(self) -> str:
        """The transport of the queues without the links."""
        return self.inner.transport

    def reset(self) -> None:
        """Forget the items on their way: in a forked child they belong to the parent."""
        # The last asynchronous put of each key that is on its way: done when it is handed on.
        self._last: dict[Hashable, Future] = {}

    # Puts.

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item; a call that does not wait for room takes the time of its way too."""
        item, arrival = self._sent(item)
        self._travel_there(key, arrival, deadline)
        self.inner.put(key, item, weight, deadline)

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        sent = [self._sent(item) for item in items]  # they are on their way together
        for count, ((item, arrival), weight) in enumerate(zip(sent, weights, strict=True)):
            try:
                self._travel_there(key, arrival, deadline)
                self.inner.put(key, item, weight, deadline)
            except Exception as error:
                set_done(error, count)
                raise

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put, which comes after those that this process started before."""
        item, arrival = self._sent(item)
        earlier = self._last.get(key)
        if arrival is None and earlier is None:
            return self.inner.start_put(key, item, weight, deadline)
        left = self._left(arrival)  # may fail
        future, handed, limit = Step(), Future(), _of_way(deadline)
        self._last[key] = handed
        _leave_after(future, left)

        def hand_on() -> None:
            inner = future.take(partial(self.inner.start_put, key, item, weight, deadline))
            if inner is not None:
                inner.add_done_callback(partial(_move, future))

        async def carry() -> None:
            try:
                if earlier is not None:
                    before = asyncio.wrap_future(earlier)
                    await asyncio.wait([before], timeout=limit.remaining_or_none())
                    if not before.done():
                        fail(future, self._too_late("put", key, limit))
                        await asyncio.wait([before])  # later puts still come after it
                        return
                left = await self._left_in_loop(arrival)
                expect_event(min(left, limit.remaining))
                await asyncio.sleep(min(left, limit.remaining))
                if left > 0 and limit.expired and await self._left_in_loop(arrival) > 0:
                    fail(future, self._too_late("put", key, limit))
                else:
                    hand_on()
            except Exception as error:  # noqa: BLE001  (it is the result of the put)
                fail(future, error)
            finally:
                if self._last.get(key) is handed:
                    del self._last[key]
                handed.set_result(None)

        submit(carry())
        return future

    def reserve(self, _key: Hashable, shape: tuple[int, ...], dtype: Any, _: Deadline) -> Any:
        """Return a new array; its put copies it, as between nodes."""
        return new_array(shape, dtype)

    def _sent(self, item: Any) -> tuple[Any, float | None]:
        """Book an item; return its message and its arrival, None if it arrives at once."""
        link = self._network.table.find(self._network.own(), self._endpoint)
        if link is None:
            return item, None
        message = self._encode(item)  # once: the queues take it as it is
        return message, self._network.arrival(link, message.nbytes)

    def _left(self, arrival: float | None) -> float:
        return 0.0 if arrival is None else max(0.0, arrival - self._network.now())

    async def _left_in_loop(self, arrival: float | None) -> float:
        """Same as `_left`; a call of the manager is made in a thread, so the loop does not wait."""
        if arrival is None:
            return 0.0
        now = self._network.now_at_once()
        if now is not None:
            return max(0.0, arrival - now)
        try:
            left = asyncio.get_running_loop().run_in_executor(None, self._left, arrival)
        except RuntimeError:  # the process ends, and gives no more work to threads
            return self._left(arrival)
        return await left

    def _travel_there(
        self, key: Hashable, arrival: float | None, deadline: Deadline | None
    ) -> None:
        """Wait until an item of a put has arrived, and the asynchronous puts before it have."""
        limit = _of_way(deadline)
        earlier = self._last.get(key)
        if arrival is None and earlier is None:
            return
        wait = self._way(f"to {self._settings.shown(key)}", limit)
        self._travel("put", key, arrival, wait)
        if earlier is not None and not ends_in_time(earlier, wait):
            raise self._too_late("put", key, limit)

    def _way(self, where: str, limit: Deadline) -> LongWait:
        return LongWait(
            lambda: f"{describe_self()}: an item is on its way {where}",
            limit,
            limit.elapsed,
        )

    def _travel(self, operation: str, key: Hashable, arrival: float | None, wait: LongWait) -> None:
        """Wait until an item has arrived."""
        with wait:
            while left := self._left(arrival):
                if wait.deadline.expired:
                    raise self._too_late(operation, key, wait.deadline)
                expect_event(left)
                time.sleep(max(_LEAST_S, min(left, wait.step())))
                wait.tick()

    def _too_late(self, operation: str, key: Hashable, deadline: Deadline) -> ShoalTimeoutError:
        return ShoalTimeoutError(
            f"{operation}: {self._settings.shown(key)}: nothing arrived within "
            f"{deadline.timeout:g} s over the link that cluster.net_emulation emulates"
        )

    # Gets.

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items; a call that does not wait for them takes the time of their way too."""
        link = self._link_from()
        if link is None:
            return self.inner.take(key, want, deadline)
        if deadline is None or deadline.timeout == 0:
            on_lease = want._replace(lease=True)
            found = leased(partial(self.inner.take, key, on_lease, deadline), want)
            taken = taken_of(found, want)
            try:
                arrival = self._arrival_of(taken, want, link)
                wait = self._way(f"from {self._settings.shown(key)}", _of_way(None))
                self._travel(want.operation, key, arrival, wait)
            except BaseException:
                taken.give_back()
                raise
        else:
            future = self._start_take(key, want, deadline, link)
            shown, channel = self._settings.shown(key), self._settings.page_name
            # The future fails by itself when the deadline has passed.
            taken = result_of(future, long_wait("get", "an item", shown, deadline, channel))
        return taken.received()

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get."""
        link = self._link_from()
        if link is None:
            return self.inner.start_take(key, want, deadline)
        return self._start_take(key, want, deadline, link)

    def _link_from(self) -> Link | None:
        return self._network.table.find(self._endpoint, self._network.own())

    def _arrival_of(self, taken: Taken, want: Want, link: Link) -> float:
        """Book items that were taken; return when they arrive."""
        return self._network.arrival(link, _size_of(taken.value, want) if link.is_limited else 0)

    def _start_take(self, key: Hashable, want: Want, deadline: Deadline, link: Link) -> Future:
        future: Future = Future()
        limit = 0.0
        if deadline.timeout > 0:
            # What is taken later than this cannot arrive in time.
            limit = deadline.remaining - link.delay_s
        if limit < 0:
            submit(self._fail_late(future, key, want, deadline, NOTHING))
            return future
        inner = self.inner.start_take(key, want, Deadline(limit))
        future.add_done_callback(lambda ended: inner.cancel() if ended.cancelled() else None)

        def arrived(ended: Future) -> None:
            submit(self._carry(ended, future, key, want, deadline, link))

        inner.add_done_callback(arrived)
        return future

    async def _carry(
        self,
        inner: Future,
        future: Future,
        key: Hashable,
        want: Want,
        deadline: Deadline,
        link: Link,
    ) -> None:
        """Complete a get whose items were taken, once they have arrived."""
        if inner.cancelled():
            future.cancel()
            return
        error = inner.exception()
        if error is not None:
            refusal = Refusal.of(error) if isinstance(error, ShoalTimeoutError) else None
            if refusal is None:
                fail(future, error)
            else:
                await self._fail_late(future, key, want, deadline, refusal)
            return
        taken: Taken = inner.result()
        limit = _of_way(deadline)
        try:
            # In a thread: it may call the manager.
            book = partial(self._arrival_of, taken, want, link)
            arrival = await asyncio.get_running_loop().run_in_executor(None, book)
            left = await self._left_in_loop(arrival)
            expect_event(left)
            await asyncio.sleep(min(left, limit.remaining))
            if limit.expired and await self._left_in_loop(arrival) > 0:
                raise self._too_late(want.operation, key, limit)  # noqa: TRY301  (also given back)
        except Exception as failed:  # noqa: BLE001  (it is the result of the get)
            taken.give_back()
            fail(future, failed)
            return
        if not fulfil(future, lambda: taken):
            taken.give_back()

    async def _fail_late(
        self, future: Future, key: Hashable, want: Want, deadline: Deadline, refusal: Refusal
    ) -> None:
        """Fail a get at its deadline."""
        expect_event(min(deadline.remaining, 3600.0))
        await asyncio.sleep(deadline.remaining)
        shown = self._settings.shown(key)
        fail(future, timeout_error(want.operation, shown, deadline.timeout, refusal))

    # Questions.

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds; those on their way do not count."""
        return self.inner.qsize(key)

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait for room."""
        return self.inner.full(key)

    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""
        return self.inner.maxsize(key)

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""
        self.inner.declare(key, maxsize)

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        return self.inner.peek_all(key)

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of its memory."""
        return self.inner.counts(key)

    def close(self) -> None:
        """Accept no more items."""
        self.inner.close()


def _of_way(deadline: Deadline | None) -> Deadline:
    """Return the deadline of an item's way: a call that does not wait takes its time all the same.

    Calls of an actor on another node do the same.
    """
    return Deadline(math.inf) if deadline is None or deadline.timeout == 0 else deadline


def _size_of(value: Any, want: Want) -> int:
    """Return the bytes of items that were taken."""
    if want.lease:
        value = value.value if want.kind == "one" else [lease.value for lease in value]
    found = nbytes_of(value)
    return int(Parcel.of(value).nbytes) if found is None else found


def _move(future: Future, inner: Future) -> None:
    """Complete a put that was handed on."""
    if inner.cancelled():
        fail(future, concurrent.futures.CancelledError())
    else:
        fulfil(future, inner.result)


# Items on their way when the process ends.

_on_their_way: dict[Future, float] = {}
_registered = False


def _leave_after(future: Future, seconds: float) -> None:
    """Let this process end only when an item has arrived, unless it is killed."""
    global _registered  # noqa: PLW0603  (a process has one list of functions for its end)
    if not _registered:
        # Now, not at the import: functions for the end run in reverse order, so this one comes
        # before that of a cluster which was made before.
        atexit.register(_wait_for_items)
        _registered = True
    _on_their_way[future] = time.monotonic() + seconds + _EXIT_S
    future.add_done_callback(lambda _: _on_their_way.pop(future, None))


def _wait_for_items() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        while waiting := dict(_on_their_way):
            left = max(waiting.values()) - time.monotonic()
            if left <= 0:
                return
            concurrent.futures.wait(waiting, left)


in_child(ChildStage.FORGET, _on_their_way.clear)
