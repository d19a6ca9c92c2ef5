"""The queues of a channel in the memory of one host, and what can be done with them at once."""

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
"""How `take_now` says that there is too little."""

ROUTES = b"\0routes"
"""Of the queue that no key has: which host has which key, as the channel's first host noted it."""


class NoRoomYet(ChannelFull):
    """How `offer_patiently` says that there is no room, and some may come."""


class Shelf:
    """The queues of a channel, opened when they are first asked for.

    Args:
        facts: The channel.
        session: The memory.
        parcels: Whether items are handed on as they are, without a look into them.
    """

    def __init__(self, facts: Facts, session: Session, *, parcels: bool = False) -> None:
        self.facts = facts
        self.session = session
        self._parcels = parcels
        # Those that nobody has open, and that are empty, may be forgotten with their bounds.
        self._declared: dict[Hashable, Queue] = {}

    def open(self, key: Hashable, encoded: bytes | None = None, shown: str = "") -> Queue:
        """Open the queue of a key.

        Args:
            key: The key.
            encoded: Its canonical form, where that is known already.
            shown: The key as messages show it, where `key` stands for it.
        """
        try:
            return self._open(key, self.facts.maxsize, encoded, shown)
        except ChannelExistsError:  # it was given a bound of its own
            return self._open(key, None, encoded, shown)

    def declare(self, key: Hashable, maxsize: int, encoded: bytes | None, shown: str) -> Queue:
        """Make the queue of a key with a bound of its own, for as long as this is there.

        Raises:
            ChannelExistsError: It exists with another bound.
        """
        queue = self._open(key, maxsize, encoded, shown)
        self._declared[key if encoded is None else encoded] = queue
        return queue

    def _open(self, key: Hashable, maxsize: int | None, encoded: bytes | None, shown: str) -> Queue:
        encoded = canonical(key) if encoded is None else encoded  # or there may be no `repr`
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
    """Put an item if there is room, or if the channel's policy makes some.

    Raises:
        ChannelFull: There is none.
    """
    while True:
        try:
            queue.put_nowait(item, weight)
        except ChannelFull:
            if policy not in DROPPING:
                raise
            dropped = queue.displace(all=policy == "keep_latest")
            if not dropped and not queue.full():
                raise  # what there is too little of is memory
        else:
            return


def offer_patiently(queue: Queue, item: Any, weight: int, policy: str) -> None:
    """Put an item as `offer` does, for a caller who can wait for room and for memory.

    Raises:
        NoRoomYet: There is none now.
        ChannelFull: The key is full, and by the channel's policy that is an error.
    """
    try:
        offer(queue, item, weight, policy)
    except ChannelFull as error:
        if policy == "error" and queue.full():
            raise
        raise NoRoomYet(*error.args) from None


def take_now(queue: Queue, want: Want) -> Any:
    """Take what is wanted if it is there; `NOTHING_YET` says that it is not."""
    if want.kind == "one":
        return queue.get_nowait(lease=True) if want.lease else queue.get_nowait()
    return take_within(queue, want, 0.0)


def take_within(queue: Queue, want: Want, seconds: float) -> Any:
    """Take what is wanted, waiting for it.

    Raises:
        ShoalTimeoutError: It did not come in time.
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
    """Describe what was leased for an asynchronous get."""
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
