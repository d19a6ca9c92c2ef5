"""Opens a channel's queues in shared memory; puts by policy and gets by `Want` on such a queue."""

from collections.abc import Hashable
from typing import Any

from shoal.channel.facts import DROPPING, Facts
from shoal.channel.want import Taken, Want
from shoal.errors import ChannelEmpty, ChannelExistsError, ChannelFull, ShoalTimeoutError
from shoal.shm import Queue, Session
from shoal.shm.keys import canonical

__all__ = [
    "NOTHING_YET",
    "ROUTES",
    "NoRoomYet",
    "Shelf",
    "offer",
    "offer_patiently",
    "take_now",
    "take_within",
    "taken",
]

NOTHING_YET = (ChannelEmpty, ShoalTimeoutError)
"""Errors of `take_now` that mean: the wanted items are not there yet."""

ROUTES = b"\0routes"
"""Name of a queue that is not for a key: in it actor 0 notes which actor has which key."""


class NoRoomYet(ChannelFull):
    """Raised by `offer_patiently`: there is no room yet, and waiting may help."""


class Shelf:
    """The queues of a channel, opened when they are first asked for.

    Args:
        facts: The channel.
        session: The shared memory.
        parcels: Whether items are passed on as parcels, without decoding them.
    """

    def __init__(self, facts: Facts, session: Session, *, parcels: bool = False) -> None:
        self.facts = facts
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
            return self._open(key, self.facts.maxsize, encoded, shown)
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
        name = f"the channel {self.facts.name!r}, key {shown or repr(key)}"
        return Queue(
            self.session,
            key,
            maxsize,
            self.facts.key_bytes or None,
            name=name,
            parcels=self._parcels,
            encoded=encoded,
        )


def offer(queue: Queue, item: Any, weight: int, policy: str) -> None:
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


def offer_patiently(queue: Queue, item: Any, weight: int, policy: str) -> None:
    """Same as `offer`, for a caller that can wait for room and memory.

    Raises:
        NoRoomYet: There is no room or no memory now.
        ChannelFull: The key is full, and the channel's policy is `error`.
    """
    try:
        offer(queue, item, weight, policy)
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


def take_within(queue: Queue, want: Want, seconds: float) -> Any:
    """Take the wanted items, waiting for them.

    Raises:
        ShoalTimeoutError: They did not come in time.
    """
    kind, amount, least, _, lease = want
    if kind == "one":
        return queue.get(seconds, lease=True) if lease else queue.get(seconds)
    if kind == "many":
        return (
            queue.get_many(amount, seconds, lease=True)
            if lease
            else queue.get_many(amount, seconds)
        )
    if lease:
        return queue.get_batch(amount, seconds, least, lease=True)
    return queue.get_batch(amount, seconds, least)


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
