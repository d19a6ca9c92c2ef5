"""A version on its way into the folder of another node: what is sent, and how it arrives.

The first message describes the version; the others have its bytes. Blocks whose digests the receiver
has in its newest version are not sent. The receiver compares the digests of what has arrived, and
gives the version the number that it has where it was published.
"""

import os
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import WeightsCorruptError, WeightsError
from shoal.queues.protocol import ONE, Future
from shoal.shm.shared_files.mapping import copy_into
from shoal.weights import timing
from shoal.weights.description import Entries, names_of
from shoal.weights.hashing import PIECE, copy_pieces, digest_of_pieces
from shoal.weights.layout import Blocks, Piece, Placement
from shoal.weights.snapshot import Snapshot
from shoal.weights.store import HUGE_SHARE, Store
from shoal.weights.version import FilePart, Version

__all__ = [
    "AHEAD",
    "ANSWER",
    "ASKS",
    "FarQueues",
    "Head",
    "SourceQueues",
    "StaleBaseError",
    "digests_held",
    "in_messages",
    "receive",
    "send",
]

ASKS = "asks"
"""The key of the questions that the actor of a node gets from other nodes."""

ANSWER = ONE._replace(again=False)
"""The wish for a message of an answer; it ends if the process that was asked dies."""

AHEAD = 4
"""Number of messages of an answer that are received at once, so that the network never stands still."""

_MESSAGE = 4 * PIECE
"""Maximum number of bytes of a message, whose pieces the receiver hashes."""


class SourceQueues(Protocol):
    """The queues of a source: of its session, or those of another node over the lane."""

    def put(self, key: str, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""

    def take(self, key: str, want: Any, deadline: Deadline | None) -> Any:
        """Take an item."""


class FarQueues(SourceQueues, Protocol):
    """The queues of a source on another node.

    Attributes:
        label: The source, in messages.
    """

    label: str

    def take_in_thread(self, key: str, want: Any, deadline: Deadline) -> Future:
        """Take an item in another thread; cancelled, it ends soon."""


class StaleBaseError(WeightsError):
    """A block was not sent, and the receiver has lost it: it has to ask for the whole version."""


class Head(NamedTuple):
    """The first message of a version.

    Attributes:
        version: The version.
        entries: What is in it.
        sizes: The number of bytes of each block.
        digests: The digest of each block; None for one that has none.
        sent: The numbers of the blocks that follow.
        messages: The number of messages that follow.
    """

    version: Version
    entries: Entries
    sizes: tuple[int, ...]
    digests: tuple[bytes | None, ...]
    sent: tuple[int, ...]
    messages: int


Bytes = tuple[int, int, Any]
"""A part of a block: its number, the offset, and an array of bytes."""


def digests_held(store: Store) -> set[bytes]:
    """Return the digests of blocks that need not be sent: those of the newest version in a folder.

    There are none if its blocks are scattered over many files, which would then stay for ever.
    """
    newest = store.control.newest
    if newest is None:
        return set()
    description = store.described(newest)
    size = sum(block.size for block in description.blocks)
    if store.is_scattered(set(description.files), size):
        return set()
    return set(filter(None, description.digests))


def send(snapshot: Snapshot, held: Collection[bytes]) -> Iterator[Head | list[Bytes]]:
    """Yield the messages of a version.

    Args:
        snapshot: The version.
        held: The digests of blocks that the receiver has.
    """
    description = snapshot.description
    sent = [
        number
        for number, digest in enumerate(description.digests)
        if digest is None or digest not in held
    ]
    sizes = tuple(block.size for block in description.blocks)
    messages = list(
        in_messages(
            (number, np.frombuffer(cast(memoryview, snapshot.block(number)), np.uint8))
            for number in sent
            if sizes[number]
        )
    )
    about = snapshot.version, description.entries, sizes, description.digests, tuple(sent)
    yield Head(*about, len(messages))
    yield from messages


def in_messages(blocks: Iterable[tuple[int, Any]]) -> Iterator[list[Bytes]]:
    """Yield the bytes of blocks in messages.

    Args:
        blocks: The number of each block, and an array of its bytes.
    """
    message: list[Bytes] = []
    length = 0
    for number, block in blocks:
        for at in range(0, block.nbytes, _MESSAGE):
            part = block[at : at + _MESSAGE]
            if length + part.nbytes > _MESSAGE and message:
                yield message
                message, length = [], 0
            message.append((number, at, part))
            length += part.nbytes
    if message:
        yield message


def receive(store: Store, messages: Iterator[Any]) -> Version:
    """Publish a version that arrives, and return the newest.

    Args:
        store: The folder.
        messages: The messages of `send`, in their order. What they raise ends this, and leaves no
            trace.

    Raises:
        StaleBaseError: A block that was not sent is not there any more.
        WeightsCorruptError: Bytes have changed on their way.
        WeightsMemoryError: There is no room.
    """
    head: Head = next(messages)
    wait = LongWait(
        lambda: (
            f"{describe_self()}: version {head.version} of {store.name} waits for another publisher "
            f"in {store.folder}"
        ),
        Deadline(timing.TIMING.transfer_lock_s),
    )
    store.begin()
    with store.publishing(wait):
        store.check()
        newest = store.newest_there()
        if newest is not None and newest >= head.version:
            return newest
        shared = _shared(store, newest, head)
        layout = Blocks([Piece(size, b"", None) for size in head.sizes], head.entries, [])
        placement = Placement(layout, FilePart(*head.version), shared)
        store.retire(store.control.keep - 1, newest)
        file = store.take_file(placement.frame.nbytes)
        start = time.monotonic()
        try:
            _copy(head, placement, messages, file.memory)
            os.link(file.path, store.path_of("v", head.version))
            store.control.note(head.version)
            store.retire(store.control.keep, head.version)
            # Last: readers wait for the version, and its way took long.
            file.make_huge_pages(HUGE_SHARE * (time.monotonic() - start))
        finally:
            store.put_back(file)
    return head.version


def _shared(store: Store, newest: Version | None, head: Head) -> dict[int, tuple[FilePart, int]]:
    """Return the places of the blocks that were not sent."""
    missing = set(range(len(head.sizes))) - set(head.sent)
    if not missing:
        return {}
    places = {}
    if newest is not None:
        base = store.described(newest)
        places = {
            digest: (base.files[block.file], block.start)
            for digest, block in zip(base.digests, base.blocks, strict=True)
        }
    found = {}
    for number in missing:
        place = places.get(head.digests[number])
        if place is None:
            raise StaleBaseError(
                f"version {head.version} of {store.name} was sent without a block that is not here"
            )
        found[number] = place
    return found


def _copy(
    head: Head, placement: Placement, messages: Iterator[list[Bytes]], memory: memoryview
) -> None:
    """Copy the bytes that arrive, and compare them with the digests."""
    starts = dict(placement.copied)
    pieces: dict[int, list[bytes]] = {}
    for message in messages:
        plain, hashed = [], []
        for number, at, part in message:
            start = starts[number] + at
            if head.digests[number] is None:
                plain.append((start, part))
            else:
                hashed.append((number, memory[start : start + part.nbytes], part))
        copy_into(memory, plain)
        # Hashed at once, while the next message is received.
        made = copy_pieces([(target, part) for _, target, part in hashed])
        for (number, _, _), digests in zip(hashed, made, strict=True):
            pieces.setdefault(number, []).extend(digests)
    for number, digests in pieces.items():
        if digest_of_pieces(digests) != head.digests[number]:
            names = ", ".join(map(repr, names_of(head.entries, number)))
            raise WeightsCorruptError(
                f"version {head.version}: the bytes of {names} have changed on their way"
            )
    kept = {number: digest for number, digest in enumerate(head.digests) if digest is not None}
    copy_into(memory, placement.frame.parts(kept))
