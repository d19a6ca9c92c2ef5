"""`Channel`: the public class of a named queue, of all kinds: local, in shared memory, remote."""

import contextlib
import math
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from typing import Any, Self

from shoal._backend import ChannelBase
from shoal.channel.actor_calls import settings_of
from shoal.channel.create import (
    connect,
    create,
    node_of_accelerator,
    node_of_worker,
    routes_of,
    split_affinity,
)
from shoal.channel.reservation import (
    Reservation,
    check_reserved,
    has_reservations,
    put_many,
    reserve,
)
from shoal.channel.routes import Routes
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelError,
    ShoalError,
    ShoalTimeoutError,
)
from shoal.manager.base import required_namespace
from shoal.problems import listed
from shoal.queues.local import LocalChannel, LocalQueues
from shoal.queues.protocol import (
    DEFAULT_KEY,
    ONE,
    Got,
    Want,
    checked_count,
    checked_key,
    checked_weight,
    set_done,
)
from shoal.queues.settings import CAPACITY, MOST_ITEMS, ChannelSettings
from shoal.queues.shared import QueueWait
from shoal.queues.usage import ChannelStats, Rates
from shoal.queues.wait import Queues, named, naming, started, work_of
from shoal.work import AsyncChannelWork

__all__ = ["DEFAULT_KEY", "Channel"]


class Channel(ChannelBase):
    """A named queue between workers, and between workers and the driver; one queue for each key.

    Items that one producer puts under one key are taken in that order; keys never block each
    other, and weights do not reorder. When `put` returns, the item is in the channel and stays
    there if its producer dies. A get that times out, is cancelled or dies takes nothing. Handles
    are small and can be passed to workers and tasks, and used in processes that those fork.

    On the channel's own node an item goes through shared memory, with no other process on the way;
    large arrays and tensors arrive as writable views of that memory which only the receiver uses.
    Handles on other nodes call the channel's actor, which does the same for them.

    Make one with `Channel.create`, find one with `Channel.connect`.

    Example:
        >>> channel = Channel.create("numbers", local=True)
        >>> channel.put("one", weight=1)
        >>> channel.put("two", weight=2)
        >>> channel.get_batch(target_weight=3)
        ['one', 'two']
    """

    def __init__(self) -> None:
        self._name = ""
        self._settings = ChannelSettings("channel")
        self._routes: Routes | None = None
        self._local: LocalQueues | None = None
        self._local_channel: LocalChannel | None = None
        self._current_worker: Any = None
        self._rates = Rates()

    @classmethod
    def create(
        cls,
        name: str,
        maxsize: int = 0,
        distributed: bool = False,
        node_rank: int | None = None,
        local: bool = False,
        disable_distributed_log: bool = True,
        *,
        capacity: int = CAPACITY,
        max_bytes: int | None = None,
        policy: str = "block",
        memory_policy: str = "block",
        timeout: float | None = None,
        node_id: int | None = None,
        gpu_id: int | None = None,
    ) -> Self:
        """Create a channel, or connect to the one of this name if it is the same, on any node.

        Args:
            name: Unique in the job, also among worker groups.
            maxsize: Items that each key holds before `put` waits; 0 for `capacity`.
            distributed: Start an actor on every node; a key stays on the node that used it first.
            node_rank: The node of the actor; None for node 0.
            local: A queue for the threads and event loops of this process only.
            disable_distributed_log: Whether the output of its actors is kept out of the job's log
                folder (`distributed_log_dir` of `Cluster`).
            capacity: Maximum number of items of a key without `maxsize`.
            max_bytes: Maximum bytes of all items of an actor together; None for a quarter of the
                shared memory that is free on its node, at most 4 GiB. A local channel has no limit.
            policy: Behavior of a put when the key is full: `block` waits, `error` raises
                `ChannelFull`, `drop_oldest` drops one item, `keep_latest` drops all of them.
            memory_policy: Behavior of a put when memory runs out: `block` waits, `error` raises
                `ChannelMemoryError`, which names the largest holders, `spill` stores it on disk.
            timeout: Maximum seconds of the start; None for the default.
            node_id: Older name of `node_rank`.
            gpu_id: Older way to choose a node: the one that has this accelerator.

        Raises:
            ChannelExistsError: The name belongs to a channel that is different, or to a group.
            ShoalValueError: An argument is not valid.
            ShoalTimeoutError: An actor did not start in time.
        """
        if node_rank is None:
            node_rank = node_id
        if node_rank is None:
            node_rank = 0 if gpu_id is None or local else node_of_accelerator(gpu_id)
        settings = ChannelSettings(name, maxsize, capacity, max_bytes, policy, memory_policy)
        if local:
            return cls._made(settings, local=LocalChannel(maxsize, settings))
        log = not disable_distributed_log
        return cls._made(*create(settings, distributed, node_rank, Deadline(timeout), log=log))

    @classmethod
    def _create_for(
        cls,
        worker: Any,
        channel_name: str,
        maxsize: int | str | None = 0,
        *args: Any,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Self:
        """Create a channel for a worker; also accepts the argument order of older callers.

        A text or None as the second argument, or `group_affinity` and `group_rank_affinity`, name
        a worker: the channel is then created on that worker's node, or for None on the caller's.
        """
        deadline = Deadline(timeout)
        plain, affinity = split_affinity(maxsize, args, kwargs)
        if affinity is not None:
            kwargs["node_rank"] = node_of_worker(*affinity, deadline)
        self = cls.create(channel_name, *plain, timeout=deadline.remaining, **kwargs)
        self._current_worker = worker
        return self

    @classmethod
    def connect(
        cls, name: str, current_worker: Any = None, *, timeout: float | None = None
    ) -> Self:
        """Find a channel by its name.

        Args:
            name: The channel's name.
            current_worker: Accepted for existing callers.
            timeout: Seconds to wait for the channel to appear; None not to wait.

        Raises:
            ChannelNotFoundError: No channel has the name.
            ChannelExistsError: The name belongs to something that is not a channel.
        """
        self = cls._made(*connect(name, None if timeout is None else Deadline(timeout)))
        self._current_worker = current_worker
        return self

    @classmethod
    def _made(
        cls,
        settings: ChannelSettings,
        routes: Routes | None = None,
        local: LocalChannel | None = None,
    ) -> Self:
        self = cls.__new__(cls)
        Channel.__init__(self)
        self._bind(settings, routes, local)
        return self

    def _initialize(
        self,
        channel_name: str,
        channel_worker_group: Any,
        channel_worker_actor: Any,
        current_worker: Any,
        local_channel: LocalChannel | None = None,
        maxsize: int = 0,
        channel_actors: dict[int, Any] | None = None,
    ) -> None:
        """Bind this object to existing actors; for subclasses that start their own.

        `ChannelWorker.create_group(maxsize).launch(...)` starts actors.
        """
        del channel_worker_group
        Channel.__init__(self)
        self._current_worker = current_worker
        if local_channel is not None:
            self._bind(ChannelSettings(channel_name, maxsize), None, local_channel)
            return
        handles = channel_actors or {0: channel_worker_actor}
        settings = settings_of([handles[index] for index in sorted(handles)], Deadline(None))
        self._bind(settings, Routes(settings, required_namespace(), handles), None)

    def _bind(
        self, settings: ChannelSettings, routes: Routes | None, local: LocalChannel | None
    ) -> None:
        self._name, self._settings, self._routes = settings.name, settings, routes
        self._local_channel, self._local = local, None if local is None else local.queues
        self._direct_puts.clear()
        self._direct_gets.clear()
        if routes is not None:
            routes.direct = {"put": self._direct_puts, "get": self._direct_gets}

    # Putting.

    def _put_slowly(
        self, item: Any, weight: Any, key: Any, async_op: Any, timeout: Any, queue_name: Any
    ) -> AsyncChannelWork | None:
        """Complete a `put` that the core could not complete at once."""
        key, weight = checked_key(key, queue_name), checked_weight(weight)
        deadline = Deadline(timeout, default=math.inf)
        if isinstance(item, Reservation):
            check_reserved(item, self._settings, self._local, key)
            return item.put(weight or None, async_op=async_op, timeout=timeout)
        with naming():
            queues = self._queues(key)
            if not async_op:
                queues.put(key, item, weight, deadline)
                return None
            future = started(queues.start_put, key, item, weight, deadline)
        return work_of(future, "put to", self._settings, key, deadline)

    def _put_nowait_slowly(self, item: Any, weight: Any, key: Any, queue_name: Any) -> None:
        """Complete a `put_nowait` that the core could not complete."""
        key, weight = checked_key(key, queue_name), checked_weight(weight)
        if isinstance(item, Reservation):
            check_reserved(item, self._settings, self._local, key)
            item.put_nowait(weight or None)
            return
        with naming():
            self._queues(key).put(key, item, weight, None)

    def put_many(
        self,
        items: Sequence[Any],
        weights: Sequence[int] | None = None,
        key: Hashable = DEFAULT_KEY,
        *,
        timeout: float | None = None,
    ) -> None:
        """Put items in their order, waiting for room where there is none.

        Args:
            items: The items; reservations of this key may be among them.
            weights: One for each item; None for 0, which for a reservation means its own.
            key: The queue.
            timeout: Seconds to wait in all; None for no limit.

        Raises:
            ShoalError: Same as `put`. The items before the failed one are in the channel; the
                error's attribute `done` says how many they are.
        """
        key = checked_key(key)
        items = items if type(items) is list else listed(items, "items", "the items to put")
        if weights is not None:
            given = listed(weights, "weights", "an int for each item")
            weights = [checked_weight(weight) for weight in given]
            checked_count(len(weights), len(items))
        # The queue of the key, if no asynchronous call of this process is pending on it.
        direct, put = self._direct_puts.get(key), 0
        if direct is not None and timeout is None and self._settings.policy == "block":
            try:
                with QueueWait("put_many", "room", direct, None, self._name) as waiting:
                    direct.put_many(items, weights, waiting=waiting)
            except ShoalError as error:
                if not has_reservations(items):  # which the core does not know
                    raise named(error) from error.__cause__
                put = int(getattr(error, "done", 0))
            else:
                return
        weights = [0] * len(items) if weights is None else weights
        try:
            with naming():
                deadline = Deadline(timeout, default=math.inf)
                queues = self._queues(key)
                put_many(self._settings, queues, key, items[put:], weights[put:], deadline)
        except ShoalError as error:
            set_done(error, put + int(getattr(error, "done", 0)))
            raise

    def reserve(
        self,
        shape: int | Sequence[int],
        dtype: Any,
        weight: int = 0,
        key: Hashable = DEFAULT_KEY,
        *,
        timeout: float | None = None,
    ) -> Reservation:
        """Reserve memory for an array that the caller fills and then puts without a copy.

        On the channel's node the array lies in the channel's memory, where the consumer finds it.
        On other nodes the put copies it, and with `local=True` it is an ordinary array.

        Args:
            shape: Sizes of the array, or the size of an array of one dimension.
            dtype: A torch dtype for a tensor of the CPU, or anything that numpy takes as a dtype.
            weight: Weight of the item; can be set until the put.
            key: The queue.
            timeout: Seconds to wait for memory, and again for room in a put that has no timeout
                itself; None for no limit.

        Returns:
            A `Reservation`, with `array`, `put()` and `cancel()`. As a context manager it returns
            the array, and puts it at the end of the block unless the block raises.

        Raises:
            ShoalTimeoutError: No memory in time.
            ChannelMemoryError: It can never fit; or no memory, and the memory policy is `error`.
            ChannelClosed: The channel was closed. On other nodes only the put raises these errors.
            ShoalTypeError: The shape or the dtype has a wrong type.
            ShoalValueError: There can be no such array, or its dtype has objects.
            DependencyError: numpy is not installed.
        """
        key, weight = checked_key(key), checked_weight(weight)
        with naming():
            queues = self._queues(key)
        return reserve(self._settings, queues, shape, dtype, key, weight, timeout)

    # Getting.

    def _get_slowly(
        self, key: Any, async_op: Any, timeout: Any, queue_name: Any, lease: Any, waited: float
    ) -> Any:
        """Complete a `get` after the core has waited `waited` seconds of the timeout."""
        deadline = Deadline(timeout, default=math.inf, waited=waited)
        want = Want(lease=True) if lease else ONE
        return self._take(checked_key(key, queue_name), want, deadline, async_op=async_op)

    def _get_nowait_slowly(self, key: Any, queue_name: Any, lease: Any) -> Any:
        """Complete a `get_nowait` from a queue that is not open yet."""
        key = checked_key(key, queue_name)
        with naming():
            return self._queues(key).take(key, Want(lease=True) if lease else ONE, None)

    @staticmethod
    def _explain(error: BaseException) -> BaseException:
        """Return an error of the core with the name of this worker in its text."""
        return named(error)

    def get_many(
        self, n: int, key: Hashable = DEFAULT_KEY, *, timeout: float | None = None
    ) -> list[Any]:
        """Get up to `n` items, at least one, waiting for the first only.

        Raises:
            ShoalTimeoutError: No item in time.
            ChannelDecodeError: Same as for `get_batch`. Other errors are the same as for `get`.
        """
        key, n = checked_key(key), checked_weight(n, "n", least=1)
        direct = self._direct_gets.get(key)
        if direct is not None and timeout is None:
            try:
                with QueueWait("get", "an item", direct, None, self._name) as waiting:
                    return direct.get_many(n, waiting=waiting)
            except ShoalError as error:
                raise named(error) from error.__cause__
        deadline = Deadline(timeout, default=math.inf)
        items: list[Any] = self._take(key, Want("many", n), deadline, async_op=False)
        return items

    def get_batch(
        self,
        target_weight: int = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        *,
        min_weight: int | None = None,
        linger: float | None = None,
        timeout: float | None = None,
        batch_weight: int | None = None,
        queue_name: Hashable = None,
    ) -> Any:
        """Get items until their weights reach the target, or the next would exceed it, in one step.

        An item heavier than the target comes alone; target 0 gives one item; a full channel gives
        what it has. Other consumers may take items while this call waits, but never the same ones.

        Args:
            target_weight: The weight to reach.
            key: The queue.
            async_op: Return a work at once.
            min_weight: The weight that is enough once `linger` is over; None with `linger` for any.
            linger: Seconds to wait for the whole target; None with `min_weight` for none.
            timeout: Seconds to wait in all; None for no limit. After it the items stay in place.
            batch_weight: Older name of `target_weight`.
            queue_name: Older name of `key`.

        Returns:
            The list of items, or a work.

        Raises:
            ShoalTimeoutError: Not enough items in time.
            ChannelClosed: The channel was closed and the key is empty.
            ChannelDecodeError: An item cannot be rebuilt in this process; it is lost. The items that
                were taken with it are the error's `items`.
        """
        target = checked_weight(
            target_weight if batch_weight is None else batch_weight, "target_weight"
        )
        want = Want("batch", target)
        if min_weight is not None or linger is not None:
            least = checked_weight(0 if min_weight is None else min_weight, "min_weight")
            waits = Deadline(linger, default=0, name="linger").timeout
            want = want._replace(least=min(least, target), linger=waits)
        deadline = Deadline(timeout, default=math.inf)
        return self._take(checked_key(key, queue_name), want, deadline, async_op=async_op)

    def drain(self, key: Hashable = DEFAULT_KEY) -> list[Any]:
        """Get all items that a key holds now, without waiting.

        Raises:
            ChannelDecodeError: Same as for `get_batch`. If another error comes after some items, they
                are returned, and the next call raises the error.
        """
        items: list[Any] = []
        left = self.qsize(key)
        try:
            while left > len(items):
                items += self.get_many(left - len(items), key, timeout=0)
        except ChannelDecodeError as error:
            error.items = [*items, *error.items]
            raise
        except ShoalError as error:
            # The next call meets any other error by itself.
            if not items and not isinstance(error, (ShoalTimeoutError, ChannelClosed)):
                raise
        return items

    def __iter__(self) -> Iterator[Any]:
        """Get items of the default queue until the channel is closed and the queue is empty."""
        return self.items()

    def items(self, key: Hashable = DEFAULT_KEY) -> Iterator[Any]:
        """Get items of a key until the channel is closed and the key is empty."""
        with contextlib.suppress(ChannelClosed):
            while True:
                yield self.get(key)

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Get items of the default queue in an event loop, as `__iter__` does."""
        with contextlib.suppress(ChannelClosed):
            while True:
                yield await self.get(async_op=True)

    def _take(self, key: Hashable, want: Want, deadline: Deadline, *, async_op: bool) -> Any:
        with naming():
            queues = self._queues(key)
            if not async_op:
                return queues.take(key, want, deadline)
            future = started(queues.start_take, key, want, deadline)
        return work_of(future, "get from", self._settings, key, deadline)

    # Looking; `queue_name` is the older name of `key`.

    def qsize(self, key: Hashable = DEFAULT_KEY, *, queue_name: Hashable = None) -> int:
        """Return how many items a key holds."""
        with naming():
            key = checked_key(key, queue_name)
            return self._queues(key).qsize(key)

    def empty(self, key: Hashable = DEFAULT_KEY, *, queue_name: Hashable = None) -> bool:
        """Return whether a key holds nothing."""
        return self.qsize(key, queue_name=queue_name) == 0

    def full(self, key: Hashable = DEFAULT_KEY, *, queue_name: Hashable = None) -> bool:
        """Return whether a put would wait."""
        with naming():
            key = checked_key(key, queue_name)
            return self._queues(key).full(key)

    @property
    def maxsize(self) -> int:
        """Items that a key holds before `put` waits; 0 if no bound was given."""
        return self._settings.maxsize

    def peek_all(self, key: Hashable = DEFAULT_KEY, *, queue_name: Hashable = None) -> Got:
        """Return the weights and items that a key holds, oldest first, without taking them."""
        with naming():
            key = checked_key(key, queue_name)
            return self._queues(key).peek_all(key)

    def stats(self, key: Hashable = DEFAULT_KEY) -> ChannelStats:
        """Return how a key is used, and the memory of the actor that has it."""
        with naming():
            return self._rates.since_last(key, self._queues(checked_key(key)).counts(key))

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._name

    @property
    def is_local(self) -> bool:
        """Whether only this process can use the channel."""
        return self._local is not None

    @property
    def transport(self) -> str:
        """How this process reaches the default queue: `shm`, `lane`, or `local`."""
        with naming():
            return self._queues(DEFAULT_KEY).transport

    @property
    def _distributed(self) -> bool:
        return self._settings.distributed

    @property
    def _channel_actors_by_rank(self) -> dict[int, Any]:
        actors = [] if self._routes is None else self._routes.actors()
        return {index: actor.handle for index, actor in enumerate(actors)}

    def _queues(self, key: Hashable) -> Queues:
        if self._local is not None:
            return self._local
        if self._routes is None:
            raise ChannelError("this is not a channel yet: use Channel.create or Channel.connect")
        return self._routes.for_key(key)

    # The whole channel.

    def create_queue(self, queue_name: Hashable, maxsize: int = 0) -> None:
        """Give a key a bound of its own, before it is used.

        Raises:
            ChannelExistsError: The key was used, with another bound.
            ShoalValueError: The bound is not an integer from 0 to 1,048,576.
        """
        maxsize = checked_weight(maxsize, "maxsize", most=MOST_ITEMS)
        with naming():
            self._queues(checked_key(queue_name)).declare(queue_name, maxsize)

    def close(self) -> None:
        """Accept no more items. Gets take the items that are left, then raise `ChannelClosed`.

        Puts that wait for room fail. The name is free again once no item is left.
        """
        with naming():
            if self._local is not None:
                self._local.close()
            elif self._routes is not None:
                self._routes.end(now=False)

    def delete(self) -> None:
        """Close the channel and drop the items that it holds. The name is free again.

        Processes that have the channel open may still take items that were left.
        """
        with naming():
            if self._local is not None:
                self._local.delete()
            elif self._routes is not None:
                self._routes.end(now=True)

    def __str__(self) -> str:
        """List the items of the default queue."""
        return str(self.peek_all())

    def __repr__(self) -> str:
        """Show the name and the bound."""
        local = ", local" if self.is_local else ""
        return f"Channel({self._name!r}, maxsize={self.maxsize}{local})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the description of the channel; the receiver opens its own connection."""
        if self._routes is None:
            raise ChannelError(
                f"the local channel {self._name!r} cannot leave its process; create it without "
                "local=True to share it"
            )
        return _restore, (type(self), self._settings, self._routes.namespace)


def _restore(cls: type[Channel], settings: ChannelSettings, namespace: str) -> Channel:
    return cls._made(settings, routes_of(settings, namespace))
