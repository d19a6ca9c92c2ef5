"""`Member`: this process as a participant of a session, one for all its objects of the session."""

import contextlib
import math
import os
import sqlite3
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shoal._pure.shm import sweep
from shoal._pure.shm.alive import own_process, take_lock
from shoal._pure.shm.bell import Bell, ring
from shoal._pure.shm.checks import Limit
from shoal._pure.shm.ending import stay_silent
from shoal._pure.shm.places import LOCKS, TABLES, checked_format, remove
from shoal._pure.shm.store import LockedError, Store, beside, gone, inside
from shoal.errors import ChannelClosed, ChannelError, ChannelNotFoundError

__all__ = ["Facts", "Member", "NotYet", "let_go", "member_of", "own_folders"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.0002
_LAST_PAUSE_S = 0.01
_SWEEP_EVERY_S = 0.5
_LONGEST_S = 30.0
_SHORTEST_S = 0.2
_LOOKED_AT_S = 5.0
"""Maximum seconds that the search for dead sessions may hold all locks of one; it needs moments."""


class Facts(NamedTuple):
    """The arguments that a session was created with."""

    max_bytes: int
    backlog: int
    policy: str
    spill: str | None


class NotYet(NamedTuple):
    """The result of an attempt that must be repeated after a change.

    Attributes:
        why: The reason, for the error when the time is over.
    """

    why: str = ""


class _Dead(Exception):  # noqa: N818  (a signal within this module, not an error)
    """The session ended while this process tried to join it."""


class _LookedAt(_Dead):
    """Another process holds all locks of the session, to check whether it is dead."""


class Member:
    """This process as a participant of a session.

    Args:
        folder: The session's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handles = 0
        self.keeps = False
        self._locks = -1
        self._me: int | None = None
        self._bell: Bell | None = None
        self._serial = 0
        self._swept = time.monotonic()
        self._ringing: set[int] = set()
        self._store = Store(folder / TABLES)
        facts = self._store.read(_facts)
        checked_format(folder, facts[0])
        self.facts = Facts(*facts[1:])

    @property
    def closed(self) -> bool:
        """Whether this process has closed all its objects of the session."""
        return self.handles <= 0

    @property
    def me(self) -> int:
        """The participant number of this process; 0 before it has joined."""
        return self._me or 0

    def write(
        self,
        op: str,
        work: Callable[[sqlite3.Connection], T],
        limit: float = math.inf,
        undone: Callable[[], None] | None = None,
    ) -> T:
        """Run a transaction that writes, then ring the bells that are due; see `Store.write`.

        Raises:
            ChannelClosed: This process has closed the session.
        """
        try:
            with self._open(op):
                if self._me is None:
                    self.join(op)
                return self._store.write(work, _bounded(limit), undone)
        finally:
            if self._ringing:
                self.ring_now()
            if _registered.dropped:
                _settle()

    def read(self, op: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run one query; see `Store.read`."""
        try:
            with self._open(op):
                return self._store.read(work)
        finally:
            if _registered.dropped:
                _settle()

    def snapshot(self, op: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run several queries that see the same moment."""
        return self.write(op, work)

    def later(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Run a transaction that gives something back, now or soon.

        Can be called at any time, as finalizers are: within another call, and after the close.
        """
        if self._me is None:  # this process has left, which gave everything back
            return
        self._store.later(work)
        if self._ringing:
            self.ring_now()

    def wait(
        self,
        op: str,
        limit: Limit,
        attempt: Callable[[float], T | NotYet],
        at: tuple[int, str] | None = None,
    ) -> T | NotYet:
        """Repeat an attempt after every change of the session, until it succeeds.

        Args:
            op: The operation, for messages.
            limit: The time limit.
            attempt: Takes the seconds that it may wait for the tables.
            at: The queue and the side that the call waits at; a longer wait is noted there.

        Returns:
            The last result of `attempt`: a `NotYet` if the time is over.
        """
        pause = _FIRST_PAUSE_S
        while True:
            seen = self._version(op)
            try:
                result = attempt(limit.remaining)
            except LockedError:
                if not limit.over:
                    raise
                return NotYet("another process holds the session's tables")
            if not isinstance(result, NotYet) or limit.over:
                return result
            while not limit.over:
                self.sweep_when_due()
                if self._version(op) != seen:
                    break
                time.sleep(min(pause, limit.remaining))
                pause = min(1.5 * pause, _LAST_PAUSE_S)
                if at is not None and pause == _LAST_PAUSE_S and not limit.over:
                    self.arm(op, *at)
                    at = None

    def arm(self, op: str, queue: int, side: str) -> None:
        """Note that this process waits at a side of a queue, until `due` removes the note."""
        self.write(
            op,
            lambda db: db.execute(
                "INSERT OR IGNORE INTO armed (participant, queue, side) VALUES (?, ?, ?)",
                (self.me, queue, side),
            ),
        )

    def due(self, db: sqlite3.Connection, side: str, queue: int | None = None) -> None:
        """Within a transaction: note which processes to ring, those armed at a side of a queue.

        None means all queues.
        """
        found = db.execute(
            "DELETE FROM armed WHERE side = ? AND queue = coalesce(?, queue) RETURNING participant",
            (side, queue),
        )
        self._ringing.update(row[0] for row in found.fetchall())

    def ring_now(self) -> None:
        """Ring the processes that `due` has noted."""
        while self._ringing:
            ring(self.folder / f"b{self._ringing.pop()}")

    def sweep(self, op: str = "sweep") -> sweep.Swept:
        """Clean up after dead participants."""
        self._swept = time.monotonic()
        swept, files = self.write(op, lambda db: sweep.dead(db, self.me, self._locks, self.due))
        _unlink(files)
        if swept.dead:
            self._unlink_forgotten(op)
        return swept

    def _unlink_forgotten(self, op: str) -> None:
        """Remove files without a row: a process died between removing the row and the file.

        A new message has its row before its file, so the files must be listed before the rows.
        """
        files = {str(path) for path in self.folder.glob("x*")}
        _unlink(sorted(files.difference(self.read(op, sweep.files))))

    def sweep_when_due(self) -> None:
        """Clean up after dead participants if this process has not done so for a while."""
        if time.monotonic() - self._swept >= _SWEEP_EVERY_S:
            self._swept = time.monotonic()
            others = self.read("sweep", sweep.participants)
            if any(sweep.is_dead(row, self.me, self._locks) for row in others):
                self.sweep()

    def new_path(self, *, spilled: bool) -> Path:
        """Return the path for a new file of this process."""
        self._serial += 1
        parent = self.folder
        if spilled and self.facts.spill is not None:
            parent = Path(self.facts.spill)
            _make_private(parent)
        return parent / f"x{self.me}.{self._serial}"

    def bell(self) -> Bell:
        """Return the doorbell of this process."""
        self._check_open("fileno")
        self.join("fileno")
        if self._bell is None:
            self._bell = Bell(self.folder / f"b{self.me}")
        return self._bell

    def leave(self) -> None:
        """Leave the session and give everything back; the last participant removes the session."""
        with _registered.lock:
            if _registered.members.get(self.folder) is self:
                del _registered.members[self.folder]
        if self._me is None:
            self._store.close()
            return
        me, self._me = self._me, None
        try:
            files, goes = self._store.write(
                lambda db: sweep.leave(db, me, self._locks, self.due, keeps=self.keeps)
            )
            self.ring_now()
            _unlink(files)
        except ChannelNotFoundError:  # the session was removed, with everything in it
            goes = False
        finally:
            self._store.close()
            if self._bell is not None:
                (self.folder / f"b{me}").unlink(missing_ok=True)
            self._close_files()
        if goes:
            remove(self.folder, self.facts.spill)

    def before_fork(self) -> None:
        """Stop all use of the tables until the fork is over."""
        self._store.before_fork()

    def after_fork(self, *, in_child: bool) -> None:
        """Continue after a fork; a child is not a participant yet."""
        if in_child:
            self._me = None
            self._ringing.clear()
            self._close_files()
        self._store.after_fork(in_child=in_child)

    def join(self, op: str) -> None:
        """Become a participant, if this process is not one yet."""
        with _registered.lock:
            if self.closed or self._me is not None:
                return self._check_open(op)
            try:
                self._locks = os.open(self.folder / LOCKS, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                self._me = self._entered()
            except BaseException as error:
                self._close_files()
                if isinstance(error, (OSError, _Dead)):
                    raise gone(self.folder) from None
                raise

    def _entered(self) -> int:
        end = time.monotonic() + _LOOKED_AT_S
        while True:
            try:
                return self._store.write(self._enter)
            except _LookedAt:
                if time.monotonic() >= end:
                    raise
                time.sleep(_FIRST_PAUSE_S)

    def _close_files(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
        locks, self._locks = self._locks, -1
        if locks >= 0:
            os.close(locks)

    def _enter(self, db: sqlite3.Connection) -> int:
        if db.execute("SELECT closed FROM session").fetchone()[0]:
            raise _Dead
        values = own_process()
        row = db.execute(
            "INSERT INTO participants (pid, started, space) VALUES (?, ?, ?) RETURNING id", values
        ).fetchone()
        # The lock must be taken before others can see the row. A process that removes a dead
        # session holds all bytes meanwhile; when it releases them, the file has no name any more.
        if not take_lock(self._locks, 1 + row[0]):
            raise _LookedAt
        if os.fstat(self._locks).st_nlink == 0:
            raise _Dead
        return int(row[0])

    def _check_open(self, op: str) -> None:
        if self.closed:
            stay_silent()
            raise ChannelClosed(f"{op}: the session is closed in this process")

    @contextlib.contextmanager
    def _open(self, op: str) -> Iterator[None]:
        self._check_open(op)
        try:
            yield
        except ChannelNotFoundError:
            # Another thread may have closed the session meanwhile, which may have removed it.
            self._check_open(op)
            raise

    def _version(self, op: str) -> tuple[int, int]:
        with self._open(op):
            return self._store.version()


class _Registered:
    """The sessions of this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.members: dict[Path, Member] = {}
        self.all: weakref.WeakSet[Member] = weakref.WeakSet()
        self.dropped: deque[Member] = deque()


_registered = _Registered()


def member_of(folder: Path) -> Member:
    """Return the `Member` of a session for one more object; it joins on its first use."""
    with _registered.lock:
        member = _registered.members.get(folder)
        if member is None:
            member = _registered.members[folder] = Member(folder)
            _registered.all.add(member)
        member.handles += 1
        return member


def let_go(member: Member) -> None:
    """Count one object less of a session; the process leaves the session with the last one.

    Can be called at any time, also by the garbage collector. While this thread uses the tables of
    any session the count is postponed, because other processes may wait for those tables.
    """
    _registered.dropped.append(member)
    _settle()


def _settle() -> None:
    while _registered.dropped and inside.depth == 0:
        with _registered.lock:
            if not _registered.dropped:
                return
            member = _registered.dropped.popleft()
            member.handles -= 1
            last = member.handles == 0
        if last:
            member.leave()


def own_folders() -> set[Path]:
    """Return the folders of the sessions that this process has open."""
    with _registered.lock:
        return set(_registered.members)


def _bounded(limit: float) -> float:
    return min(_LONGEST_S, max(limit, _SHORTEST_S))


def _facts(db: sqlite3.Connection) -> Any:
    return db.execute("SELECT format, max_bytes, backlog, policy, spill FROM session").fetchone()


def _unlink(files: list[str]) -> None:
    for file in files:
        Path(file).unlink(missing_ok=True)


def _before_fork() -> None:
    _registered.lock.acquire()
    beside.lock.acquire()
    inside.depth += 1  # this process leaves no session until the fork is over
    for member in list(_registered.all):
        member.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for member in list(_registered.all):
        member.after_fork(in_child=in_child)
    inside.depth -= 1
    if in_child:
        beside.lock = threading.RLock()
        _registered.lock = threading.RLock()
    else:
        beside.lock.release()
        _registered.lock.release()
    _settle()


def _make_private(folder: Path) -> None:
    """Make a folder that only this user can use; refuse one that another user may have made."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        return
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise ChannelError(
            f"{folder} cannot hold messages: expected a folder of this user with mode 0700"
        )


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(in_child=False),
    after_in_child=lambda: _after_fork(in_child=True),
)
