"""How versions come to the nodes on which they are read but not published.

The node of the publisher is the *home*. On each other node the actor of the weights follows it, as
long as there are readers, or always if versions are pushed: it asks the home for the version after its
own, and publishes what arrives in the folder of its node, where all readers find it. So a version is
sent once to each node. If there are many nodes, a node follows one that follows the home (`source_of`),
whose answers are the same.

    reader              control page of its node       follower (actor)              source (actor)
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
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelClosed,
    ShoalError,
    ShoalTimeoutError,
    WeightsClosed,
    WeightsError,
    WeightsMemoryError,
)
from shoal.futures import ends_in_time
from shoal.queues.protocol import ONE, Future
from shoal.reused_threads import run_in_thread
from shoal.weights import timing
from shoal.weights.control import ControlPage
from shoal.weights.sent_parts import Here, SentPart, answer_here, take_part
from shoal.weights.store import Store
from shoal.weights.transfer import (
    AHEAD,
    ANSWER,
    ASKS,
    FarQueues,
    Head,
    SourceQueues,
    StaleBaseError,
    digests_held,
    receive,
    send,
)
from shoal.weights.version import Version

__all__ = ["Ask", "follow", "serve", "source_of"]

_log = logging.getLogger("shoal")

_FOLLOWERS = 3
"""Maximum number of nodes that follow one node."""


class Ask(NamedTuple):
    """A question of a follower: is there a version after one that it has?

    Attributes:
        to: The key of the answers.
        number: Counts the questions, so that the rest of an old answer is not taken for a new one.
        after: The version, as `Version.packed` returns it; 0 for any.
        seen: The newest version that this node, or one that follows it, has heard of.
        held: The digests of blocks that need not be sent.
        seconds: How long the source may wait for one.
    """

    to: str
    number: int
    after: int
    seen: int
    held: frozenset[bytes]
    seconds: float


class Coming(NamedTuple):
    """The begin of an answer: a version is on its way to the source; more follows."""

    packed: int


class Closed(NamedTuple):
    """An answer: the weights were closed, for a reason."""

    reason: str


class Failed(NamedTuple):
    """An answer: the source could not send a version, for a reason; ask again, or another one."""

    reason: str


def source_of(index: int, home: int, nodes: int) -> int:
    """Return which node a node follows: the home, or one that is nearer to it in a tree.

    Args:
        index: The node.
        home: The home.
        nodes: Number of nodes.
    """
    place = (index - home) % nodes
    return (home + (place - 1) // _FOLLOWERS) % nodes


def serve(store: Store, queues: SourceQueues) -> None:
    """Answer followers, and publish the parts that other nodes send, until the weights have gone.

    Args:
        store: The folder of this node.
        queues: The queues of its session.
    """
    asked: dict[str, int] = {}  # the number of the last question, by key of the answers
    while store.control.is_there():
        try:
            ask = queues.take(ASKS, ONE, Deadline(timing.TIMING.retry_s))
        except ShoalTimeoutError:
            continue
        except ChannelClosed:
            return
        except ShoalError as error:
            _log.warning("%s: a question of another node was lost: %s", store.name, error)
            time.sleep(timing.TIMING.retry_s)  # whatever it is, it does not fill the log
            continue
        if isinstance(ask, SentPart):
            run_in_thread(partial(take_part, store, queues, ask))
            continue
        if isinstance(ask, Here):
            answer_here(queues, ask)
            continue
        seen = Version.unpacked(ask.seen)
        # Here, because only one thread may write the words.
        if store.follows:
            store.control.seen = ask.seen
        elif seen is not None and ask.seen > store.control.packed:
            # This node has lost its memory; what is published now has to be newer all the same.
            store.control.least_epoch = seen.epoch
        asked[ask.to] = ask.number
        run_in_thread(partial(_answer, store, queues, ask, asked))


def _answer(store: Store, queues: SourceQueues, ask: Ask, asked: dict[str, int]) -> None:
    place = 0

    def put(message: Any) -> None:
        nonlocal place
        # All that are on their way share the network.
        deadline = Deadline(AHEAD * timing.TIMING.answer_s)
        queues.put(ask.to, (ask.number, place, message), 0, deadline)
        place += 1

    try:
        for message in _messages(store, ask):
            if asked[ask.to] != ask.number:
                return  # its follower has given it up, and asked again
            put(message)
    except Exception as error:  # noqa: BLE001  (whatever it is, the follower must not wait for this)
        _log.info("%s: a version was not sent to another node: %s", store.name, error)
        with contextlib.suppress(ShoalError):
            for _ in range(AHEAD):  # one for each call that waits for a message
                put(Failed(f"{type(error).__name__}: {error}"))


def _messages(store: Store, ask: Ask) -> Iterator[Any]:
    """Yield the answer: a version; None if there is none yet; or that the weights were closed."""
    control = store.control
    if store.follows:
        store.newest()  # from now on this node follows its own source
    # It may have become the home meanwhile.
    if store.follows and not control.is_following and control.end is None:
        yield Failed("it does not reach the node of the publisher")
        return
    least = ask.after + 1
    while control.packed < least <= control.announced and control.end is None:
        yield Coming(control.announced)
        with contextlib.suppress(ShoalTimeoutError, WeightsClosed):
            store.latest(least, "a version", Deadline(timing.TIMING.coming_s), is_newest=False)
    try:
        snapshot = store.latest(least, "a version", Deadline(ask.seconds), is_newest=False)
    except ShoalTimeoutError:
        yield None
    except WeightsClosed as error:
        yield Closed(store.control.end or str(error))
    else:
        yield from send(snapshot, ask.held)


def follow(store: Store, sources: Sequence[FarQueues], key: str, *, always: bool = False) -> None:
    """Get versions from another node while there are readers, until the weights have gone.

    Args:
        store: The folder of this node.
        sources: The queues of the nodes that have the versions; the next one is asked if one fails.
        key: The key of the answers, which no other node has.
        always: Whether to get them without readers, too.
    """
    followers = [_Follower(store, queues, key) for queues in sources]
    asked, failed, control = 0, -math.inf, store.control
    _stop(control)  # a process of this actor that died may have left it so
    wanted = math.inf if always else -math.inf
    while not _is_over(control):
        if control.wait_for_readers(0 if always or control.is_following else timing.TIMING.retry_s):
            wanted = max(wanted, time.monotonic())
        if time.monotonic() - wanted > timing.TIMING.kept_s:
            control.is_following = False
            continue
        if time.monotonic() - failed > timing.TIMING.return_s:
            asked = 0
        try:
            followers[asked].step(timing.TIMING.patience_s if control.is_following else 0)
        except Exception as error:  # noqa: BLE001  (whatever it is, readers must not wait for this)
            _stop(control)
            error.with_traceback(None)  # its frames hold messages, which are in memory
            # The source's actor has ended, or has not begun; with the weights this loop ends, too.
            if not (_is_over(control) or isinstance(error, ChannelClosed)):
                _log.warning("%s: %s: %s", describe_self(), store.name, error)
            if not isinstance(error, (StaleBaseError, WeightsMemoryError)):  # its own failures
                asked, failed = (asked + 1) % len(followers), time.monotonic()
            time.sleep(timing.TIMING.retry_s)  # nothing tells when a source can be reached again


def _is_over(control: ControlPage) -> bool:
    return control.end is not None or not control.is_there()


def _stop(control: ControlPage) -> None:
    """Note that this node does not follow, and that no version is on its way."""
    control.is_following = False
    control.announce(control.packed)


class _Follower:
    """Asks a source for one version after the other."""

    def __init__(self, store: Store, queues: FarQueues, key: str) -> None:
        self._store = store
        self._queues = queues
        self._key = key
        # Random: there may be answers to an earlier process of this actor, which died.
        self._number = secrets.randbits(48)
        self._place = 0  # of the next message within the answer
        self._came: dict[int, Any] = {}  # messages that came before their turn, by place
        self._calls: deque[Future] = deque()  # for messages on their way
        self._whole = False

    def step(self, seconds: float) -> None:
        """Ask once, and publish the version that the source sends.

        Raises:
            ShoalError: The source was not reached, or the version could not be published.
        """
        store, control = self._store, self._store.control
        self._number += 1
        self._place = 0
        held = frozenset() if self._whole else frozenset(digests_held(store))
        seen = max(control.known, control.seen)
        ask = Ask(self._key, self._number, control.packed, seen, held, seconds)
        self._queues.put(ASKS, ask, 0, Deadline(timing.TIMING.answer_s))
        first = self._next(seconds + timing.TIMING.answer_s)
        while isinstance(first, Coming):
            control.announce(first.packed)
            first = self._next(timing.TIMING.answer_s)
        self._whole = False
        if isinstance(first, Closed):
            store.close(first.reason)
        # An answer without a version: one that was announced does not come.
        control.announce(first.version.packed() if isinstance(first, Head) else control.packed)
        control.is_following = True  # last: a reader that waits for it reads the announcement then
        if isinstance(first, Head):
            try:
                receive(store, self._all(first))
            except (StaleBaseError, WeightsMemoryError):
                self._whole = True
                raise
            finally:
                for call in self._calls:
                    call.cancel()
                while self._calls:  # they must not take messages of the next answer
                    ends_in_time(self._calls.pop(), self._wait("the end of calls to", math.inf))
                self._came.clear()

    def _all(self, first: Head) -> Iterator[Any]:
        """Yield the messages of a version; while one is used, the next ones are received."""
        yield first
        end = self._place + first.messages
        while self._place < end:
            left = end - self._place - len(self._came)
            while len(self._calls) < min(AHEAD, left):
                deadline = Deadline(AHEAD * timing.TIMING.answer_s)
                self._calls.append(self._queues.take_in_thread(self._key, ANSWER, deadline))
            # All that are on their way share the network.
            yield self._next(AHEAD * timing.TIMING.answer_s)

    def _next(self, seconds: float) -> Any:
        """Return the next message of the answer; `seconds` are for each message that comes."""
        while self._place not in self._came:
            # Anew for each: on a slow network the rest of an earlier answer takes long, too.
            wait = self._wait("the rest of a version from", seconds)
            try:
                number, place, message = self._take(wait)
            except ShoalTimeoutError:
                text = f"{self._queues.label} sent no message for {seconds:g} s"
                raise ShoalTimeoutError(text) from None
            # Others are the rest of an earlier answer, or came twice after a cut of the connection.
            if number == self._number and place >= self._place:
                self._came[place] = message
        self._place += 1
        message = self._came.pop(self._place - 1)
        if isinstance(message, Failed):
            raise WeightsError(f"the node that it follows, {self._queues.label}: {message.reason}")
        return message

    def _take(self, wait: LongWait) -> Any:
        if not self._calls:
            return self._queues.take(self._key, ANSWER, wait.deadline)
        if not ends_in_time(self._calls[0], wait):
            raise ShoalTimeoutError
        return self._calls.popleft().result()

    def _wait(self, awaited: str, seconds: float) -> LongWait:
        name, label = self._store.name, self._queues.label
        return LongWait(
            lambda: f"{describe_self()}: {name} wait for {awaited} {label}", Deadline(seconds)
        )
