"""`SharedQueues`: a channel's queues in shared memory of this node, used without its actor.

`SessionQueues` opens them. The functions put by the policy of a channel and take by a `Want`; the
channel's actor uses them too.
"""

import contextlib
import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from shoal._backend import ShmQueue
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ShoalTimeoutError,
)
from shoal.futures import done
from shoal.queues import timing
from shoal.queues.order import Direct, NotYet, Order, Pending, Side
from shoal.queues.protocol import (
    NOTHING,
    Future,
    Got,
    Leased,
    Taken,
    Want,
    WeightedItem,
    leased,
    set_done,
)
from shoal.queues.settings import DROPPING, ChannelSettings
from shoal.queues.usage import Counts, StatePageUse
from shoal.queues.wait import Queues, long_wait
from shoal.shm import Parcel, Queue, Reservation, Session
from shoal.shm.keys import canonical
from shoal.shm.refusals import Refusal, timeout_error

if TYPE_CHECKING:
    from shoal._backend import LaneQueue

__all__ = [
    "ROUTES",
    "QueueWait",
    "SessionQueues",
    "SharedQueues",
    "take_in_time",
    "take_now",
    "taken",
    "with_whole_timeout",
]

_MANY = 1024
"""Maximum number of open queues; then all are released, and opened again when they are used."""

ROUTES = b"\0routes"
"""Name of a queue that is not for a key: in it actor 0 notes which actor has which key."""


class SharedQueues(Queues):
    """Keyed queues in a session of `shoal.shm`.

    Args:
        settings: The channel.
        session: The shared memory.
        direct: Filled with the queues on which this process has no asynchronous calls pending, so
            that the core may use them directly: a side of a key with the first put or get that
            comes here. None if the core uses none.
        keeps: Whether the session outlives the last process that leaves it.
    """

    transport = "shm"

    def __init__(
        self,
        settings: ChannelSettings,
        session: Session,
        direct: Direct | None = None,
        *,
        keeps: bool = True,
    ) -> None:
        super().__init__(settings, Order({"put": {}, "get": {}} if direct is None else direct))
        self._session_queues = SessionQueues(settings, session)
        if keeps:
            # Only the channel's actor removes the session, also while the actor restarts.
            session.keep()
        self._opened: dict[Hashable, Queue] = {}
        self._page_use = StatePageUse(settings, session.token)

    # Puts.

    def try_put(self, key: Hashable, item: Any, weight: int) -> None:
        """Put an item, or raise `ChannelFull`."""
        put_now(self._queue(key, "put"), item, weight, self.settings.policy)

    def start_put(
        self, key: Hashable, item: Any, weight: int, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a put."""
        queue, policy, refusal = self._queue(key, "put"), self.settings.policy, None
        if not self._order.waits(key, "put"):
            try:
                put_or_wait(queue, item, weight, policy)
                return done(None)
            except NotYet as why:
                refusal = why.refusal
        message = _encoded(item)  # once, and before the caller can change it
        put = Pending(
            partial(put_or_wait, queue, message, weight, policy),
            deadline,
            partial(timeout_error, "put", queue.name, deadline.timeout),
            refusal=refusal,
        )
        self._order.park(key, "put", put, partial(_attempted, queue, "put"), timed=timed)
        return put

    def put_here(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> None:
        """Put an item; the core waits in this thread."""
        queue, policy = self._queue(key, "put"), self.settings.policy
        awaited = "room" if policy == "block" else "memory"
        if policy != "block":
            with contextlib.suppress(NotYet):
                put_or_wait(queue, item, weight, policy)
                return
        try:
            with self._wait("put", awaited, queue, deadline) as wait:
                waiting = wait if policy == "block" else partial(_keep_room, queue, policy, wait)
                queue.put(item, weight, deadline.remaining, waiting=waiting)
        except ShoalTimeoutError as error:
            raise with_whole_timeout(error, "put", queue.name, deadline) from None

    def put_many_here(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items; the core waits in this thread."""
        if self.settings.policy != "block":
            super().put_many_here(key, items, weights, deadline)
            return
        queue = self._queue(key, "put")
        try:
            with self._wait("put_many", "room", queue, deadline) as waiting:
                queue.put_many(items, weights, deadline.remaining, waiting=waiting)
        except ShoalTimeoutError as error:
            raise with_whole_timeout(error, "put_many", queue.name, deadline) from None

    def reserve(
        self, key: Hashable, shape: tuple[int, ...], dtype: Any, deadline: Deadline
    ) -> Reservation:
        """Reserve the channel's memory for an array, waiting for memory."""
        queue = self._queue(key, "put")
        try:
            with self._wait("reserve", "memory", queue, deadline) as waiting:
                return queue.reserve(shape, dtype, deadline.remaining, waiting=waiting)
        except ShoalTimeoutError as error:
            raise with_whole_timeout(error, "reserve", queue.name, deadline) from None

    # Gets.

    def try_take(self, key: Hashable, want: Want) -> Taken:
        """Take items, or raise `ChannelEmpty`."""
        return Taken(take_now(self._queue(key, "get"), want))

    def start_take(
        self, key: Hashable, want: Want, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a get."""
        queue = self._queue(key, "get")
        wants = [phase for phase, _ in want._replace(lease=True).phases(deadline)]
        refusal = NOTHING
        if not self._order.waits(key, "get"):
            try:
                return done(taken(take_or_wait(queue, wants[0]), want))
            except NotYet as why:
                refusal = why.refusal or NOTHING

        async def served(take: Pending) -> None:
            if len(wants) > 1:
                linger = max(0.0, want.linger - deadline.elapsed)
                await _attempted(queue, "get", take, linger)
                del wants[0]
            await _attempted(queue, "get", take)

        take = Pending(
            lambda: take_or_wait(queue, wants[0]),
            deadline,
            partial(timeout_error, want.operation, queue.name, deadline.timeout),
            partial(taken, want=want),
            refusal=refusal,
        )
        self._order.park(key, "get", take, served, timed=timed)
        return take

    def take_here(self, key: Hashable, want: Want, deadline: Deadline) -> Any:
        """Take items; the core waits in this thread."""
        queue = self._queue(key, "get")
        with self._wait("get", "an item", queue, deadline) as waiting:
            return take_in_time(queue, want, deadline, waiting=waiting)

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

    def _shown(self, key: Hashable) -> str:
        return self._queue(key).name

    def _queue(self, key: Hashable, side: Side | None = None) -> Queue:
        """Return the queue of a key, for a put, a get, or a question."""
        if side is not None:
            self._page_use.show(side)
        elif self.settings.is_internal:
            side = "get"  # an inbox opens its queue by a question
        with self._order.lock:
            queue = self._opened.get(key)
            if queue is None:
                if len(self._opened) >= _MANY:
                    self._opened.clear()
                    self._order.stop_direct()
                queue = self._opened[key] = self._session_queues.open(key)
            if side is not None:
                self._order.allow_direct(key, side, queue)
            return queue

    def _wait(self, operation: str, awaited: str, queue: Queue, deadline: Deadline) -> "QueueWait":
        return QueueWait(operation, awaited, queue, deadline, self.settings.page_name)


def _encoded(item: Any) -> Parcel | Reservation:
    """Return the message of an item; the array of a reservation is in memory already."""
    return item if isinstance(item, (Parcel, Reservation)) else Parcel.of(item)


async def _attempted(
    queue: Queue, side: Literal["get", "put"], operation: Pending, seconds: float | None = None
) -> None:
    """Attempt an operation until it has ended, for at most some seconds."""
    with contextlib.suppress(ShoalTimeoutError):
        await queue.attempted(side, operation.attempt, NotYet, seconds, side)


def with_whole_timeout(
    error: ShoalTimeoutError, operation: str, queue: str, deadline: Deadline
) -> ShoalTimeoutError:
    """Return a queue's timeout error with the timeout of the whole call in its text.

    A part of the time was over when the queue began to wait.
    """
    refusal = Refusal.of(error)
    if refusal is None:  # not an error of the queue, but of code that ran while it waited
        return error
    whole = timeout_error(operation, queue, deadline.timeout, refusal)
    if hasattr(error, "done"):
        set_done(whole, error.done)
    return whole


class SessionQueues:
    """Opens the queues of a channel in a session of `shoal.shm`.

    Args:
        settings: The channel.
        session: The shared memory.
        parcels: Whether items are passed on as parcels, without decoding them.
    """

    def __init__(
        self, settings: ChannelSettings, session: Session, *, parcels: bool = False
    ) -> None:
        self.settings = settings
        self.session = session
        self._parcels = parcels
        # Kept open: an empty queue that no process has open may be forgotten with its bound.
        self._declared: dict[Hashable, Queue] = {}

    def open(self, key: Hashable, encoded: bytes | None = None, shown: str = "") -> Queue:
        """Open the queue of a key.

        Args:
            key: The key; unused if `encoded` and `shown` are given.
            encoded: The canonical form of the key, where it is known already.
            shown: The key as messages show it; by default its `repr`.
        """
        try:
            return self._open(key, self.settings.maxsize, encoded, shown)
        except ChannelExistsError:  # the key was given a bound of its own
            return self._open(key, None, encoded, shown)

    def declare(self, key: Hashable, maxsize: int, encoded: bytes | None, shown: str) -> Queue:
        """Create the queue of a key with a bound of its own, kept as long as this object exists.

        Raises:
            ChannelExistsError: The queue exists with another bound.
        """
        queue = self._open(key, maxsize, encoded, shown)
        self._declared[key if encoded is None else encoded] = queue
        return queue

    def _open(self, key: Hashable, maxsize: int | None, encoded: bytes | None, shown: str) -> Queue:
        # Before `repr`, which may fail for a key that `canonical` refuses.
        encoded = canonical(key) if encoded is None else encoded
        name = f"the channel {self.settings.name!r}, key {shown or repr(key)}"
        return Queue(
            self.session,
            key,
            maxsize,
            self.settings.key_bytes or None,
            name=name,
            parcels=self._parcels,
            encoded=encoded,
        )


def put_now(queue: Queue, item: Any, weight: int, policy: str) -> None:
    """Put an item if there is room, or if the channel's policy makes room.

    Raises:
        ChannelFull: There is no room or no memory.
    """
    while True:
        try:
            queue.put_nowait(item, weight)
        except ChannelFull as error:
            if policy not in DROPPING:
                raise
            dropped = queue.displace(all=policy == "keep_latest")
            refusal = Refusal.of(error)
            if not dropped and (refusal is None or refusal.kind not in ("messages", "backlog")):
                raise  # only consumers give back bytes and memory
        else:
            return


def put_or_wait(queue: Queue, item: Any, weight: int, policy: str) -> None:
    """Same as `put_now`, for a caller that can wait for room and memory.

    Raises:
        NotYet: There is no room or no memory now.
        ChannelFull: The key is full, and the channel's policy is `error`.
    """
    try:
        put_now(queue, item, weight, policy)
    except ChannelFull as error:
        if policy == "error" and queue.full():
            raise _full(queue) from None
        raise NotYet(Refusal.of(error)) from None


def _keep_room(queue: Queue, policy: str, wait: "QueueWait") -> None:
    """Apply a policy that does not wait for room to a queue that others fill during a put's wait.

    Raises:
        ChannelFull: The queue is full, and the policy is `error`.
    """
    wait()
    if policy in DROPPING:
        queue.displace(all=policy == "keep_latest")
    elif queue.full():
        raise _full(queue)


def _full(queue: Queue) -> ChannelFull:
    """Return the error of a put under the policy `error`."""
    kind, held = "messages" if queue.maxsize else "backlog", queue.maxsize or queue.qsize()
    refusal = Refusal(kind, held, held, 0)
    error = ChannelFull(f"put: no room in {queue.name}: {refusal.why()}")
    error.refusal = refusal[:]
    return error


def take_now(queue: "Queue | LaneQueue", want: Want) -> Any:
    """Take the wanted items if they are there; otherwise raise `ChannelEmpty` or `ShoalTimeoutError`."""
    if want.kind == "one":
        return queue.get_nowait(lease=True) if want.lease else queue.get_nowait()
    return take_within(queue, want, 0.0)


def take_or_wait(queue: Queue, want: Want) -> Leased:
    """Take the wanted items on lease, or raise `NotYet` if they are not there."""
    try:
        return leased(partial(take_now, queue, want), want)
    except (ChannelEmpty, ShoalTimeoutError) as error:
        raise NotYet(Refusal.of(error)) from None


def take_within(queue: "Queue | LaneQueue", want: Want, seconds: float, **options: Any) -> Any:
    """Take the wanted items, waiting for them.

    Args:
        queue: The queue.
        want: The items.
        seconds: The timeout.
        options: Keywords of the queue's method: `waiting`, and `cancel` of a `LaneQueue`.

    Raises:
        ShoalTimeoutError: They did not come in time.
    """
    kind, amount, least, _, lease, _ = want
    if lease:
        options["lease"] = True
    match kind:
        case "one":
            return queue.get(seconds, **options)
        case "many":
            return queue.get_many(amount, seconds, **options)
    return queue.get_batch(amount, seconds, least, **options)


def take_in_time(queue: "Queue | LaneQueue", want: Want, deadline: Deadline, **options: Any) -> Any:
    """Take the wanted items, waiting for them until a deadline; see `take_within`."""
    for phase, until in want.phases(deadline):
        try:
            return take_within(queue, phase, until.remaining, **options)
        except ShoalTimeoutError as error:
            if until is deadline or Refusal.of(error) is None:
                raise with_whole_timeout(error, want.operation, queue.name, deadline) from None
    return None


class QueueWait:
    """The `waiting` of a queue's call within a `with` block: shows and logs the wait of the call.

    Args:
        operation: The call.
        awaited: What it waits for.
        queue: The queue.
        deadline: The deadline of the call; None for no limit.
        channel: The name of the channel; empty for queues that are no channel's.
    """

    __slots__ = ("_awaited", "_channel", "_deadline", "_operation", "_queue", "_wait")

    def __init__(
        self,
        operation: str,
        awaited: str,
        queue: "ShmQueue | LaneQueue",
        deadline: Deadline | None = None,
        channel: str = "",
    ) -> None:
        self._channel = channel
        self._operation = operation
        self._awaited = awaited
        self._queue = queue
        self._deadline = deadline
        self._wait: LongWait | None = None

    def __call__(self) -> None:
        """Show and log the wait, where that is due."""
        if self._wait is None:  # most calls end before this
            limit = self._deadline or Deadline(math.inf, waited=timing.TIMING.first_tick_s)
            self._wait = long_wait(
                self._operation, self._awaited, self._queue.name, limit, self._channel
            )
        self._wait.tick()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._wait is not None:
            self._wait.hide()


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


def taken(found: Leased, want: Want) -> Taken:
    """Return the `Taken` of a get, made from leased messages."""
    messages, error = found

    def deliver() -> None:
        for message in messages:
            message.ack()

    def give_back() -> None:
        for message in messages:
            message.give_back()

    if want.lease:
        return Taken.of(messages, want, error, give_back=give_back)
    return Taken.of([message.value for message in messages], want, error, deliver, give_back)
