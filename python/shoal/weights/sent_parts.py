"""Parts of a version from processes of other nodes: the home's actor publishes them there.

    publisher                                        actor of the home
    SentPart: what is in it  ----------------------> makes room, as any publisher of a part (`parts`)
                                      <------------- which process it is
                                      <------------- READY
    the bytes of its shards and blocks  -----------> straight into the files of the part
    HERE, each second  ----------------------------> waits for the other parts
    Here, each second  ----------------------------> an error, if this is another process by now
                                      <------------- the version, or the error
    GONE  -----------------------------------------> if there was no answer: takes the part back

A publisher that says nothing for a while is dead: the home takes its part back, too.
"""

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from shoal.context import Context, current, describe_self, enter_scope
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelClosed,
    PeerLostError,
    ShoalError,
    ShoalTimeoutError,
    WeightsClosed,
    WeightsCorruptError,
    WeightsError,
)
from shoal.process import own_process
from shoal.queues.protocol import ONE
from shoal.shm.shared_files.mapping import copy_into
from shoal.shm.shared_files.names import Key, key_of
from shoal.weights import timing
from shoal.weights.copying import gather
from shoal.weights.description import Entries
from shoal.weights.hashing import digests_of
from shoal.weights.layout import Blocks, Piece, StateLayout
from shoal.weights.part_names import VersionPart, complete_parts, writers
from shoal.weights.parts import publish_part
from shoal.weights.shards import ShardFile
from shoal.weights.store import Store
from shoal.weights.transfer import ANSWER, ASKS, SourceQueues, in_messages
from shoal.weights.version import Version

__all__ = ["Here", "SentPart", "answer_here", "send_part", "take_part"]

_READY, _HERE, _GONE = "ready", "here", "gone"


class _Rectangle(NamedTuple):
    """The place of a shard: its block, the bytes of an element, and where it lies in the tensor."""

    start: int
    size: int
    itemsize: int
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]


class _SentShards(NamedTuple):
    """A `ShardFile` as the home is told of it; the rectangles are the shards that this process writes."""

    signature: int
    nbytes: int
    blocks: list[tuple[int, int]]
    counts: dict[str, int]
    rectangles: list[_Rectangle]

    @classmethod
    def of(cls, shards: ShardFile) -> "_SentShards":
        rectangles = [
            _Rectangle(
                start, size, one.dtype.itemsize, one.shape, one.starts, tuple(one.local.shape)
            )
            for one, start, size in shards.written()
        ]
        return cls(shards.signature, shards.nbytes, shards.blocks, shards.counts(), rectangles)


class SentPart(NamedTuple):
    """A part that a process of another node publishes; its bytes follow.

    Attributes:
        key: The key of its further messages.
        part: Which part it is.
        publisher: The process, for messages.
        epoch: The epoch of the process; None if it has published nothing.
        timeout: The deadline of the call in seconds.
        waited: The seconds of it that have passed.
        checksum: Whether to make digests.
        entries: What is in the part.
        sizes: The number of bytes of each of its blocks, but for those of shards.
        shards: The shards of distributed tensors.
    """

    key: str
    part: VersionPart
    publisher: Context
    epoch: int | None
    timeout: float
    waited: float
    checksum: bool
    entries: Entries
    sizes: tuple[int, ...]
    shards: tuple[_SentShards, ...]

    @property
    def answers(self) -> str:
        """The key of the answers."""
        return f"answers to {self.key}"


class Here(NamedTuple):
    """A question of a publisher that waits: does the home's process still know its part?

    Attributes:
        answers: The key of the answers.
        home: The process of the home to which it sent the part.
    """

    answers: str
    home: Key


@dataclass(frozen=True)
class _Taken:
    """The first answer: the home has the description of the part.

    Attributes:
        home: The process of the home.
    """

    home: Key


def send_part(
    store: Store,
    home: tuple[int, SourceQueues],
    layout: StateLayout,
    part: VersionPart,
    deadline: Deadline,
    *,
    checksum: bool,
) -> Version:
    """Publish a part of a version on another node; otherwise as `publish_part`.

    Args:
        store: The folder of this node.
        home: The node on which the versions are published, and the queues of its actor.
        layout: As of `publish_part`.
        part: As of `publish_part`.
        deadline: As of `publish_part`.
        checksum: As of `publish_part`.
    """
    store.begin()
    store.check()
    node, queues = home
    sent = SentPart(
        f"part {secrets.token_hex(8)}",
        part,
        Context(describe_self(), current().namespace, max(0, current().node_rank)),
        store.epoch,
        deadline.timeout,
        deadline.elapsed,
        checksum,
        layout.entries,
        tuple(piece.size for piece in layout.pieces),
        tuple(map(_SentShards.of, layout.shards)),
    )
    wait = LongWait(
        lambda: (
            f"{describe_self()}: publish: {part} of {store.name} waits for node {node}, where the "
            "parts of a version come together"
        ),
        deadline,
        operation="publish",
    )
    answer: Any = None
    try:
        with wait:
            _put(queues, ASKS, sent, wait, min(timing.TIMING.answer_s, deadline.remaining))
            answer = _answer(store, queues, layout, sent, wait)
    except ChannelClosed as error:
        store.check()
        raise WeightsClosed(f"{describe_self()}: {store.name} were closed: {error}") from None
    except PeerLostError as error:
        store.check()
        error.add_note(wait.describe())
        raise
    finally:
        with contextlib.suppress(ShoalError):
            while answer is None:  # remove the bytes that the home has not taken
                queues.take(sent.key, ONE, Deadline(0))
        with contextlib.suppress(ShoalError):
            queues.put(sent.key, _GONE, 0, Deadline(timing.TIMING.beat_s))
    if isinstance(answer, Exception):
        answer.add_note(f"on node {node}, where the parts of a version come together")
        raise answer
    version = Version(*answer)
    store.epoch = version.epoch
    return version


def _put(queues: SourceQueues, key: str, item: Any, wait: LongWait, seconds: float) -> None:
    try:
        queues.put(key, item, 0, Deadline(seconds))
    except ShoalTimeoutError as error:
        raise ShoalTimeoutError(f"{wait.describe()}: {error}") from None


def _answer(
    store: Store, queues: SourceQueues, layout: StateLayout, sent: SentPart, wait: LongWait
) -> Any:
    """Return the version or the error; send the bytes once the home is ready for them."""
    last = time.monotonic()
    home: Key | None = None
    while True:
        try:
            message = queues.take(sent.answers, ANSWER, Deadline(timing.TIMING.beat_s))
        except ShoalTimeoutError:
            store.check()
            if wait.deadline.expired and time.monotonic() - last > timing.TIMING.answer_s:
                raise ShoalTimeoutError(
                    f"{wait.describe()}: no answer within {wait.deadline.timeout:g} s"
                ) from None
            with contextlib.suppress(ShoalTimeoutError):  # the home has not taken the ones before
                queues.put(sent.key, _HERE, 0, Deadline(timing.TIMING.beat_s))
            with contextlib.suppress(ShoalTimeoutError):
                if home is not None:
                    queues.put(ASKS, Here(sent.answers, home), 0, Deadline(timing.TIMING.beat_s))
            wait.tick()
            continue
        if isinstance(message, _Taken):
            home = message.home
            continue
        if message != _READY:
            return message
        for parts in in_messages(enumerate(_blocks(layout))):
            digests = digests_of([part for *_, part in parts]) if sent.checksum else None
            _put(queues, sent.key, (parts, digests), wait, timing.TIMING.answer_s)
        last = time.monotonic()


def _blocks(layout: StateLayout) -> Iterator[Any]:
    """Yield the bytes of a part in the order in which `publish_part` copies them."""
    sources: list[tuple[int, Any]] = [
        (one.local.numel() * one.dtype.itemsize, partial(gather, one.local, one.dtype))
        for shards in layout.shards
        for one, _, _ in shards.written()
    ]
    for size, source in sources + [piece[:2] for piece in layout.pieces]:
        if callable(source):
            block = np.empty(size, np.uint8)
            source(block.data)
            yield block
        elif size:
            yield np.frombuffer(source, np.uint8)


def answer_here(queues: SourceQueues, here: Here) -> None:
    """Tell a publisher if its part was sent to a process of the home that has died.

    Args:
        queues: The queues of the home's session.
        here: The question.
    """
    if here.home == key_of(own_process()):
        return
    error = PeerLostError(
        f"{describe_self()}: publish: the process to which the part was sent has died; publish again"
    )
    with contextlib.suppress(ShoalError):
        queues.put(here.answers, error, 0, Deadline(0))


def take_part(store: Store, queues: SourceQueues, sent: SentPart) -> None:
    """Publish a part that a process of another node sends, and answer.

    Args:
        store: The folder of the home.
        queues: The queues of its session.
        sent: The part.
    """
    store.control.make_home()  # the process that claimed it may not have said so yet
    stream = _Stream(queues, sent)
    with contextlib.suppress(ShoalError):
        queues.put(sent.answers, _Taken(key_of(own_process())), 0, Deadline(timing.TIMING.answer_s))
    answer = copy_context().run(_published, store, stream, sent)
    with contextlib.suppress(ShoalError):
        try:
            queues.put(sent.answers, answer, 0, Deadline(timing.TIMING.answer_s))
        except Exception as error:  # noqa: BLE001  (the publisher must not wait for what cannot be sent)
            text = f"{type(answer).__name__}: {answer}; it was not sent as it is: {error}"
            queues.put(sent.answers, WeightsError(text), 0, Deadline(timing.TIMING.answer_s))
    with contextlib.suppress(ShoalError):  # one that was only silent takes the answer later
        while not stream.has_gone:
            stream.has_gone = queues.take(sent.key, ONE, Deadline(timing.TIMING.answer_s)) == _GONE
    with contextlib.suppress(ShoalError):
        while True:  # remove the answers that the publisher has not taken
            queues.take(sent.answers, ONE, Deadline(0))


def _published(store: Store, stream: "_Stream", sent: SentPart) -> Version | ShoalError:
    enter_scope(sent.publisher)  # for messages, and for the notes of the part
    own = None
    try:
        # A store of this publisher alone: with its epoch, and with files of its own.
        own = Store(str(store.folder), store.name, stream.check)
        own.epoch = sent.epoch
        deadline = Deadline(sent.timeout, waited=sent.waited)
        _await_former(own, sent.part, stream, deadline)
        layout = Blocks(
            [Piece(size, stream.copy, None) for size in sent.sizes],
            sent.entries,
            [_ArrivingShards(shards, stream.copy) for shards in sent.shards],
        )
        return publish_part(own, layout, sent.part, deadline, checksum=sent.checksum)
    except ShoalError as error:
        return error.with_traceback(None)  # its frames hold messages, which are in memory
    except Exception as error:  # noqa: BLE001  (whatever it is, the publisher must not wait for this)
        return WeightsError(f"{describe_self()}: publish: {type(error).__name__}: {error}")
    finally:
        if own is not None:
            own.forget()


def _await_former(store: Store, part: VersionPart, stream: "_Stream", deadline: Deadline) -> None:
    """Wait a little while for the end of another publisher of the same part, which may have died.

    The home notices a death on another node only after seconds. A publisher that is started in place
    of the dead one may send its part before that.
    """
    sent = part, key_of(own_process())
    end = time.monotonic() + min(timing.TIMING.former_s, deadline.remaining)
    while time.monotonic() < end:
        there = {(one.part, one.process) for one in complete_parts(store.folder)}
        there |= {(one.part, one.process) for one in writers(store.folder, part)}
        if sent not in there:
            return
        stream.next(timing.TIMING.former_look_s, timing.TIMING.silent_s)


class _Stream:
    """The messages of a publisher.

    Attributes:
        has_gone: Whether the publisher has sent its last message.
    """

    def __init__(self, queues: SourceQueues, sent: SentPart) -> None:
        self.has_gone = False
        self._queues = queues
        self._sent = sent
        self._heard = self._looked = time.monotonic()
        self._is_ready = False
        self._thread = threading.get_ident()
        self._parts: deque[Any] = deque()

    def next(self, seconds: float, silent: float) -> Any:
        """Return the next message; None if there is none in time.

        Args:
            seconds: How long to wait for it.
            silent: Seconds without a message after which the publisher is dead.

        Raises:
            WeightsError: The publisher has gone.
        """
        message = None
        with contextlib.suppress(ShoalTimeoutError):
            message = self._queues.take(self._sent.key, ONE, Deadline(seconds))
        now = time.monotonic()
        if message is not None or now - self._looked > seconds + timing.TIMING.still_s:
            self._heard = now
        self._looked = now
        self.has_gone = message == _GONE
        if self.has_gone or now - self._heard >= silent:
            raise WeightsError(
                f"{describe_self()}: publish: {self._sent.part}: its publisher has given it up, or died"
            )
        return message

    def check(self) -> None:
        """Raise if the publisher has gone."""
        # The store calls this in another thread, too, which must not take what this one copies.
        if threading.get_ident() == self._thread:
            while self.next(0, timing.TIMING.silent_s) is not None:
                pass

    def copy(self, target: memoryview) -> None:
        """Copy the bytes of a block.

        Raises:
            WeightsError: The publisher has gone.
            WeightsCorruptError: Bytes have changed on their way.
        """
        at = 0
        while at < len(target):
            if not self._parts:
                self._parts.extend(self._received())
            part = self._parts.popleft()
            copy_into(target, [(at, part)])
            at += part.nbytes

    def _received(self) -> list[Any]:
        if not self._is_ready:
            self._queues.put(self._sent.answers, _READY, 0, Deadline(timing.TIMING.answer_s))
            self._is_ready = True
        message = None  # also where a wait ends in which this process stood still
        while message in (None, _HERE):
            message = self.next(timing.TIMING.sending_s, timing.TIMING.sending_s)
        parts = [part for *_, part in message[0]]
        if self._sent.checksum and digests_of(parts) != message[1]:
            raise WeightsCorruptError(
                f"{describe_self()}: publish: {self._sent.part}: its bytes have changed on their way"
            )
        return parts


class _ArrivingShards:
    """Shards that arrive, as those of a `ShardFile`."""

    def __init__(self, sent: _SentShards, copy: Callable[[memoryview], None]) -> None:
        self.signature, self.nbytes, self.blocks = sent.signature, sent.nbytes, sent.blocks
        self._sent = sent
        self._copy = copy

    def counts(self) -> dict[str, int]:
        return self._sent.counts

    def write(self, memory: memoryview) -> None:
        for start, size, itemsize, shape, starts, lengths in self._sent.rectangles:
            whole = np.frombuffer(memory[start : start + size], np.uint8).reshape(*shape, itemsize)
            pairs = zip(starts, lengths, strict=True)
            target = whole[tuple(slice(at, at + length) for at, length in pairs)]
            if target.flags.c_contiguous:
                self._copy(target.reshape(-1).data)
                continue
            values = np.empty(target.shape, np.uint8)
            self._copy(values.reshape(-1).data)
            target[...] = values
