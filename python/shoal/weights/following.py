"""How versions come to the nodes on which they are read but not published.

The node of the publisher is the *home*. On each other node the actor of the weights follows it, as
long as there are readers: it asks the home for the version after its own, and publishes what arrives
in the folder of its node, where all readers find it. So a version is sent once to each node.

    reader              control page of its node       follower (actor)                home (actor)
    latest()  --------> "wanted"  ------------------> Ask(after, held, at once)  ---> nothing newer
              <-------- "following"  <---------------  <-----------------------------
                                                       Ask(after, held, seconds) ---> waits
                                                       <----------------------------- Head, bytes …
              <-------- the version is announced with the head, and there with the last byte

Questions and answers are items of the channel of the weights: over a lane, straight into memory.
"""

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import ShoalError, ShoalTimeoutError
from shoal.queues.protocol import ONE
from shoal.reused_threads import run_in_thread
from shoal.weights.store import Store
from shoal.weights.transfer import Head, StaleBaseError, digests_held, receive, send

__all__ = ["ASKS", "Ask", "HomeQueues", "follow", "serve"]

_log = logging.getLogger("shoal")

ASKS = "asks"
"""The key of the questions."""

_PATIENCE_S = 20.0
"""Seconds for which a home looks for a newer version before it says that there is none."""

_ANSWER_S = 30.0
"""Seconds beyond these within which an answer, or the next message of one, has to come."""

_PAUSE_S = 1.0
"""Seconds between two attempts to reach the home."""


class Ask(NamedTuple):
    """A question of a follower: is there a version after one that it has?

    Attributes:
        to: The key of the answers.
        number: Counts the questions, so that the rest of an old answer is not taken for a new one.
        after: The version, as `Version.packed` returns it; 0 for any.
        held: The digests of blocks that need not be sent.
        seconds: How long the home may wait for one.
    """

    to: str
    number: int
    after: int
    held: frozenset[bytes]
    seconds: float


class HomeQueues(Protocol):
    """The queues of the home: of its session, or those of another node over the lane."""

    def put(self, key: str, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""

    def take(self, key: str, want: Any, deadline: Deadline | None) -> Any:
        """Take an item."""


def serve(store: Store, queues: HomeQueues) -> None:
    """Answer the questions of followers until the weights have gone; at the home.

    Args:
        store: The folder of the home.
        queues: The queues of its session.
    """
    while store.control.is_there():
        try:
            ask = queues.take(ASKS, ONE, Deadline(_PAUSE_S))
        except ShoalTimeoutError:
            continue
        except ShoalError:
            return  # the session was closed
        run_in_thread(partial(_answer, store, queues, ask))


def _answer(store: Store, queues: HomeQueues, ask: Ask) -> None:
    try:
        for message in _messages(store, ask):
            queues.put(ask.to, (ask.number, message), 0, Deadline(_ANSWER_S))
    except ShoalError as error:
        # The follower has died, or it asks again.
        _log.info("%s: an answer to a node was not taken: %s", store.name, error)
        with contextlib.suppress(ShoalError):
            while True:
                queues.take(ask.to, ONE, None)


def _messages(store: Store, ask: Ask) -> Iterator[Any]:
    """Yield the answer: a version; None if there is none yet; a text if the weights were closed."""
    try:
        snapshot = store.latest(ask.after + 1, "a version", Deadline(ask.seconds))
    except ShoalTimeoutError:
        yield None
    except ShoalError as error:
        yield store.control.end or str(error)
    else:
        yield from send(snapshot, ask.held)


def follow(store: Store, queues: HomeQueues) -> None:
    """Get versions from the home while there are readers, until the weights have gone.

    Args:
        store: The folder of this node.
        queues: The queues of the home.
    """
    follower, control = _Follower(store, queues), store.control
    while control.is_there() and control.end is None:
        if not control.wait_for_readers(_PAUSE_S):
            control.is_following = False
            continue
        try:
            follower.step(0 if not control.is_following else _PATIENCE_S)
        except Exception as error:  # noqa: BLE001  (whatever it is, readers must not wait for this)
            control.is_following = False
            control.announce(control.packed)  # what was announced may not come
            _log.warning("%s: %s: %s", describe_self(), store.name, error)
            threading.Event().wait(_PAUSE_S)


class _Follower:
    """Asks the home for one version after the other."""

    def __init__(self, store: Store, queues: HomeQueues) -> None:
        self._store = store
        self._queues = queues
        self._key = f"to {uuid.uuid4().hex}"
        self._number = 0
        self._whole = False

    def step(self, seconds: float) -> None:
        """Ask once, and publish the version that the home sends.

        Raises:
            ShoalError: The home was not reached, or the version could not be published.
        """
        store, control = self._store, self._store.control
        self._number += 1
        held = frozenset() if self._whole else frozenset(digests_held(store))
        ask = Ask(self._key, self._number, control.packed, held, seconds)
        self._queues.put(ASKS, ask, 0, Deadline(_ANSWER_S))
        first = self._next(seconds + _ANSWER_S)
        self._whole = False
        if isinstance(first, str):
            store.close(first)
        elif isinstance(first, Head):
            control.announce(first.version.packed())
            try:
                receive(store, self._all(first))
            except StaleBaseError:
                self._whole = True
                self._drain(first)
                return
        control.is_following = True

    def _all(self, first: Head) -> Iterator[Any]:
        yield first
        while True:
            yield self._next(_ANSWER_S)

    def _drain(self, first: Head) -> None:
        """Take the rest of an answer."""
        left = sum(first.sizes[number] for number in first.sent)
        while left > 0:
            left -= sum(part.nbytes for _, _, part in self._next(_ANSWER_S))

    def _next(self, seconds: float) -> Any:
        """Return the next message of the answer."""
        deadline = Deadline(seconds)
        while True:
            number, message = self._queues.take(self._key, ONE, deadline)
            if number == self._number:
                return message
