"""How this process reaches the queues of a channel, and which of its actors has a key.

They are reached by shared memory, or over a lane. Where the job emulates a slow network,
`DelayedQueues` are before them.
"""

import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

from shoal.arrays import new_array
from shoal.channel.remote import RemoteQueues
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelError,
    ChannelNotFoundError,
    ShoalError,
    ShoalTimeoutError,
    TransportError,
)
from shoal.futures import done, fail, without_frames
from shoal.job_end import tie_to_job
from shoal.net_emulation import EmulatedNetwork, Endpoint, Link, emulated_network
from shoal.pickling import nbytes_of
from shoal.queues.order import Direct, Order, Pending, when_due
from shoal.queues.protocol import NOTHING, Future, Got, Taken, Want, leased, set_done
from shoal.queues.settings import ChannelSettings
from shoal.queues.shared import SharedQueues, taken as taken_of, with_whole_timeout
from shoal.queues.usage import Counts
from shoal.queues.wait import JOB_HAS_ENDED, Queues, in_two_steps, long_wait, result_of
from shoal.reused_threads import run_in_thread
from shoal.shm import Parcel, Session, joined
from shoal.shm.refusals import timeout_error
from shoal.transport.choice import forced_transport

__all__ = ["DelayedQueues", "Routes"]

_log = logging.getLogger("shoal")

_MANY = 4096
"""Maximum number of keys whose actor a handle remembers."""


class Routes:
    """The queues of a channel in this process: one per actor, by shared memory or over a lane.

    Args:
        settings: The channel.
        namespace: The job's Ray namespace.
        handles: The actors' handles by index, where they are known already.
    """

    def __init__(
        self, settings: ChannelSettings, namespace: str, handles: dict[int, Any] | None = None
    ) -> None:
        self.settings = settings
        self.namespace = namespace
        self._handles = handles or {}
        self._queues: dict[int, Queues] = {}
        self._remote: dict[int, RemoteQueues] = {}
        self._routes: dict[Hashable, int] = {}
        self.transport = forced_transport
        """Returns the transport that `SHOAL_TRANSPORT` forces."""
        self.network = emulated_network()
        """The emulated links of the job; None if there are none, or not for this channel."""
        self._emulated: dict[int, Queues] = {}
        self.direct: Direct = {"put": {}, "get": {}}
        """Queues in this node's memory that the core may use directly.

        The handle replaces these dicts by those that its class of the core looks into."""
        self._has_ended = False
        tie_to_job(self, Routes._end_with_job)

    def _end_with_job(self) -> None:
        self._has_ended = True
        for queues in self.direct.values():
            queues.clear()

    def for_key(self, key: Hashable) -> Queues:
        """Return the queues of a key; actor 0 decides once for each key which actor has it."""
        self._check_job()
        if self.settings.num_actors == 1:
            index: int | None = 0
        else:
            index = self._routes.get(key)
        if index is None:
            if len(self._routes) >= _MANY:
                self._routes.clear()  # actor 0 gives the same answers again
            index = self._routes[key] = self._route(key)
        return self.queues_of(index) if self.network is None else self._behind_links(index)

    def _behind_links(self, index: int) -> Queues:
        """Return the queues of an actor as emulated links lead to them."""
        queues = self._emulated.get(index)
        if queues is None:
            queues, endpoint = self.queues_of(index), self._endpoint(index)
            if self.network is not None and endpoint is not None:
                queues = DelayedQueues(queues, self.network, self.settings, endpoint)
                self.network.note(self.settings.name, endpoint)
            queues = self._emulated.setdefault(index, queues)
        return queues

    def _endpoint(self, index: int) -> Endpoint | None:
        if self.network is None:
            return None
        ranks = self.settings.node_ranks
        node_rank = ranks[index] if index < len(ranks) else -1
        return self.network.channel(self.settings.name, index, node_rank)

    def _route(self, key: Hashable) -> int:
        try:
            return self._actor(0).route(key)
        except TransportError:
            # A forked child cannot call actors, but it may read the notes of actor 0 in memory.
            queues = self.queues_of(0)
            index = queues.noted_actor(key) if isinstance(queues, SharedQueues) else None
            if index is None:
                raise
            return index

    def queues_of(self, index: int) -> Queues:
        """Return the queues of an actor.

        Raises:
            ChannelClosed: The channel is gone.
            TransportError: `SHOAL_TRANSPORT` forces a transport that cannot reach the actor.
        """
        queues = self._queues.get(index)
        if queues is None:
            # Two threads may come here at once: both use the queues that were set first.
            queues = self._queues.setdefault(index, self._shared(index) or self._actor(index))
        return queues

    def _shared(self, index: int) -> SharedQueues | None:
        forced = self.transport()
        if forced == "lane":
            return None
        location = self.settings.locations[index] if index < len(self.settings.locations) else None
        if location is not None and location.is_here():
            try:
                # Behind an emulated link no queue may be used directly.
                direct = self.direct if self._endpoint(index) is None else None
                session = joined(location.token)
                # Waits may go on when this handle is dropped; closing the session ends them.
                tie_to_job(session, Session.close)
                return SharedQueues(self.settings, session, direct)
            except ChannelNotFoundError as error:
                raise ChannelClosed(
                    f"the channel {self.settings.name!r} is gone: {error}"
                ) from None
            except ChannelError as error:
                if forced == "shm":
                    raise
                _log.warning(
                    "the channel %r is used over a lane to its actor, which is slower: %s",
                    self.settings.name,
                    error,
                )
                return None
        if location is not None and forced == "shm" and location.is_gone():
            raise ChannelClosed(
                f"the channel {self.settings.name!r} is gone: its memory was removed"
            )
        if forced in ("shm", "torch"):
            raise TransportError(
                f"SHOAL_TRANSPORT={forced}: the channel {self.settings.name!r} is on another node, "
                "which can be reached by lane only"
            )
        return None

    def _actor(self, index: int) -> RemoteQueues:
        actor = self._remote.get(index)
        if actor is None:
            handle = self._handles.get(index)
            actor = self._remote[index] = RemoteQueues(self.settings, self.namespace, index, handle)
        return actor

    def end(self, *, now: bool) -> None:
        """Accept no more items, and have the actors end once they hold nothing, or `now`.

        Raises:
            ShoalError: An actor could not be ended; raised after all actors were tried.
        """
        if self._has_ended:
            return  # with its job
        failed: list[ShoalError] = []
        for index in range(self.settings.num_actors):
            try:
                self._end(index, now=now)
            except ChannelClosed:
                pass
            except ShoalError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _end(self, index: int, *, now: bool) -> None:
        queues, actor = self.queues_of(index), self._actor(index)
        if queues is not actor:
            queues.close()
        try:
            actor.end(now=now)
        except TransportError:
            # A forked child cannot call actors; but an actor notices that its memory is closed.
            if now or queues is actor:
                raise

    def _check_job(self) -> None:
        if self._has_ended:
            raise ChannelClosed(f"the channel {self.settings.name!r} is gone: {JOB_HAS_ENDED}")

    def actors(self) -> Iterator[RemoteQueues]:
        """Yield the queues of all actors, as processes of other nodes have them."""
        for index in range(self.settings.num_actors):
            yield self._actor(index)


class DelayedQueues(Queues):
    """Keyed queues of an actor behind emulated links, on which items take time.

    A put is over when its item has arrived, as with a channel on another node. Asynchronous puts are
    on their way together, and die with their process. A get waits for the way of its items from the
    channel to the consumer.

    Args:
        queues: The queues without the links; they answer the questions.
        network: The links.
        settings: The channel.
        endpoint: The actor's endpoint.
        encode: Makes the message of an item, which has its bytes as `nbytes`.
    """

    def __init__(
        self,
        queues: Queues,
        network: EmulatedNetwork,
        settings: ChannelSettings,
        endpoint: Endpoint,
        encode: Callable[[Any], Any] = Parcel.of,
    ) -> None:
        super().__init__(settings, Order({"put": {}, "get": {}}))
        self._inner = queues
        self._network = network
        self._endpoint = endpoint
        self._encode = encode
        self.transport = queues.transport

    # Puts.

    def try_put(self, key: Hashable, item: Any, weight: int) -> None:
        """Put an item without waiting for room; it takes the time of its way all the same."""
        self.put_here(key, item, weight, None)

    def put_here(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item, once it has arrived."""
        item, way = self._sent(key, item, deadline)
        self._arrive(key, way)
        self._inner.put(key, item, weight, deadline)

    def put_many_here(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items, which are on their way together."""
        sent = [self._sent(key, item, deadline) for item in items]
        for count, ((item, way), weight) in enumerate(zip(sent, weights, strict=True)):
            try:
                self._arrive(key, way)
                self._inner.put(key, item, weight, deadline)
            except Exception as error:
                set_done(error, count)
                raise

    def start_put(
        self, key: Hashable, item: Any, weight: int, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a put, which comes after those that this worker started before."""
        item, way = self._sent(key, item, deadline)
        if not way:
            return self._inner.start_put(key, item, weight, deadline, timed=timed)

        def put(arrived: Future) -> Future:
            arrived.result()  # may be late
            return self._inner.start_put(key, item, weight, deadline)

        return in_two_steps(way.pop(), put)

    def reserve(self, _key: Hashable, shape: tuple[int, ...], dtype: Any, _: Deadline) -> Any:
        """Return a new array; its put copies it, as between nodes."""
        return new_array(shape, dtype)

    def _sent(
        self, key: Hashable, item: Any, deadline: Deadline | None
    ) -> tuple[Any, list[Pending]]:
        """Send an item; return its message and its way, nothing if it arrives at once.

        The caller takes the way out of the list: a frame that refers to it keeps its error.
        """
        source = self._network.own()
        link = self._network.table.find(source, self._endpoint)
        if link is None:
            return item, []
        message = self._encode(item)  # once: the queues take it as it is
        way = self._way("put", key, _of_way(deadline), lambda: None, link, message.nbytes)
        self._order.park((key, source), "put", way, when_due, timed=True)
        return message, [way]

    def _arrive(self, key: Hashable, way: list[Pending]) -> None:
        """Wait until an item of a put has arrived, and the puts before it have."""
        if way:
            wait = self._wait("put", key, way[0].deadline)
            result_of(way.pop(), wait)

    # Gets.

    def try_take(self, key: Hashable, want: Want) -> Taken:
        """Take items without waiting for them; they take the time of their way all the same."""
        link = self._link_from()
        if link is None:
            return self._inner.try_take(key, want)
        on_lease = want._replace(lease=True)
        found = leased(partial(self._inner.take, key, on_lease, None), want)
        limit = _of_way(None)
        brought: Taken = result_of(
            self._brought(key, want, limit, link, done(taken_of(found, want))),
            self._wait("get", key, limit),
        )
        return brought

    def take_here(self, key: Hashable, want: Want, deadline: Deadline) -> Any:
        """Take items, and wait until they have arrived."""
        if self._link_from() is None:
            return self._inner.take(key, want, deadline)
        wait = self._wait("get", key, _of_way(deadline))
        return result_of(self.start_take(key, want, deadline), wait).received()

    def start_take(
        self, key: Hashable, want: Want, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a get."""
        link = self._link_from()
        if link is None:
            return self._inner.start_take(key, want, deadline, timed=timed)
        # The link delays an item: one that leaves the queue later arrives after the deadline.
        limit = 0.0 if deadline.timeout == 0 else deadline.remaining - link.delay_s
        if limit >= 0:
            taking = self._inner.start_take(key, want, Deadline(limit))
        else:
            taking = Future()
            fail(taking, timeout_error(want.operation, self.settings.shown(key), 0, NOTHING))
        # In a thread: it may call the manager of the network.
        return in_two_steps(
            taking, partial(self._brought, key, want, deadline, link), run_in_thread
        )

    def _link_from(self) -> Link | None:
        return self._network.table.find(self._endpoint, self._network.own())

    def _brought(
        self, key: Hashable, want: Want, deadline: Deadline, link: Link, taking: Future
    ) -> Future:
        """Return the future of items that were taken and are on their way to the consumer."""
        try:
            taken: Taken = taking.result()
        except ShoalTimeoutError as error:
            if math.isinf(deadline.timeout):
                raise  # nothing to wait for
            without_frames(error)  # which refer to the get that has it
            late = with_whole_timeout(error, want.operation, self.settings.shown(key), deadline)
            way = Pending(lambda: None, deadline, lambda _: late, not_before=math.inf)
        else:
            try:
                size = _size_of(taken, want) if link.is_limited else 0
                limit = _of_way(deadline)
                way = self._way(want.operation, key, limit, lambda: taken, link, size)
            except BaseException:
                taken.give_back()
                raise
            way.add_done_callback(lambda ended: None if _succeeded(ended) else taken.give_back())
        # In a line of its own: the items left the queue in their order.
        self._order.park(way, "get", way, when_due, timed=True)
        return way

    def _way(
        self,
        operation: str,
        key: Hashable,
        deadline: Deadline,
        attempt: Callable[[], Any],
        link: Link,
        size: int,
    ) -> Pending:
        """Book an item on a link; return what ends when it has arrived."""
        seconds = self._network.seconds([link], size)[0]
        return Pending(
            attempt,
            deadline,
            lambda _: ShoalTimeoutError(
                f"{operation}: {self.settings.shown(key)}: nothing arrived within "
                f"{deadline.timeout:g} s over the link that cluster.net_emulation emulates"
            ),
            not_before=time.monotonic() + seconds,
        )

    # Questions.

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""
        return self._inner.qsize(key)

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""
        return self._inner.full(key)

    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""
        return self._inner.maxsize(key)

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""
        self._inner.declare(key, maxsize)

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""
        return self._inner.peek_all(key)

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of its memory."""
        return self._inner.counts(key)

    def close(self) -> None:
        """Accept no more items."""
        self._inner.close()

    def _wait(self, operation: str, key: Hashable, deadline: Deadline) -> Any:
        shown, channel = self.settings.shown(key), self.settings.page_name
        return long_wait(operation, "an item on its way", shown, deadline, channel)


def _of_way(deadline: Deadline | None) -> Deadline:
    """Return the deadline of an item's way: a call that does not wait takes its time all the same.

    Calls of an actor on another node do the same.
    """
    return Deadline(math.inf) if deadline is None or deadline.timeout == 0 else deadline


def _succeeded(ended: Future) -> bool:
    return not ended.cancelled() and ended.exception() is None


def _size_of(taken: Taken, want: Want) -> int:
    """Return the bytes of items that were taken."""
    value: Any = taken.value if taken.error is None else taken.error.items
    if want.lease:
        value = value.value if want.kind == "one" else [lease.value for lease in value]
    found = nbytes_of(value)
    return int(Parcel.of(value).nbytes) if found is None else found
