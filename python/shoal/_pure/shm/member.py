"""`Member`: this process as a participant of a session, one for all its objects of the session."""

import atexit
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from shoal._pure.shm.doorbell import Doorbell
from shoal._pure.shm.files import remove_orphans
from shoal._pure.shm.folders import LOCKS, TABLES, remove
from shoal._pure.shm.participants import (
    is_dead,
    participants,
    release,
    sweep,
    take_lock,
)
from shoal._pure.shm.schema import FORMAT
from shoal._pure.shm.tables import LONGEST_S, LockedError, Tables, access, gone, later
from shoal.errors import ChannelClosed, ChannelError, ChannelNotFoundError, ShoalError
from shoal.fork import ChildStage, in_child
from shoal.process import own_process

__all__ = ["PATIENCE_S", "Facts", "Member", "facts_of", "member_of", "own_folders"]

T = TypeVar("T")

PATIENCE_S: Final = 1.0
"""Seconds that one attempt waits for the tables while another process holds them."""

_SWEEP_EVERY_S: Final = 0.5


class Facts(NamedTuple):
    """The arguments that a session was created with."""

    max_bytes: int
    backlog: int
    policy: str
    spill: str | None


def facts_of(folder: Path, db: sqlite3.Connection) -> Facts:
    """Return the arguments of a session.

    Raises:
        ChannelError: Another version of shoal made the tables.
    """
    version, *facts = db.execute(
        "SELECT format, max_bytes, backlog, policy, spill FROM session"
    ).fetchone()
    if version != FORMAT:
        raise ChannelError(
            f"the session at {folder} has tables of version {version}, this process knows "
            f"{FORMAT}: run the same version of shoal everywhere"
        )
    return Facts(*facts)


class Member:
    """This process as a participant of a session; it joins with its first use.

    Args:
        folder: The session's folder.

    Attributes:
        me: The participant number of this process; 0 before it has joined.
        handles: Number of session objects of this process.
        bell: The doorbells of the session.
        keeps: Whether the session's files stay when this process leaves as the last participant.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.me = 0
        self.handles = 0
        self.keeps = False
        self.bell = Doorbell(folder)
        self._locks = -1
        self._serial = 0
        self._swept = time.monotonic()
        self._tables = Tables(folder / TABLES)
        self.facts = self._tables.read(partial(facts_of, folder))
        self._folders = [folder, *([Path(self.facts.spill)] if self.facts.spill else [])]

    def write(
        self,
        op: str,
        work: Callable[[sqlite3.Connection], T],
        patience: float = LONGEST_S,
        undone: Callable[[], None] | None = None,
    ) -> T:
        """Run a transaction, then ring the bells that are due; see `Tables.write`.

        Raises:
            ChannelClosed: This process has closed the session.
        """

        def working(db: sqlite3.Connection) -> T:
            if self.handles <= 0:  # another thread has closed the session meanwhile
                raise gone(self.folder)
            return work(db)

        def change() -> T:
            if not self.me:
                self.join(op)
            return self._changed(working, patience, undone)

        return self._used(op, change)

    def read(self, op: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run one query; see `Tables.read`."""
        return self._used(op, lambda: self._tables.read(work))

    def version(self, op: str) -> tuple[int, int]:
        """Return a value that differs whenever any process may have changed the session."""
        return self._used(op, self._tables.version)

    def later(self, work: Callable[[sqlite3.Connection], Any]) -> None:
        """Run a transaction that releases something, now or soon; finalizers can call this."""

        def run() -> None:
            if self.me:  # otherwise this process has left, which released everything
                self._changed(work, PATIENCE_S)

        later(run)

    def arm(self, op: str, queue: int, side: str) -> None:
        """Note that this process waits at a side of a queue."""
        self.write(
            op,
            lambda db: db.execute(
                "INSERT OR IGNORE INTO armed (participant, queue, side) VALUES (?, ?, ?)",
                (self.me, queue, side),
            ),
            PATIENCE_S,
        )

    def bell_descriptor(self, op: str) -> int:
        """Return the descriptor of this process's doorbell."""
        self.join(op)
        return self.bell.descriptor(self.me)

    def new_path(self, *, spilled: bool) -> Path:
        """Return the path for a new file of this process."""
        self._serial += 1
        return self._folders[-1 if spilled else 0] / f"x{self.me}.{self._serial}"

    def sweep(self, patience: float = LONGEST_S) -> dict[str, int]:
        """Clean up after dead participants."""
        self._swept = time.monotonic()
        swept: dict[str, int] = remove_orphans(
            self._folders,
            lambda work: self.write("sweep", work, patience),
            lambda db: sweep(db, self.me, self._locks),
        )
        return swept

    def sweep_when_due(self) -> None:
        """Clean up after dead participants if this process has not done so for a while."""
        if time.monotonic() - self._swept >= _SWEEP_EVERY_S:
            self._swept = time.monotonic()
            others = self.read("sweep", participants)
            if any(is_dead(row, self._locks, self.me) for row in others):
                with contextlib.suppress(LockedError):
                    self.sweep(PATIENCE_S)

    def join(self, op: str) -> None:
        """Become a participant, if this process is not one yet."""
        with access.lock:
            self.check_open(op)
            if self.me:
                return
            try:
                flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
                self._locks = os.open(self.folder / LOCKS, flags)
                self.me = self._tables.write(self._entered)
            except BaseException as error:
                self._close_lock()
                if isinstance(error, OSError):
                    raise gone(self.folder) from None
                raise

    def let_go(self) -> None:
        """Count one object less of the session; the process leaves it with the last one.

        Can be called at any time, also by the garbage collector.
        """
        later(self._let_go)

    def leave(self) -> None:
        """Leave the session and release everything; the last participant removes the session."""
        goes = False
        try:
            if self.me:
                goes = remove_orphans(self._folders, self._changed, self._left)
        except LockedError:
            raise
        except ShoalError:
            pass  # the session was removed, with everything in it
        self._tables.close()
        self.bell.close(self.me)
        self.me = 0
        self._close_lock()
        if goes:
            remove(self.folder, self.facts.spill)

    def check_open(self, op: str) -> None:
        """Refuse an operation of a session that this process has closed.

        Raises:
            ChannelClosed: All session objects are closed.
        """
        if self.handles <= 0:
            stay_silent()
            raise ChannelClosed(f"{op}: the session is closed in this process")

    def forget_parent(self) -> None:
        """Forget, in a forked child, that its parent is a participant."""
        self.me = 0
        self.bell.close()
        self._close_lock()

    def _changed(
        self,
        work: Callable[[sqlite3.Connection], T],
        patience: float = LONGEST_S,
        undone: Callable[[], None] | None = None,
    ) -> T:
        """Run a transaction, then ring the bells of the processes that it concerns."""

        def change(db: sqlite3.Connection) -> T:
            result = work(db)
            self.bell.note_due(db)
            return result

        try:
            return self._tables.write(change, patience, undone)
        finally:
            self.bell.ring()

    def _let_go(self) -> None:
        self.handles -= 1
        if self.handles == 0:
            _members.pop(self.folder, None)
            later(self.leave)

    def _left(self, db: sqlite3.Connection) -> bool:
        """Remove this process; return whether the session goes too."""
        sweep(db, self.me, self._locks)
        release(db, self.me)
        goes = not self.keeps and not participants(db)
        if goes:
            db.execute("UPDATE session SET closed = 1")
        return goes

    def _entered(self, db: sqlite3.Connection) -> int:
        if db.execute("SELECT closed FROM session").fetchone()[0]:
            raise gone(self.folder)
        number = db.execute(
            "INSERT INTO participants (host, pid, started) VALUES (?, ?, ?) RETURNING id",
            own_process(),
        ).fetchone()[0]
        take_lock(self._locks, number)  # before others can see the row
        return int(number)

    def _close_lock(self) -> None:
        locks, self._locks = self._locks, -1
        if locks >= 0:
            os.close(locks)

    def _used(self, op: str, use: Callable[[], T]) -> T:
        self.check_open(op)
        try:
            return use()
        except ChannelNotFoundError:
            # Another thread may have closed the session meanwhile, which may have removed it.
            self.check_open(op)
            raise


_members: dict[Path, Member] = {}
_all: weakref.WeakSet[Member] = weakref.WeakSet()
_ending = threading.Event()


def member_of(folder: Path) -> Member:
    """Return the `Member` of a session for one more object."""
    with access.lock:
        member = _members.get(folder)
        if member is None:
            member = _members[folder] = Member(folder)
            _all.add(member)
        member.handles += 1
        return member


def own_folders() -> set[Path]:
    """Return the folders of the sessions that this process has open."""
    return set(_members)


def stay_silent() -> None:
    """Keep a daemon thread from raising while the interpreter ends, which soon ends the thread.

    The thread would print a traceback that its session is closed, which helps no user.
    """
    while _ending.is_set() and threading.current_thread().daemon:
        time.sleep(1.0)


def _leave_all() -> None:
    _ending.set()
    for member in list(_members.values()):
        member.handles = 0
        later(member.leave)


def _forget_parent() -> None:
    for member in list(_all):
        member.forget_parent()


atexit.register(_leave_all)
in_child(ChildStage.RENEW, _forget_parent)
