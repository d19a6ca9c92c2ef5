"""`Channel`: the public face of a named queue."""

import math
from collections.abc import Hashable
from typing import Any, Self

from shoal.channel.backend import Backend, Got
from shoal.channel.creation import (
    Plan,
    connect,
    create,
    node_of_accelerator,
    node_of_worker,
    split_affinity,
)
from shoal.channel.item import DEFAULT_KEY
from shoal.channel.local import LocalChannel, LocalQueues
from shoal.channel.remote import RemoteQueues
from shoal.channel.verdicts import Verdicts, checked_key, checked_weight
from shoal.collective.async_work import AsyncChannelWork
from shoal.deadline import Deadline
from shoal.errors import ChannelError
from shoal.transport.queues import CAPACITY

__all__ = ["DEFAULT_KEY", "Channel"]


class Channel:
    """A named queue between workers, and between workers and the driver; one queue for each key.

    Items that one producer puts under one key are taken in that order; keys never block each
    other, and weights do not reorder. When `put` returns, the item is with the channel: its
    producer may die. A get that times out, is cancelled or dies takes nothing. Handles are small
    and can be passed to workers and tasks.

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
        self._queues: Backend = LocalQueues()
        self._facts: dict[str, Any] = {}
        self._local_channel: LocalChannel | None = None
        self._current_worker: Any = None

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
        timeout: float | None = None,
        node_id: int | None = None,
        gpu_id: int | None = None,
    ) -> Self:
        """Create a channel, or connect to the one that has this name and the same `maxsize`.

        Args:
            name: Unique in the job, also among worker groups.
            maxsize: Items that each key holds before `put` waits; 0 for `capacity`.
            distributed: A host on every node; a key lives on the node that used it first.
            node_rank: The node of the host; None for node 0.
            local: A queue for the threads and event loops of this process only.
            disable_distributed_log: Accepted for existing callers; hosts have no log of their own.
            capacity: The bound of a key without `maxsize`.
            timeout: Limit of the start in seconds; None for the default.
            node_id: Older name of `node_rank`.
            gpu_id: Older way to choose a node: the one that has this accelerator.

        Raises:
            ChannelExistsError: The name belongs to a channel with another bound, or to a group.
            ShoalValueError: An argument cannot be.
            ShoalTimeoutError: A host did not start in time.
        """
        del disable_distributed_log
        if node_rank is None:
            node_rank = node_id
        if node_rank is None:
            node_rank = 0 if gpu_id is None or local else node_of_accelerator(gpu_id)
        plan = Plan(name, maxsize, capacity, distributed, node_rank)
        self = cls.__new__(cls)
        Channel.__init__(self)
        self._name = name
        if local:
            self._local_channel = LocalChannel(maxsize)
            self._queues = self._local_channel.queues = LocalQueues(maxsize, capacity, name)
            self._facts = {"maxsize": maxsize, "capacity": capacity, "hosts": 0}
        else:
            self._queues, self._facts = create(plan, Deadline(timeout))
        return self

    @classmethod
    def create_for(
        cls,
        worker: Any,
        channel_name: str,
        maxsize: int | str | None = 0,
        *args: Any,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Self:
        """Create a channel for a worker: `create`, and the spellings of older callers.

        A text or None as the second argument, or `group_affinity` and `group_rank_affinity`, name
        a worker: the channel then lives on its node, on the caller's own node for None.
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
            ChannelNotFoundError: There is none.
            ChannelExistsError: The name belongs to something that is no channel.
        """
        self = cls.__new__(cls)
        Channel.__init__(self)
        self._name = name
        self._current_worker = current_worker
        deadline = None if timeout is None else Deadline(timeout)
        self._queues, self._facts = connect(name, deadline)
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
        """Bind this object to actors that exist; for subclasses that bring their own."""
        del channel_worker_group
        Channel.__init__(self)
        self._name = channel_name
        self._current_worker = current_worker
        self._local_channel = local_channel
        if local_channel is not None:
            self._queues = local_channel.queues
            self._facts = {"maxsize": maxsize, "capacity": CAPACITY, "hosts": 0}
            return
        handles = channel_actors or {0: channel_worker_actor}
        self._queues = RemoteQueues(channel_name, "", len(handles), handles)
        self._facts = {"maxsize": maxsize, "capacity": CAPACITY, "hosts": len(handles)}

    # Putting.

    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Hashable = None,
    ) -> AsyncChannelWork | None:
        """Put an item, waiting for room.

        Args:
            item: Any object. With `async_op`, its arrays and tensors must not change until the
                work is done.
            weight: What `get_batch` adds up.
            key: The queue; any hashable.
            async_op: Return a work at once. Works of one key are done in the order of the calls.
            timeout: Seconds to wait for room; None for no limit.
            queue_name: Older name of `key`.

        Raises:
            ShoalTimeoutError: No room in time; the item is not in the channel.
            ChannelClosed: The channel was closed, or its host died.
            ShoalValueError: The item cannot be pickled, or the weight is no integer from 0.
        """
        key, weight = checked_key(key, queue_name), checked_weight(weight)
        deadline = Deadline(timeout, default=math.inf)

        check = self._verdicts(key, deadline).put
        if not async_op:
            self._queues.put(key, weight, item, deadline, check)
            return None
        future = self._queues.start_put(key, weight, item, deadline, check)
        return AsyncChannelWork(future, f"put to the channel {self._name!r}, key {key!r}")

    def put_nowait(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = DEFAULT_KEY,
        *,
        queue_name: Hashable = None,
    ) -> None:
        """Put an item if there is room now.

        Raises:
            ChannelFull: There is none, or puts are waiting for room already.
            ChannelClosed: The channel was closed, or its host died.
        """
        key, weight = checked_key(key, queue_name), checked_weight(weight)
        self._queues.put(key, weight, item, None, self._verdicts(key, None).put)

    # Getting.

    def get(
        self,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Hashable = None,
    ) -> Any:
        """Get the oldest item, waiting for one.

        Args:
            key: The queue.
            async_op: Return a work at once. Cancelling it, or the task that awaits it, loses no
                item.
            timeout: Seconds to wait; None for no limit.
            queue_name: Older name of `key`.

        Raises:
            ShoalTimeoutError: No item in time.
            ChannelClosed: The channel was closed and the key is empty, or its host died.
            TransportError: The item cannot be rebuilt in this process; it is lost.
        """
        return self._take(checked_key(key, queue_name), 0, async_op, timeout, batch=False)

    def get_nowait(self, key: Hashable = DEFAULT_KEY, *, queue_name: Hashable = None) -> Any:
        """Get the oldest item if there is one now.

        Raises:
            ChannelEmpty: There is none.
            ChannelClosed: The channel was closed and the key is empty, or its host died.
        """
        key = checked_key(key, queue_name)
        return self._queues.get(key, 0, None, self._verdicts(key, None).one)

    def get_batch(
        self,
        target_weight: int = 0,
        key: Hashable = DEFAULT_KEY,
        async_op: bool = False,
        *,
        timeout: float | None = None,
        batch_weight: int | None = None,
        queue_name: Hashable = None,
    ) -> Any:
        """Get items until their weights reach the target, or the next would exceed it.

        An item heavier than the target comes alone; target 0 gives one item; a full channel gives
        what it has. Others may take items while a batch is not complete.

        Args:
            target_weight: The weight to reach.
            key: The queue.
            async_op: Return a work at once.
            timeout: Seconds to wait; None for no limit. The items stay in the channel.
            batch_weight: Older name of `target_weight`.
            queue_name: Older name of `key`.

        Returns:
            The list of items, or a work.

        Raises:
            ShoalTimeoutError: Not enough items in time.
            ChannelClosed: The channel was closed and the key is empty, or its host died.
            TransportError: One item cannot be rebuilt in this process; it is lost, the others go
                back to the front.
        """
        target = checked_weight(
            target_weight if batch_weight is None else batch_weight, "target_weight"
        )
        return self._take(checked_key(key, queue_name), target, async_op, timeout, batch=True)

    def _take(
        self, key: Hashable, target: int, async_op: bool, timeout: float | None, *, batch: bool
    ) -> Any:
        deadline = Deadline(timeout, default=math.inf)
        verdicts = self._verdicts(key, deadline)
        result = verdicts.batch if batch else verdicts.one
        if not async_op:
            return self._queues.get(key, target, deadline, result)
        future, give_back = self._queues.start_get(key, target, deadline, result)
        what = f"get from the channel {self._name!r}, key {key!r}"
        return AsyncChannelWork(future, what, give_back)

    def _verdicts(self, key: Hashable, deadline: Deadline | None) -> Verdicts:
        return Verdicts(self._name, self._facts, key, deadline)

    # Looking.

    def qsize(self, key: Hashable = DEFAULT_KEY) -> int:
        """Return how many items a key holds."""
        return self._queues.qsize(key)

    def empty(self, key: Hashable = DEFAULT_KEY) -> bool:
        """Return whether a key holds nothing."""
        return self._queues.qsize(key) == 0

    def full(self, key: Hashable = DEFAULT_KEY) -> bool:
        """Return whether a put would wait."""
        return self._queues.full(key)

    @property
    def maxsize(self) -> int:
        """Items that a key holds before `put` waits; 0 where no bound was asked for."""
        return int(self._facts["maxsize"])

    def peek_all(self, key: Hashable = DEFAULT_KEY) -> Got:
        """Return what a key holds, oldest first, without taking it."""
        return self._queues.peek_all(key)

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._name

    @property
    def is_local(self) -> bool:
        """Whether the channel is for this process only."""
        return isinstance(self._queues, LocalQueues)

    @property
    def _distributed(self) -> bool:
        return int(self._facts["hosts"]) > 1

    # The whole channel.

    def create_queue(self, queue_name: Hashable, maxsize: int = 0) -> None:
        """Give a key a bound of its own."""
        self._queues.declare(queue_name, maxsize)

    def close(self) -> None:
        """Accept no more items. Gets take what is left, then raise `ChannelClosed`.

        Puts that wait for room fail. The name is free again once nothing is left.
        """
        self._queues.close()

    def __str__(self) -> str:
        """List the items of the default queue."""
        return str(self.peek_all())

    def __repr__(self) -> str:
        """Show the name and the bound."""
        kind = ", local" if self.is_local else ""
        return f"Channel({self._name!r}, maxsize={self.maxsize}{kind})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a name; the receiver looks the hosts up."""
        queues = self._queues
        if not isinstance(queues, RemoteQueues):
            raise ChannelError(
                f"the local channel {self._name!r} cannot leave its process; create it without "
                "local=True to share it"
            )
        return _restore, (type(self), self._name, queues.namespace, self._facts)


def _restore(cls: type[Channel], name: str, namespace: str, facts: dict[str, Any]) -> Channel:
    self = cls.__new__(cls)
    Channel.__init__(self)
    self._name = name
    self._facts = facts
    self._queues = RemoteQueues(name, namespace, facts["hosts"])
    return self
