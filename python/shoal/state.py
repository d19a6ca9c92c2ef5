"""The state page: what each process of a job does now, for every process of the same user.

A process writes its calls and waits into a small file in shared memory, by plain stores. So others
can read them without the help of that process: also while it is stopped, and after it was killed.

A page is a row of blocks. The first one describes the process, and each other one is for a call or
a wait that goes on. The version of a block is odd while the block is written. A reader accepts a
block if two reads in a row find it complete and equal.
"""

import atexit
import contextlib
import functools
import logging
import mmap
import os
import re
import stat
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from shoal.context import env_value, memory_folder
from shoal.fork import ChildStage, in_child
from shoal.process import own_process, run_state

__all__ = [
    "Activity",
    "PageEntry",
    "ProcessState",
    "begin_wait",
    "calling",
    "find_jobs",
    "hide_process",
    "read_pages",
    "remove_dead",
    "remove_pages",
    "show_process",
]

Kind = Literal["call", "wait"]
Status = Literal["running", "stopped", "dead", "unknown"]

_MAGIC = b"shoal state 1".ljust(16, b"\0")
_BLOCK = 512
_BLOCKS = 32
_SIZE = _BLOCK * _BLOCKS
_WORDS = _BLOCK // 8
"""Words of 8 bytes in a block: the first one is the version, the second one changes alone."""

_PROCESS = struct.Struct("=QQ16sQqI")
"""The first block: version, hidden activities, magic, parent, node rank, length of the address."""
_ACTIVITY = struct.Struct("=QQqQQQII")
"""Another block: version, kind, since, thread, block and version of the call around it, peers,
length of the text. The kind is 0 if the block is free."""

_KINDS: tuple[Kind, ...] = ("call", "wait")
_MOST_TEXT = _BLOCK - _ACTIVITY.size
_MOST_OF_OBJECT = 200
_MOST_PEERS = 16

_NAME = re.compile(r"([0-9]+)-([0-9]+)-([0-9a-f]{8})")
_ATTEMPTS = 5
_READS = 20
_PAUSE_S = 0.0002

_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Activity:
    """A call or a wait that goes on in a process.

    Attributes:
        kind: Which of the two it is.
        operation: The name of the method, or what waits: `get`, `recv`, ...
        on: What the operation is on, such as a channel and a key.
        peers: The addresses of the processes that it waits for; only the first 16 of many.
        num_peers: The number of those processes.
        since: When it began, as `time.monotonic()` of the node.
        thread: The kernel's number of its thread.
        inside: The waits inside of a call, the oldest first.
    """

    kind: Kind
    operation: str
    on: str
    peers: tuple[str, ...]
    num_peers: int
    since: float
    thread: int
    inside: "tuple[Activity, ...]" = ()


@dataclass(frozen=True)
class ProcessState:
    """What a process of a job does, or did when it died.

    Attributes:
        address: The worker's address, the name of an actor, or `driver`.
        pid: Its process id.
        started: Its start time, in clock ticks since the boot.
        parent: The process id of the process that forked it; 0 if none did.
        node_rank: The rank of its node; -1 if it is not known.
        status: Whether it runs; `unknown` for a process of another container.
        activities: Its calls, and the waits outside of calls, the oldest first.
        hidden: The number of its calls and waits for which the page has no room.
    """

    address: str
    pid: int
    started: int
    parent: int
    node_rank: int
    status: Status
    activities: tuple[Activity, ...]
    hidden: int

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
    def is_idle(self) -> bool:
        """Whether it is in no call and no wait."""
        return not self.activities and not self.hidden


# Writing.


class _Thread(threading.local):
    def __init__(self) -> None:
        self.number = threading.get_native_id()  # a system call


_thread = _Thread()


class PageEntry:
    """A call or a wait on the page of this process, until `end`."""

    __slots__ = ("_block", "_page", "_version")

    def __init__(self, page: "_Page", block: int, version: int) -> None:
        self._page = page
        self._block = block
        self._version = version

    def end(self) -> None:
        """Remove it from the page. Call this once."""
        if self._page is _page:  # not that of the parent, nor of an earlier job
            self._page.remove(self._block)

    def place_in(self, page: "_Page") -> tuple[int, int]:
        """Return the block and its version; zeros for another page."""
        return (self._block, self._version) if self._page is page else (0, 0)


_call: ContextVar[PageEntry | None] = ContextVar("shoal_call", default=None)


class _Page:
    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path = path
        self._memory = memory
        self._words = memoryview(memory).cast("Q")
        self._free = list(range(_BLOCKS - 1, 0, -1))
        self._hidden = 0
        self._lock = threading.RLock()  # of `_hidden`

    def describe(self, address: str, node_rank: int, parent: int) -> None:
        text = address.encode(errors="replace")[: _BLOCK - _PROCESS.size]
        words = self._words
        words[0] = odd = words[0] | 1
        facts = (odd, self._hidden, _MAGIC, parent, node_rank, len(text))
        self._memory[: _PROCESS.size + len(text)] = _PROCESS.pack(*facts) + text
        words[0] = odd + 1

    def add(self, kind: Kind, since: int, fields: Sequence[str], num_peers: int = 0) -> PageEntry:
        try:
            block = self._free.pop()
        except IndexError:
            self._hide(1)
            return PageEntry(self, 0, 0)
        text = "\0".join(fields).encode(errors="replace")[:_MOST_TEXT]
        call = _call.get()
        around = (0, 0) if call is None else call.place_in(self)
        words, version = self._words, block * _WORDS
        words[version] = odd = words[version] | 1
        code = 1 if kind == "call" else 2
        facts = (odd, code, since, _thread.number, *around, num_peers, len(text))
        begin = block * _BLOCK
        self._memory[begin : begin + _ACTIVITY.size + len(text)] = _ACTIVITY.pack(*facts) + text
        words[version] = odd + 1
        return PageEntry(self, block, odd + 1)

    def remove(self, block: int) -> None:
        if block:
            self._words[block * _WORDS + 1] = 0
            self._free.append(block)
        else:
            self._hide(-1)

    def _hide(self, change: int) -> None:
        with self._lock:
            self._hidden += change
            self._words[1] = self._hidden


class _Identity(NamedTuple):
    job: str
    address: str
    node_rank: int


_page: _Page | None = None
_identity: _Identity | None = None
_parent = 0
_is_new_child = False


class _Calling:
    __slots__ = ("_before", "_entry", "_operation")

    def __init__(self, operation: str) -> None:
        self._operation = operation
        self._before: PageEntry | None = None
        self._entry: PageEntry | None = None

    def __enter__(self) -> None:
        page = _page or _page_of_child()
        if page is not None:
            self._before = _call.get()
            self._entry = page.add("call", time.monotonic_ns(), (self._operation,))
            _call.set(self._entry)

    def __exit__(self, *error: object) -> None:
        if self._entry is not None:
            # Not `reset`, which fails if a generator is continued in another context.
            _call.set(self._before)
            self._entry.end()


def calling(operation: str) -> _Calling:
    """Return a context manager that shows a call of a worker's method while it goes on."""
    return _Calling(operation)


def begin_wait(
    operation: str, on: str = "", peers: Sequence[str] = (), since: float | None = None
) -> PageEntry | None:
    """Show a wait.

    Args:
        operation: What waits, such as `get`.
        on: What the operation is on, such as a channel and a key.
        peers: The addresses of the processes that it waits for.
        since: When it began, as `time.monotonic()`; None for now.

    Returns:
        The entry, which the caller ends; None if this process has no page.
    """
    page = _page or _page_of_child()
    if page is None:
        return None
    begin = time.monotonic_ns() if since is None else int(since * 1e9)
    fields = (operation, on[:_MOST_OF_OBJECT], *peers[:_MOST_PEERS])
    return page.add("wait", begin, fields, len(peers))


def show_process(job: str, address: str, node_rank: int) -> None:
    """Give this process a page among those of a job, or change what the page says it is.

    Does nothing with `SHOAL_STATE=0`. If no page can be made, the process goes on without one.

    Args:
        job: The name of the job, which no other job of this user on this node has.
        address: The worker's address, the name of an actor, or `driver`.
        node_rank: The rank of the node in the cluster; -1 if it is not known.
    """
    global _identity, _parent  # noqa: PLW0603  (a process has one page)
    if env_value("STATE") == "0":
        return
    is_new = _identity is None or _identity.job != job
    if is_new:
        hide_process()
    _identity = _Identity(job, address, node_rank)
    if is_new:
        _parent = 0
        remove_dead()
        _open_page(_identity)
    elif _page is not None:
        _page.describe(address, node_rank, _parent)


def hide_process() -> None:
    """Remove the page of this process; with the last page of a job, also the job's folder."""
    global _page, _identity, _is_new_child
    page, _page, _identity, _is_new_child = _page, None, None, False
    if page is not None:
        _remove(page.path.parent, [page.path])


def _open_page(identity: _Identity) -> None:
    global _page  # noqa: PLW0603  (as above)
    try:
        page = _make_page(identity.job)
    except OSError as error:
        _log.warning("%s: the state of this process is not shown: %s", identity.address, error)
        return
    # A worker that is launched again has the address of one that died.
    folder, address = page.path.parent, identity.address
    found = [(path, state) for path, state in _read_all(folder) if state.address == address]
    _remove(folder, [path for path, state in found if state.status == "dead"])
    page.describe(address, identity.node_rank, _parent)
    _page = page


def _page_of_child() -> _Page | None:
    """Return the page of a forked child, which is made when the child has something to show.

    Most children never have. They end without exit handlers, so that their pages would stay.
    """
    global _is_new_child  # noqa: PLW0603  (as above)
    if _is_new_child and _identity is not None:
        _is_new_child = False
        _open_page(_identity)
    return _page


def _begin_again() -> None:
    """Leave the page to the parent, in a forked child."""
    global _page, _parent, _thread, _is_new_child  # noqa: PLW0603  (as above)
    # A process of no job has no page, so that this one is a child of none.
    _page, _parent, _thread = None, os.getppid() if _identity else 0, _Thread()
    _is_new_child = True


in_child(ChildStage.FORGET, _begin_again)
atexit.register(hide_process)


# Files. The name of a page says whose it is, so that it can be removed unread.


def _make_page(job: str) -> _Page:
    folder = memory_folder() / f"{_prefix()}{quote(job, safe='')}"
    process = own_process()
    path = folder / f"{process.pid}-{process.started}-{_this_host()}"
    file = _create(path)
    try:
        # Reserves the memory: a store into a hole would kill this process when there is none left.
        os.posix_fallocate(file, 0, _SIZE)
        return _Page(path, mmap.mmap(file, _SIZE))
    except OSError:
        _remove(folder, [path])
        raise
    finally:
        os.close(file)


def _create(path: Path) -> int:
    """Create a page and its folder; return the file's descriptor."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        # Another process may remove the folder while it is empty.
        with contextlib.suppress(FileNotFoundError):
            if not _is_private(path.parent):
                raise PermissionError(f"{path.parent} is not a folder of this user alone")
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    raise FileNotFoundError(f"{path.parent} is removed again and again")


def _prefix() -> str:
    return f"shoal-state-{os.geteuid()}-"


@functools.cache
def _this_host() -> str:
    return f"{zlib.crc32(own_process().host.encode()):08x}"


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not stat.S_IMODE(found.st_mode) & 0o077
    )


def _status_of(page: Path) -> Status:
    name = _NAME.fullmatch(page.name)
    if name is None:
        return "dead"  # it belongs to no process
    return run_state(int(name[1]), int(name[2])) if name[3] == _this_host() else "unknown"


def _remove(folder: Path, pages: Iterable[Path]) -> None:
    """Remove pages of a job, and the job's folder if it is empty then."""
    for page in pages:
        with contextlib.suppress(OSError):
            page.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def find_jobs(parent: Path | None = None) -> dict[str, Path]:
    """Return the folders of this user's jobs on this node, by the names of the jobs.

    Args:
        parent: The folder to search; None for the one where this process would make its page.
    """
    found = {}
    for folder in sorted((parent or memory_folder()).glob(f"{_prefix()}*")):
        with contextlib.suppress(FileNotFoundError):
            if _is_private(folder):
                found[unquote(folder.name.removeprefix(_prefix()))] = folder
    return found


def remove_pages(addresses: Sequence[str]) -> None:
    """Remove the pages of workers of this job on this node, and of workers below them.

    Call it for workers that are killed on purpose: otherwise they would count as dead.
    """
    if _page is not None:
        below = tuple(f"{address}:" for address in addresses)
        found = _read_all(_page.path.parent)
        _remove(_page.path.parent, [p for p, s in found if f"{s.address}:".startswith(below)])


def remove_dead(parent: Path | None = None) -> list[str]:
    """Remove the pages of this user's jobs of which no process is alive; return their folders.

    A stopped process counts as alive. As long as its job goes on, the page of a dead process stays.

    Args:
        parent: The folder to search; None for the one where this process would make its page.
    """
    removed = []
    for folder in find_jobs(parent).values():
        with contextlib.suppress(OSError):
            pages = list(folder.iterdir())
            if all(_status_of(page) == "dead" for page in pages):
                # One by one: a process may have made its page in this moment.
                _remove(folder, pages)
                removed.append(str(folder))
    return removed


# Reading.


def read_pages(folder: Path) -> list[ProcessState]:
    """Return what the processes of a job do; without pages that are damaged, or just made.

    Args:
        folder: A folder of `find_jobs`.
    """
    return [state for _, state in _read_all(folder)]


def _read_all(folder: Path) -> Iterator[tuple[Path, ProcessState]]:
    try:
        pages = sorted(folder.iterdir())
    except OSError:
        return
    for page in pages:
        with contextlib.suppress(OSError, ValueError):
            yield page, _read(page)


def _read(page: Path) -> ProcessState:
    name = _NAME.fullmatch(page.name)
    blocks = _read_blocks(page)
    _, hidden, magic, parent, node_rank, length = _PROCESS.unpack_from(
        blocks.get(0, b"\0" * _BLOCK)
    )
    if name is None or magic != _MAGIC:
        raise ValueError(f"{page} is not a page of this format")
    return ProcessState(
        address=_text(blocks[0], _PROCESS.size, length),
        pid=int(name[1]),
        started=int(name[2]),
        parent=parent,
        node_rank=node_rank,
        status=_status_of(page),
        activities=_activities(blocks),
        hidden=hidden,
    )


def _read_blocks(page: Path) -> dict[int, bytes]:
    """Return the blocks that two reads in a row find complete and equal."""
    file = os.open(page, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found: dict[int, bytes] = {}
        before = os.pread(file, _SIZE, 0)
        for _ in range(_READS):
            now = os.pread(file, _SIZE, 0)
            for begin in range(0, len(now) - _BLOCK + 1, _BLOCK):
                block = now[begin : begin + _BLOCK]
                is_odd = int.from_bytes(block[:8], sys.byteorder) % 2
                if not is_odd and block == before[begin : begin + _BLOCK]:
                    found.setdefault(begin // _BLOCK, block)
            if len(found) == _BLOCKS:
                break
            before = now
            time.sleep(_PAUSE_S)
    finally:
        os.close(file)
    return found


def _activities(blocks: dict[int, bytes]) -> tuple[Activity, ...]:
    """Return the outermost activities, with the others inside of them."""
    around: dict[tuple[int, int], tuple[int, int]] = {}
    found: dict[tuple[int, int], Activity] = {}
    for number, block in blocks.items():
        version, code, since, thread, *call, num_peers, length = _ACTIVITY.unpack_from(block)
        if not number or not 0 < code <= len(_KINDS):
            continue
        operation, _, rest = _text(block, _ACTIVITY.size, length).partition("\0")
        on, *peers = rest.split("\0")
        if length == _MOST_TEXT:
            peers = peers[:-1]  # the last one may have been cut
        found[number, version] = Activity(
            _KINDS[code - 1], operation, on, tuple(peers), num_peers, since / 1e9, thread
        )
        around[number, version] = (call[0], call[1])

    def complete(keys: Iterable[tuple[int, int]]) -> tuple[Activity, ...]:
        made = [
            replace(found[key], inside=complete(k for k, call in around.items() if call == key))
            for key in keys
        ]
        return tuple(sorted(made, key=lambda activity: activity.since))

    return complete(key for key, call in around.items() if call not in found)


def _text(block: bytes, begin: int, length: int) -> str:
    return block[begin : begin + length].decode(errors="ignore")  # a cut may be within a character
