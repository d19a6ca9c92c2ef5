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
import math
import secrets
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ShoalError,
    ShoalTimeoutError,
    WeightsClosed,
    WeightsError,
    WeightsMemoryError,
)
from shoal.queues.protocol import ONE
from shoal.reused_threads import run_in_thread
from shoal.weights.control import ControlPage
from shoal.weights.store import Store
from shoal.weights.transfer import Head, StaleBaseError, digests_held, receive, send
from shoal.weights.version import Version

__all__ = ["ASKS", "Ask", "HomeQueues", "follow", "serve"]

_log = logging.getLogger("shoal")

ASKS = "asks"
"""The key of the questions."""

_PATIENCE_S = 10.0
"""Seconds for which a home looks for a newer version before it says that there is none."""

_KEPT_S = 20.0
"""Seconds without a reader after which a node follows no more."""

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


class Closed(NamedTuple):
    """An answer: the weights were closed, for a reason."""

    reason: str


class Failed(NamedTuple):
    """An answer: the home could not send a version, for a reason; ask again."""

    reason: str


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
        except ChannelClosed:
            return
        except ShoalError as error:
            _log.warning("%s: a question of another node was lost: %s", store.name, error)
            time.sleep(_PAUSE_S)  # whatever it is, it does not fill the log
            continue
        seen = Version.unpacked(ask.after)
        if seen is not None and ask.after > store.control.packed:
            # This node has lost its memory; what is published now has to be newer all the same.
            # Here, because only one thread may write the word.
            store.control.least_epoch = seen.epoch
        run_in_thread(partial(_answer, store, queues, ask))


def _answer(store: Store, queues: HomeQueues, ask: Ask) -> None:
    def put(message: Any) -> None:
        queues.put(ask.to, (ask.number, message), 0, Deadline(_ANSWER_S))

    try:
        for message in _messages(store, ask):
            put(message)
    except Exception as error:  # noqa: BLE001  (whatever it is, the follower must not wait for this)
        _log.info("%s: a version was not sent to another node: %s", store.name, error)
        with contextlib.suppress(ShoalError):
            put(Failed(f"{type(error).__name__}: {error}"))


def _messages(store: Store, ask: Ask) -> Iterator[Any]:
    """Yield the answer: a version; None if there is none yet; or that the weights were closed."""
    try:
        snapshot = store.latest(ask.after + 1, "a version", Deadline(ask.seconds))
    except ShoalTimeoutError:
        yield None
    except WeightsClosed as error:
        yield Closed(store.control.end or str(error))
    else:
        yield from send(snapshot, ask.held)


def follow(store: Store, queues: HomeQueues, key: str) -> None:
    """Get versions from the home while there are readers, until the weights have gone.

    Args:
        store: The folder of this node.
        queues: The queues of the home.
        key: The key of the answers, which no other node has.
    """
    follower, control = _Follower(store, queues, key), store.control
    _stop(control)  # a process of this actor that died may have left it so
    wanted = -math.inf
    while control.is_there() and control.end is None:
        if control.wait_for_readers(0 if control.is_following else _PAUSE_S):
            wanted = time.monotonic()
        if time.monotonic() - wanted > _KEPT_S:
            control.is_following = False
            continue
        try:
            follower.step(_PATIENCE_S if control.is_following else 0)
        except Exception as error:  # noqa: BLE001  (whatever it is, readers must not wait for this)
            _stop(control)
            _log.warning("%s: %s: %s", describe_self(), store.name, error)
            time.sleep(_PAUSE_S)  # nothing tells when the home can be reached again


def _stop(control: ControlPage) -> None:
    """Say that this node does not follow; what was announced may not come."""
    control.is_following = False
    control.announce(control.packed)


class _Follower:
    """Asks the home for one version after the other."""

    def __init__(self, store: Store, queues: HomeQueues, key: str) -> None:
        self._store = store
        self._queues = queues
        self._key = key
        # There may be answers to a process of this actor that died.
        self._number = secrets.randbits(48)
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
        if isinstance(first, Closed):
            store.close(first.reason)
        elif isinstance(first, Head):
            control.announce(first.version.packed())
            try:
                receive(store, self._all(first))
            except (StaleBaseError, WeightsMemoryError):
                self._whole = True
                raise
        control.is_following = True

    def _all(self, first: Head) -> Iterator[Any]:
        yield first
        while True:
            yield self._next(_ANSWER_S)

    def _next(self, seconds: float) -> Any:
        """Return the next message of the answer."""
        deadline = Deadline(seconds)
        while True:
            number, message = self._queues.take(self._key, ONE, deadline)
            if number != self._number:
                continue  # the rest of an earlier answer
            if isinstance(message, Failed):
                raise WeightsError(f"the node of the publisher: {message.reason}")
            return message
