"""`Page`: a state page as its process writes it, and the format of the page.

A page is a row of blocks. The first one describes the process. Each other one is for a call or a
wait that goes on, or for a channel that the process uses; the last one is for the devices whose lock
the process holds. The version of a block is odd while the
block is written. A reader accepts a block if two reads in a row find it complete and equal.
"""

import mmap
import struct
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BLOCK",
    "BLOCKS",
    "ENTRY",
    "FIRST_CHANNEL",
    "FOREVER",
    "HELD",
    "KINDS",
    "MAGIC",
    "MOST_TEXT",
    "PROCESS",
    "SIZE",
    "Page",
    "PageEntry",
    "PageOwner",
    "current_call",
]

MAGIC = b"shoal state 4".ljust(16, b"\0")
BLOCK = 512
BLOCKS = 64
SIZE = BLOCK * BLOCKS
FIRST_CHANNEL = 32
"""The first block of those for channels; calls and waits have the ones before."""
HELD = BLOCKS - 1
"""The block of the devices whose lock the process holds."""
_WORDS = BLOCK // 8
"""Words of 8 bytes in a block: the first one is the version, the second one changes alone, and in the
first block also the third one."""

PROCESS = struct.Struct("=QQQ16sQqIIIII")
"""The first block: version, hidden activities, last beat of the event loop, magic, parent, node rank, number of nodes, most
calls at once, whether channels are hidden, descriptor for stacks, length of the address."""
ENTRY = struct.Struct("=QQqqQQQII")
"""Another block: version, kind, since, until, thread, block and version of the call around it,
number of peers, length of the text. The kind is 0 if the block is free."""

KINDS = ("call", "wait", "channel", "lock")
MOST_TEXT = BLOCK - ENTRY.size

FOREVER = 2**63 - 1
"""The end of a wait without a deadline, in nanoseconds."""


class PageOwner(NamedTuple):
    """The process of a page.

    Attributes:
        address: The worker's address, the name of an actor, or `driver`.
        node_rank: The rank of its node; -1 if it is not known.
        num_nodes: The number of nodes of the job; 0 if it is not known.
        most_calls: The number of calls that it runs at once; 0 for no limit.
        parent: The process id of the process that forked it; 0 if none did.
        descriptor: The descriptor to which its handler for stacks writes; 0 without that handler.
    """

    address: str
    node_rank: int
    num_nodes: int = 0
    most_calls: int = 1
    parent: int = 0
    descriptor: int = 0


class PageEntry:
    """A call or a wait on the page of this process."""

    __slots__ = ("block", "page", "version")

    def __init__(self, page: "Page", block: int, version: int) -> None:
        self.page = page
        self.block = block
        self.version = version

    def end(self) -> None:
        """Remove it from the page. Call this once."""
        self.page.remove(self.block)


current_call: ContextVar[PageEntry | None] = ContextVar("shoal_call", default=None)


class Page:
    """The page of this process.

    Args:
        path: Its file.
        memory: The file in memory, of `SIZE` bytes.

    Attributes:
        is_left: Whether the process writes no more.
    """

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._free = list(range(FIRST_CHANNEL - 1, 0, -1))
        self._owner = PageOwner("", -1)
        self._hidden = 0
        self._channels: dict[tuple[str, str], tuple[int, tuple[str, ...]]] = {}
        self._has_hidden_channels = False
        self.is_left = False
        self._lock = threading.RLock()

    def describe(self, owner: PageOwner) -> None:
        """Write whose page it is."""
        with self._lock:
            self._owner = owner
            text = owner.address.encode(errors="replace")[: BLOCK - PROCESS.size]
            words = self._words
            words[0] = odd = words[0] | 1
            facts = (
                odd, self._hidden, self._words[2], MAGIC, owner.parent, owner.node_rank,
                owner.num_nodes, owner.most_calls, self._has_hidden_channels, owner.descriptor, len(text),
            )  # fmt: skip
            self._memory[: PROCESS.size + len(text)] = PROCESS.pack(*facts) + text
            words[0] = odd + 1

    def add(
        self, kind: str, since: int, fields: Sequence[str], num_peers: int = 0, until: int = FOREVER
    ) -> PageEntry:
        """Show a call or a wait; if there is no room, count it.

        Args:
            kind: `call` or `wait`.
            since: When it began, in nanoseconds.
            fields: The operation, what it is on, the name of the channel, and the peers.
            num_peers: The number of peers, of which the fields may have fewer.
            until: When it ends at the latest, in nanoseconds.
        """
        try:
            block = self._free.pop()
        except IndexError:
            self._hide(1)
            return PageEntry(self, 0, 0)
        call = current_call.get()
        around = (0, 0) if call is None or call.page is not self else (call.block, call.version)
        code = 1 if kind == "call" else 2
        version = self._write(
            block, (code, since, until, threading.get_ident(), *around, num_peers), fields
        )
        return PageEntry(self, block, version)

    def remove(self, block: int) -> None:
        """Remove a call or a wait."""
        if self.is_left:  # that of the parent, or of an earlier job
            return
        if block:
            self._words[block * _WORDS + 1] = 0
            self._free.append(block)
        else:
            self._hide(-1)

    def use_channel(self, name: str, token: str, side: str) -> None:
        """Show that this process puts into a channel, or gets from it."""
        with self._lock:
            block, sides = self._channels.get((name, token), (0, ()))
            if side in sides or self.is_left:
                return
            if not block:
                block = FIRST_CHANNEL + len(self._channels)
                if block >= HELD:
                    if not self._has_hidden_channels:
                        self._has_hidden_channels = True
                        self.describe(self._owner)
                    return
            sides = (*sides, side)
            self._channels[name, token] = block, sides
            facts = (KINDS.index("channel") + 1, 0, FOREVER, threading.get_ident(), 0, 0, 0)
            self._write(block, facts, (" ".join(sides), name, token))

    def hold_devices(self, ranks: Sequence[int], since: int) -> None:
        """Show that this process holds the lock of devices, since a time in nanoseconds."""
        with self._lock:
            if self.is_left:
                return
            self._words[HELD * _WORDS + 1] = 0
            if ranks:
                facts = (KINDS.index("lock") + 1, since, FOREVER, threading.get_ident(), 0, 0, 0)
                self._write(HELD, facts, [*map(str, ranks)])

    def beat(self, now: int) -> None:
        """Show that the event loop runs at a time, in nanoseconds."""
        self._words[2] = now

    def leave(self) -> None:
        """Write no more: the process has forked, or has left the job."""
        self.is_left = True

    def _write(self, block: int, facts: tuple[int, ...], fields: Sequence[str]) -> int:
        text = "\0".join(fields).encode(errors="replace")[:MOST_TEXT]
        words, version = self._words, block * _WORDS
        words[version] = odd = words[version] | 1
        begin = block * BLOCK
        self._memory[begin : begin + ENTRY.size + len(text)] = (
            ENTRY.pack(odd, *facts, len(text)) + text
        )
        words[version] = odd + 1
        return odd + 1

    def _hide(self, change: int) -> None:
        with self._lock:
            self._hidden += change
            self._words[1] = self._hidden
