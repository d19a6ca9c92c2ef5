"""Keyed queues within one process: no actor, no shared memory, and items are passed uncopied."""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from shoal.arrays import new_array
from shoal.deadline import Deadline, expect_event
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ShoalTimeoutError,
    with_items,
)
from shoal.futures import done
from shoal.queues.order import Line, NotYet, Pending, after
from shoal.queues.protocol import (
    DEFAULT_KEY,
    NOTHING,
    ONE,
    Future,
    Got,
    ItemLease,
    Taken,
    Want,
    WeightedItem,
)
from shoal.queues.settings import DROPPING, ChannelSettings
from shoal.queues.usage import Counts
from shoal.queues.wait import JOB_HAS_ENDED, Queues
from shoal.shm.keys import canonical
from shoal.shm.refusals import Refusal, timeout_error

__all__ = ["LocalChannel", "LocalQueues"]

_log = logging.getLogger("shoal")

_MANY = 4096
"""Keep the queues of at most this many keys that hold nothing; keys in use are always kept."""


class _Item(NamedTuple):
    weight: int
    value: Any
    put_at: float
    """When it was put, by the monotonic clock."""
    redelivered: bool = False
    """Whether a lease of it was given back."""


@dataclass(slots=True, eq=False)
class _Queue:
    key: Hashable
    maxsize: int
    declared: bool = False
    items: deque[_Item] = field(default_factory=deque)
    weight: int = 0
    puts: Line = field(default_factory=dict)
    gets: Line = field(default_factory=dict)
    num_put: int = 0
    num_got: int = 0

    @property
    def in_use(self) -> bool:
        return bool(self.items or self.puts or self.gets or self.declared)

    def append(self, item: _Item) -> None:
        self.items.append(item)
        self.weight += item.weight

    def pop(self) -> _Item:
        item = self.items.popleft()
        self.weight -= item.weight
        return item


def _attempted(line: Line, operation: Pending) -> list[Pending]:
    """Attempt an operation; if it has ended, remove it from its line and return it."""
    try:
        operation.attempt()
    except NotYet:
        return []
    del line[operation]
    return [operation]


def _as_it_is(item: Any, _: Hashable) -> Any:
    return item


class LocalQueues(Queues):
    """Keyed queues for the threads and event loops of one process.

    Each key has its own operations that wait, so keys never block each other. A get that waits for a
    batch reserves nothing: until its batch is complete, other gets may take the items.

    Args:
        settings: The channel.
        encode: Turns an item, and its key, into what the queue keeps.
        decode: Turns that, and the key, into the item that a get returns.
    """

    transport = "local"

    def __init__(
        self,
        settings: ChannelSettings,
        encode: Callable[[Any, Hashable], Any] = _as_it_is,
        decode: Callable[[Any, Hashable], Any] = _as_it_is,
    ) -> None:
        super().__init__(settings)
        self._encode, self._decode = encode, decode
        self._queues: dict[Hashable, _Queue] = {}
        self._lock = threading.Lock()
        self._most = _MANY
        self._warned = False
        self.is_closed = False
        self.has_ended = False
        """Whether the job of the channel has ended, which closes it."""

    @contextlib.contextmanager
    def _queue(self, key: Hashable) -> Iterator[_Queue]:
        """Hold the lock; at the end attempt what waits, and then tell callers without the lock."""
        ended: list[Pending] = []
        try:
            with self._lock:
                queue = self._queues.get(key)
                if queue is None:
                    canonical(key)  # refuses what a channel between processes refuses
                    queue = self._queues[key] = _Queue(key, self.settings.maxsize)
                    if len(self._queues) > self._most:
                        kept = {k: q for k, q in self._queues.items() if q.in_use or q is queue}
                        self._queues, self._most = kept, max(_MANY, 2 * len(kept))
                try:
                    yield queue
                finally:
                    ended = self._settle(queue)
        finally:
            for operation in ended:
                operation.conclude()

    def _settle(self, queue: _Queue) -> list[Pending]:
        """Attempt the operations that wait, until none of them succeeds; return those that ended."""
        ended: list[Pending] = []
        before = -1
        while len(ended) > before:
            before = len(ended)
            for get in list(queue.gets):
                if not (queue.items or self.is_closed):
                    break
                ended += _attempted(queue.gets, get)
            # Later puts come after the first one that has to wait.
            while queue.puts and (put := _attempted(queue.puts, next(iter(queue.puts)))):
                ended += put
        return ended

    def _park(self, key: Hashable, operation: Pending, timed: bool, *, puts: bool) -> None:
        """Let an operation wait behind those that wait already."""
        with self._queue(key) as queue:  # which attempts it at the end
            line = queue.puts if puts else queue.gets
            line[operation] = None
        operation.add_done_callback(partial(self._leave, key))
        if timed:
            after(operation.deadline.remaining, operation.expire, operation)

    def _leave(self, key: Hashable, operation: Any) -> None:
        """Forget an operation that was cancelled or whose deadline is over."""
        with self._queue(key) as queue:
            for line in (queue.puts, queue.gets):
                line.pop(operation, None)

    # Puts.

    def try_put(self, key: Hashable, item: Any, weight: int, call: str = "put_nowait") -> None:
        """Put an item, or raise `ChannelFull`."""
        refusal = self._offer(call, key, self._made(item, key, weight))
        if refusal is not None:
            raise self._full(ChannelFull, call, key, refusal)

    def start_put(
        self, key: Hashable, item: Any, weight: int, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a put."""
        if self.settings.policy == "error":
            self.try_put(key, item, weight, "put")
            return done(None)
        new = self._made(item, key, weight)
        refusal = self._offer("put", key, new)
        if refusal is None:
            return done(None)
        put = Pending(
            lambda: self._attempt_put("put", self._queues[key], new),
            deadline,
            lambda _: self._full(ShoalTimeoutError, "put", key, refusal, deadline),
        )
        self._park(key, put, timed, puts=True)
        return put

    def _made(self, item: Any, key: Hashable, weight: int) -> _Item:
        return _Item(weight, self._encode(item, key), time.monotonic())

    def _offer(self, operation: str, key: Hashable, item: _Item) -> Refusal | None:
        """Put an item if there is room; otherwise return why there is none."""
        with self._queue(key) as queue:
            try:
                self._attempt_put(operation, queue, item)
            except NotYet:
                return self._refusal(queue)
        return None

    def _attempt_put(self, operation: str, queue: _Queue, item: _Item) -> None:
        if self.is_closed:
            raise self._closed(operation, queue.key)
        limit, policy = queue.maxsize or self.settings.capacity, self.settings.policy
        if len(queue.items) >= limit:
            if policy not in DROPPING:
                raise NotYet(self._refusal(queue))
            kept = 0 if policy == "keep_latest" else limit - 1
            while len(queue.items) > kept:  # more than one, if items were given back
                queue.pop()
        queue.append(item)
        queue.num_put += 1
        if not self._warned and not queue.maxsize and len(queue.items) * 5 >= limit * 4:
            self._warned = True
            _log.warning(
                "%s: it holds more than 80 %% of the %d items that a key without maxsize may hold; "
                "then puts will wait",
                self._shown(queue.key),
                limit,
            )

    def _refusal(self, queue: _Queue) -> Refusal:
        limit = queue.maxsize or self.settings.capacity
        return Refusal("messages" if queue.maxsize else "backlog", limit, limit, 0)

    def _full(
        self,
        cls: type[ChannelFull | ShoalTimeoutError],
        operation: str,
        key: Hashable,
        refusal: Refusal,
        deadline: Deadline | None = None,
    ) -> ChannelFull | ShoalTimeoutError:
        """Return the error of a put that found no room, by its deadline if one is given."""
        why, bound = refusal.why(), refusal.bound
        if refusal.kind == "backlog":  # whose words name a session, which a local channel lacks
            why = f"it holds {bound} messages, as many as capacity={bound} allows"
        within = "" if deadline is None else f" within {deadline.timeout:g} s"
        error = cls(f"{operation}: no room in {self._shown(key)}{within}: {why}")
        error.refusal = refusal[:]
        return error

    def reserve(self, key: Hashable, shape: tuple[int, ...], dtype: Any, _: Deadline) -> Any:
        """Return a new array, which a put passes on as it is."""
        if self.is_closed:
            raise self._closed("reserve", key)
        return new_array(shape, dtype)

    # Gets.

    def try_take(self, key: Hashable, want: Want) -> Taken:
        """Take items, or raise `ChannelEmpty`."""
        with self._queue(key) as queue:
            try:
                items = self._attempt_take(queue, want)
            except NotYet:
                items = []
        if not items:
            empty = ChannelEmpty(f"{want.operation}_nowait: {self._shown(key)} is empty")
            empty.refusal = NOTHING[:]
            raise empty
        return self._taken(key, want, items)

    def start_take(
        self, key: Hashable, want: Want, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a get."""
        wants = [phase for phase, _ in want.phases(deadline)]
        try:
            with self._queue(key) as queue:
                items = self._attempt_take(queue, wants[0])
            return done(self._taken(key, want, items))
        except NotYet:
            take = Pending(
                lambda: self._attempt_take(self._queues[key], wants[0]),
                deadline,
                lambda _: self._nothing(key, want, deadline),
                partial(self._taken, key, want),
            )
            self._park(key, take, timed, puts=False)

        def settle_for_less() -> None:
            with self._queue(key):  # which attempts it again
                del wants[0]

        if len(wants) > 1:
            expect_event(want.linger)
            after(want.linger, settle_for_less, take)
        return take

    def _attempt_take(self, queue: _Queue, want: Want) -> list[_Item]:
        if not queue.items:
            if self.is_closed:
                raise self._closed(want.operation, queue.key, " and empty")
            raise NotYet(NOTHING)
        batch = want.kind == "batch"
        needed = want.amount if want.least is None else want.least
        full = len(queue.items) >= (queue.maxsize or self.settings.capacity)
        # If no more items can arrive, the present ones have to be enough for a batch.
        if batch and queue.weight < needed and not (self.is_closed or full):
            raise NotYet(Refusal("weight", len(queue.items), needed, 0))
        items: list[_Item] = []
        total = 0
        while queue.items:
            more = queue.items[0].weight if batch else 1
            if items and total + more > want.amount:
                break
            items.append(queue.pop())
            total += more
            if total >= want.amount:
                break
        queue.num_got += len(items)
        return items

    def _taken(self, key: Hashable, want: Want, items: list[_Item]) -> Taken:
        """Return the result of a get."""
        values: list[Any] = []
        kept: list[_Item] = []
        errors: list[ChannelDecodeError] = []
        for item in items:
            try:
                value = self._decode(item.value, key)
            except ChannelDecodeError as failed:
                errors.append(failed)
                continue
            if want.lease:
                give_back = partial(self._deliver_again, key, item)
                value = ItemLease(value, item.redelivered, give_back)
            values.append(value)
            kept.append(item)
        error = with_items(errors, values) if errors else None
        if error is not None and not kept:
            raise error
        return Taken.of(values, want, error, give_back=partial(self._give_back, key, kept))

    def _give_back(self, key: Hashable, items: list[_Item]) -> None:
        """Return items to the front, in the order in which they were taken."""
        with self._queue(key) as queue:
            queue.items.extendleft(reversed(items))
            queue.weight += sum(item.weight for item in items)
            queue.num_got -= len(items)

    def _deliver_again(self, key: Hashable, item: _Item) -> None:
        """Append an item whose lease was given back, whatever the bound."""
        with self._queue(key) as queue:
            queue.append(item._replace(redelivered=True))

    def _nothing(self, key: Hashable, want: Want, deadline: Deadline) -> ShoalTimeoutError:
        refusal = NOTHING
        needed = want.amount if want.least is None else want.least
        if want.kind == "batch" and needed:
            refusal = Refusal("weight", self.qsize(key), needed, 0)
        return timeout_error(want.operation, self._shown(key), deadline.timeout, refusal)

    # Questions.

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""
        with self._queue(key) as queue:
            return len(queue.items)

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        with self._queue(key) as queue:
            return len(queue.items) >= (queue.maxsize or self.settings.capacity)

    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""
        with self._queue(key) as queue:
            return queue.maxsize

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own.

        Raises:
            ChannelExistsError: The key was used, with another bound.
        """
        with self._queue(key) as queue:
            used = queue.in_use or queue.num_put or queue.num_got
            if used and queue.maxsize != maxsize:
                raise ChannelExistsError(
                    f"{self._shown(key)} has maxsize={queue.maxsize}, not maxsize={maxsize}"
                )
            queue.maxsize, queue.declared = maxsize, True

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        with self._queue(key) as queue:
            held = list(queue.items)
        return [WeightedItem(item.weight, self._decode(item.value, key)) for item in held]

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key."""
        with self._queue(key) as queue:
            oldest = time.monotonic() - queue.items[0].put_at if queue.items else 0.0
            waiting = len(queue.puts), len(queue.gets)
            return Counts(len(queue.items), 0, queue.num_put, queue.num_got, *waiting, oldest)

    def _closed(self, operation: str, key: Hashable, more: str = "") -> ChannelClosed:
        if self.has_ended:
            name = self.settings.name
            return ChannelClosed(f"{operation}: the channel {name!r} is gone: {JOB_HAS_ENDED}")
        return ChannelClosed(f"{operation}: {self._shown(key)} is closed{more}")

    def is_empty(self) -> bool:
        """Return whether no key holds an item."""
        with self._lock:
            return not any(queue.items for queue in self._queues.values())

    def close(self) -> None:
        """Accept no more items: puts that wait fail, gets take what is left and then fail."""
        self._close(drop=False)

    def delete(self) -> None:
        """Accept no more items, and drop those that there are."""
        self._close(drop=True)

    def _close(self, *, drop: bool) -> None:
        with self._lock:
            self.is_closed = True
            keys = list(self._queues)
        for key in keys:
            with self._queue(key) as queue:
                while drop and queue.items:
                    queue.pop()


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
