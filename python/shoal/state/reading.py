"""Reads the calls and waits of the processes of a job from their state pages."""

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from shoal.state.folders import Status, identity_of, status_of
from shoal.state.page import (
    BLOCK,
    BLOCKS,
    ENTRY,
    FIRST_CHANNEL,
    FOREVER,
    HELD,
    KINDS,
    MAGIC,
    MOST_TEXT,
    PROCESS,
    SIZE,
)

__all__ = [
    "Activity",
    "ChannelUse",
    "Kind",
    "ProcessState",
    "read_blocks",
    "read_pages",
    "understand",
]

Kind = Literal["call", "wait"]

_READS = 20
_WRITING_S = 0.0002
"""Seconds that a reader gives a writer to end its block, which takes microseconds."""


@dataclass(frozen=True)
class Activity:
    """A call or a wait that goes on in a process.

    Attributes:
        kind: Which of the two it is.
        operation: The name of the method, or of the operation that waits: `get`, `recv`, ...
        on: The object of the operation, such as a channel and a key.
        peers: The addresses of the processes that it waits for; only the first 16 of many.
        num_peers: The number of those processes.
        since: When it began, as `time.monotonic()` of the node.
        thread: Its thread, as `threading.get_ident()` of the process.
        inside: The waits inside of a call, the oldest first.
        channel: The name of the channel that it is on; else empty.
        until: When it ends at the latest, as `since`; infinite without a deadline.
    """

    kind: Kind
    operation: str
    on: str
    peers: tuple[str, ...]
    num_peers: int
    since: float
    thread: int
    inside: "tuple[Activity, ...]" = ()
    channel: str = ""
    until: float = math.inf


@dataclass(frozen=True)
class ChannelUse:
    """A channel that a process has used.

    Attributes:
        name: The name of the channel.
        token: Where its memory is, for `shoal.shm.Session.attach`; empty if it is not on the node.
        puts: Whether the process has put into it.
        gets: Whether the process has got from it, or tried to.
    """

    name: str
    token: str
    puts: bool
    gets: bool


@dataclass(frozen=True)
class ProcessState:
    """A process of a job with its calls and waits: those of now, or those in which it died.

    Attributes:
        address: The worker's address, the name of an actor, or `driver`.
        pid: Its process id.
        started: Its start time, in clock ticks since the boot.
        parent: The process id of the process that forked it; 0 if none did.
        node_rank: The rank of its node; -1 if it is not known.
        status: Whether it runs; `unknown` for a process of another container.
        activities: Its calls, and the waits outside of calls, the oldest first.
        hidden: The number of its calls and waits for which the page has no room.
        num_nodes: The number of nodes of the job; 0 if the process does not know it.
        most_calls: The number of calls that it runs at once; 0 for no limit.
        channels: The channels that it has used.
        has_all_channels: Whether the page had room for all of them.
        page: The file of its page; `Path()` for a process of another node.
        descriptor: The descriptor to which its handler for stacks writes; 0 without that handler.
        held_devices: The cluster-wide ranks of the devices whose lock it holds.
        held_since: When it got them, as `time.monotonic()` of the node; 0 without such a lock.
        loop_beat: When its event loop ran last, give or take a second, as `time.monotonic()` of the
            node; 0 if it has none, or none that has begun a call.
    """

    address: str
    pid: int
    started: int
    parent: int
    node_rank: int
    status: Status
    activities: tuple[Activity, ...]
    hidden: int
    num_nodes: int = 0
    most_calls: int = 1
    channels: tuple[ChannelUse, ...] = ()
    has_all_channels: bool = True
    page: Path = Path()
    descriptor: int = 0
    held_devices: tuple[int, ...] = ()
    held_since: float = 0.0
    loop_beat: float = 0.0

    @property
    def identity(self) -> tuple[str, int, int, int]:
        """Four values that, taken together, no other process of the job has."""
        return self.address, self.node_rank, self.pid, self.started

    @property
    def calls(self) -> list[Activity]:
        """The calls that it is in."""
        return [activity for activity in self.activities if activity.kind == "call"]

    @property
    def group(self) -> str:
        """The group of a worker; the address of another process."""
        return self.address.partition(":")[0]

    @property
    def rank_path(self) -> tuple[int, ...]:
        """The rank of a worker, after the ranks of the workers above it; else empty."""
        ranks = self.address.split(":")[1:]
        return tuple(map(int, ranks)) if all(map(str.isdecimal, ranks)) else ()

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this node."""
        return self.page != Path()

    @property
    def is_idle(self) -> bool:
        """Whether it is in no call and no wait."""
        return not self.activities and not self.hidden


def read_pages(folder: Path) -> list[ProcessState]:
    """Return what the processes of a job do; without pages that are damaged, or just made.

    Args:
        folder: A folder of `find_jobs`.
    """
    try:
        pages = sorted(folder.iterdir())
    except OSError:
        return []
    states = []
    for page in pages:
        if identity_of(page.name) is None:
            continue  # a file beside a page
        with contextlib.suppress(OSError, ValueError):
            state = understand(page.name, status_of(page), read_blocks(page))
            states.append(replace(state, page=page))
    return states


def understand(page: str, status: Status, blocks: dict[int, bytes]) -> ProcessState:
    """Return what a page says.

    Args:
        page: The name of its file.
        status: Whether its process runs.
        blocks: Its blocks.

    Raises:
        ValueError: It is no page, or one of another format.
    """
    identity = identity_of(page)
    if identity is None:
        raise ValueError(f"{page} is not the name of a page")
    _, hidden, beat, magic, parent, node_rank, num_nodes, most_calls, hides, descriptor, length = (
        PROCESS.unpack_from(blocks.get(0, b"\0" * BLOCK))
    )
    if magic != MAGIC:
        raise ValueError(f"{page} is not a page of this format")
    held_devices, held_since = _held(blocks)
    return ProcessState(
        address=_text(blocks[0], PROCESS.size, length),
        pid=identity[0],
        started=identity[1],
        parent=parent,
        node_rank=node_rank,
        status=status,
        activities=_activities(blocks),
        hidden=hidden,
        num_nodes=num_nodes,
        most_calls=most_calls,
        channels=_channels(blocks),
        has_all_channels=not hides,
        descriptor=descriptor,
        held_devices=held_devices,
        held_since=held_since,
        loop_beat=beat / 1e9,
    )


def read_blocks(page: Path) -> dict[int, bytes]:
    """Return the blocks in use that two reads in a row find complete and equal."""
    file = os.open(page, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found: dict[int, bytes] = {}
        before = os.pread(file, SIZE, 0)
        for _ in range(_READS):
            now = os.pread(file, SIZE, 0)
            for begin in range(0, len(now) - BLOCK + 1, BLOCK):
                block = now[begin : begin + BLOCK]
                is_odd = int.from_bytes(block[:8], sys.byteorder) % 2
                if not is_odd and block == before[begin : begin + BLOCK]:
                    found.setdefault(begin // BLOCK, block)
            if len(found) == BLOCKS:
                break
            before = now
            time.sleep(_WRITING_S)
    finally:
        os.close(file)
    return {number: block for number, block in found.items() if not number or any(block[8:16])}


def _activities(blocks: dict[int, bytes]) -> tuple[Activity, ...]:
    """Return the outermost activities, with the others inside of them."""
    around: dict[tuple[int, int], tuple[int, int]] = {}
    found: dict[tuple[int, int], Activity] = {}
    for number, block in blocks.items():
        version, code, since, until, thread, *call, num_peers, length = ENTRY.unpack_from(block)
        if not 0 < number < FIRST_CHANNEL or not 0 < code <= 2:  # noqa: PLR2004  (call and wait)
            continue
        operation, on, channel, *peers = _fields(block, length)
        kind: Kind = "call" if code == 1 else "wait"
        found[number, version] = Activity(
            kind, operation, on, tuple(peers), num_peers, since / 1e9, thread,
            channel=channel, until=math.inf if until == FOREVER else until / 1e9,
        )  # fmt: skip
        around[number, version] = (call[0], call[1])

    def complete(keys: Iterable[tuple[int, int]]) -> tuple[Activity, ...]:
        made = [
            replace(found[key], inside=complete(k for k, call in around.items() if call == key))
            for key in keys
        ]
        return tuple(sorted(made, key=lambda activity: activity.since))

    return complete(key for key, call in around.items() if call not in found)


def _channels(blocks: dict[int, bytes]) -> tuple[ChannelUse, ...]:
    found = []
    for number, block in sorted(blocks.items()):
        _, code, *_, length = ENTRY.unpack_from(block)
        if number >= FIRST_CHANNEL and code == KINDS.index("channel") + 1:
            sides, name, token, *_ = _fields(block, length)
            found.append(ChannelUse(name, token, "put" in sides.split(), "get" in sides.split()))
    return tuple(found)


def _held(blocks: dict[int, bytes]) -> tuple[tuple[int, ...], float]:
    """Return the devices whose lock the process holds, and since when."""
    block = blocks.get(HELD, b"\0" * BLOCK)
    _, code, since, *_, length = ENTRY.unpack_from(block)
    if code != KINDS.index("lock") + 1:
        return (), 0.0
    return tuple(int(rank) for rank in _fields(block, length) if rank.isdecimal()), since / 1e9


def _fields(block: bytes, length: int) -> list[str]:
    """Return the texts of a block, at least three of them."""
    fields = _text(block, ENTRY.size, length).split("\0")
    if length == MOST_TEXT:
        fields = fields[:-1]  # the last one may have been cut
    return [*fields, *[""] * (3 - len(fields))]


def _text(block: bytes, begin: int, length: int) -> str:
    return block[begin : begin + length].decode(errors="ignore")  # a cut may be within a character
