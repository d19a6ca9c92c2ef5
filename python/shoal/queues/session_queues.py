"""The queues of a channel in a session: opening them, puts by policy, and gets by `Want`."""

import math
from collections.abc import Callable, Hashable
from typing import Any

from shoal._backend import ShmQueue
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelEmpty, ChannelExistsError, ChannelFull, ShoalTimeoutError
from shoal.queues.protocol import Taken, Want, set_done
from shoal.queues.settings import DROPPING, ChannelSettings
from shoal.shm import Queue, Session
from shoal.shm.keys import canonical
from shoal.shm.refusals import Refusal, timeout_error

__all__ = [
    "NOTHING_YET",
    "ROUTES",
    "NoRoomYet",
    "SessionQueues",
    "put_now",
    "put_or_wait",
    "take_now",
    "take_within",
    "taken",
]

_FIRST_TICK_S = 0.1
"""Seconds that a call has waited when it first calls `waiting`, about."""

NOTHING_YET = (ChannelEmpty, ShoalTimeoutError)
"""Errors of `take_now` that mean: the wanted items are not there yet."""

ROUTES = b"\0routes"
"""Name of a queue that is not for a key: in it actor 0 notes which actor has which key."""


class NoRoomYet(ChannelFull):
    """Raised by `put_or_wait`: there is no room yet, and waiting may help."""


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
        except ChannelFull:
            if policy not in DROPPING:
                raise
            dropped = queue.displace(all=policy == "keep_latest")
            if not dropped and not queue.full():
                raise  # the queue has room: memory is missing
        else:
            return


def put_or_wait(queue: Queue, item: Any, weight: int, policy: str) -> None:
    """Same as `put_now`, for a caller that can wait for room and memory.

    Raises:
        NoRoomYet: There is no room or no memory now.
        ChannelFull: The key is full, and the channel's policy is `error`.
    """
    try:
        put_now(queue, item, weight, policy)
    except ChannelFull as error:
        if policy == "error" and queue.full():
            raise
        later = NoRoomYet(*error.args)
        later.refusal = error.refusal
        raise later from None


def take_now(queue: Queue, want: Want) -> Any:
    """Take the wanted items if they are there; otherwise raise an error of `NOTHING_YET`."""
    if want.kind == "one":
        return queue.get_nowait(lease=True) if want.lease else queue.get_nowait()
    return take_within(queue, want, 0.0)


def take_within(
    queue: Queue, want: Want, seconds: float, waiting: Callable[[], object] | None = None
) -> Any:
    """Take the wanted items, waiting for them.

    Args:
        queue: The queue.
        want: The items.
        seconds: The timeout.
        waiting: Called about every 0.1 s of the wait; an error that it raises ends the wait.

    Raises:
        ShoalTimeoutError: They did not come in time.
    """
    kind, amount, least, _, lease = want
    if kind == "one":
        if lease:
            return queue.get(seconds, lease=True, waiting=waiting)
        return queue.get(seconds, waiting=waiting)
    if kind == "many":
        if lease:
            return queue.get_many(amount, seconds, lease=True, waiting=waiting)
        return queue.get_many(amount, seconds, waiting=waiting)
    if lease:
        return queue.get_batch(amount, seconds, least, lease=True, waiting=waiting)
    return queue.get_batch(amount, seconds, least, waiting=waiting)


def make_room(queue: Queue, policy: str) -> None:
    """Apply a policy that does not wait for room to a queue that is full.

    Raises:
        ChannelFull: The queue is full, and the policy is `error`.
    """
    if policy in DROPPING:
        queue.displace(all=policy == "keep_latest")
    elif policy == "error" and queue.full():
        held = queue.qsize()
        kind = "messages" if queue.maxsize else "backlog"
        refusal = Refusal(kind, held, queue.maxsize or held, 0)
        error = ChannelFull(f"put_nowait: no room in {queue.name}: {refusal.why()}")
        error.refusal = refusal[:]
        raise error


def log_waits(
    operation: str, awaited: str, queue: ShmQueue, deadline: Deadline | None = None
) -> Callable[[], None]:
    """Return a function for `waiting` of a queue's calls: it logs long waits.

    Args:
        operation: The call.
        awaited: What it waits for.
        queue: The queue.
        deadline: The deadline of the call; None for no limit.
    """
    wait: LongWait | None = None

    def tick() -> None:
        nonlocal wait
        if wait is None:  # most calls end before this
            limit = Deadline(math.inf, waited=_FIRST_TICK_S) if deadline is None else deadline
            text = f"{operation} waits for {awaited} in {queue.name}"
            wait = LongWait(lambda: f"{describe_self()}: {text}", limit, limit.elapsed)
        wait.tick()

    return tick


def with_whole_timeout(
    error: ShoalTimeoutError, operation: str, queue: Queue, deadline: Deadline
) -> ShoalTimeoutError:
    """Return a queue's timeout error with the timeout of the whole call in its text.

    A part of the time was over when the queue began to wait.
    """
    refusal = Refusal.of(error)
    if refusal is None:  # not an error of the queue, but of code that ran while it waited
        return error
    whole = timeout_error(operation, queue.name, deadline.timeout, refusal)
    done = getattr(error, "done", None)
    if done is not None:
        set_done(whole, done)
    return whole


def taken(found: Any, want: Want) -> Taken:
    """Return the `Taken` of an asynchronous get, made from leased messages."""
    messages = [found] if want.kind == "one" else found

    def deliver() -> None:
        for message in messages:
            message.ack()

    def give_back() -> None:
        for message in messages:
            message.give_back()

    if want.lease:
        return Taken(found, give_back=give_back)
    values = [message.value for message in messages]
    return Taken(values[0] if want.kind == "one" else values, deliver, give_back)
