"""`Member`: this process as a participant of a session, one for all its objects of the session."""

import atexit
import contextlib
import fcntl
import functools
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from shoal._pure.shm.folders import TABLES, bell_of, is_dead, participants, remove
from shoal._pure.shm.tables import (
    FORMAT,
    LEASED,
    LOANED,
    QUEUED,
    SHORT_S,
    HeldError,
    Tables,
    access,
    connect,
    gone,
    use,
)
from shoal.errors import ChannelClosed, ChannelError, ChannelNotFoundError, ShoalError
from shoal.fork import ChildStage, in_child
from shoal.long_wait_hooks import annotate_waits

__all__ = [
    "Member", "facts_of", "member_of", "own_folders", "remove_files", "requeue", "stay_silent",
]  # fmt: skip

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_LONGEST_S: Final = 30.0
"""Maximum seconds to wait for the tables; others hold them only while they write a message."""
_SWEEP_EVERY_S: Final = 0.5
_HELD_LATELY_S: Final = 5.0
"""Seconds for which log lines of waits say that the tables were held; waits try more often."""


def facts_of(folder: Path, db: sqlite3.Connection) -> tuple[int, int, str, str | None, bool]:
    """Return `max_bytes`, `backlog`, `policy`, `spill` and `overfill` of a session.

    Raises:
        ChannelError: Another version of shoal made the tables.
    """
    found = db.execute("SELECT * FROM session").fetchone()  # tables of others lack columns
    version = found["format"]
    if version != FORMAT:
        raise ChannelError(
            f"the session at {folder} has tables of version {version}, this process knows "
            f"{FORMAT}: run the same version of shoal everywhere"
        )
    bounds = found["max_bytes"], found["backlog"]
    return *bounds, found["policy"], found["spill"], bool(found["overfill"])


class Member:
    """This process as a participant of a session; it joins with its first change.

    Args:
        folder: The session's folder.

    Attributes:
        me: The participant number of this process; 0 before it has joined.
        handles: Number of session objects of this process.
        keeps: Whether the session's files stay when this process leaves as the last participant.
        max_bytes: Maximum number of bytes of the session's messages.
        backlog: Maximum number of messages of a queue without a bound.
        policy: How a put behaves when there is no memory.
        spill: The folder for messages that do not fit, or None.
        overfill: Whether a queue takes any message while it holds less than its `max_bytes`.
        held: When this process last gave up waiting for the tables, and what was said then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.me = self.handles = 0
        self.keeps = False
        self.held = (-_HELD_LATELY_S, "")
        self._db: Tables | None = None
        self._runs = False  # whether `_run` uses `_db`
        self._lock = -1  # the folder, open to be locked; open while `_db` is
        self._bell = -1
        self._due: set[int] = set()  # the participants whose bells to ring
        self._swept = time.monotonic()
        _all.add(self)
        facts = self._run(lambda db: facts_of(folder, db), _LONGEST_S)
        self.max_bytes, self.backlog, self.policy, self.spill, self.overfill = facts
        self._folders = [folder, *([Path(self.spill)] if self.spill else [])]

    def write(
        self,
        op: str,
        work: Work[T],
        undone: Callable[[], None] | None = None,
        patience: float = _LONGEST_S,
    ) -> T:
        """Run work as one transaction: all of it or nothing; then ring the bells that are due.

        After an exception the work may be committed nevertheless, if a signal came at the very end;
        `undone` is called if the work was rolled back. The work runs again if a signal's handler
        uses the session, or forks, within it.

        Raises:
            ChannelClosed: This process has closed the session.
            HeldError: Another process held the tables for `patience` seconds.
            ChannelError: The tables are gone or damaged, or there is no room.
        """

        def working(db: sqlite3.Connection) -> T:
            if self.handles <= 0:  # another thread has closed the session meanwhile
                raise gone(self.folder)
            return work(db)

        def change() -> T:
            self.join(op, patience)
            return self._change(working, undone, patience)

        return self._used(op, change)

    def write_soon(self, op: str, work: Work[Any]) -> None:
        """Run a transaction for a wait, which tries again; or not, while the tables are held."""
        with contextlib.suppress(HeldError):
            self.write(op, work, patience=SHORT_S)

    def read(self, op: str, work: Work[T], patience: float = _LONGEST_S) -> T:
        """Run one query; raises the same errors as `write`."""
        return self._used(op, lambda: self._run(work, patience))

    def later(self, work: Work[T], then: Callable[[T], object] = bool) -> None:
        """Run a transaction that releases something, now or soon; finalizers can call this.

        Afterwards `then` is called with its result.
        """
        done: list[bool] = []  # a signal may come after the end of the transaction

        def working(db: sqlite3.Connection) -> T:
            result = work(db)
            done.append(True)
            return result

        # After this process has left, which releases everything, there is nothing to do.
        access.later(
            lambda patience: (
                self.me and not done and then(self._change(working, done.clear, patience))
            )
        )

    def forget(self, message: int) -> None:
        """Delete a message that this process holds, now or soon; finalizers can call this."""
        query = "DELETE FROM messages WHERE id = ? AND state <> ? AND owner = ? RETURNING file"
        mine = (message, QUEUED, self.me)
        self.later(lambda db: db.execute(query, mine).fetchall(), remove_files)

    def arm(self, op: str, queue: int, side: str) -> None:
        """Note that this process waits at a side of a queue."""
        query = "INSERT OR IGNORE INTO armed (participant, queue, side) VALUES (?, ?, ?)"
        self.write_soon(op, lambda db: db.execute(query, (self.me, queue, side)))

    def bell(self, op: str) -> int:
        """Return the descriptor of this process's doorbell, into which others write."""
        self.join(op)
        return self._bell

    def new_path(self, *, spilled: bool) -> Path:
        """Return the path for a new file, which no process has used before."""
        return self._folders[-1 if spilled else 0] / f"x{secrets.token_hex(16)}"

    def sweep(self, patience: float = _LONGEST_S) -> dict[str, int]:
        """Clean up after dead participants; return what `ShmSession.sweep` returns."""
        self._swept = time.monotonic()
        swept: dict[str, int] = self._tidied(
            lambda work: self.write("sweep", work, None, patience), self._sweep
        )
        return swept

    def sweep_when_due(self) -> None:
        """Clean up after dead participants if this process has not done so for a while."""
        if time.monotonic() - self._swept >= _SWEEP_EVERY_S:
            self._swept = time.monotonic()
            with contextlib.suppress(HeldError):
                found = self.read("sweep", participants, SHORT_S)
                if any(is_dead(self.folder, number) for number in found):
                    self.sweep(SHORT_S)

    def join(self, op: str, patience: float = _LONGEST_S) -> None:
        """Become a participant, if this process is not one yet."""
        self.check_open(op)  # not with the lock, which the end of the process waits for
        bells: list[int] = []
        with access.lock:
            if self.me:
                return
            try:
                number = self._change(lambda db: self._enter(db, bells), None, patience)
                if bells and not self.me:  # otherwise a signal's handler has joined meanwhile
                    self.me, self._bell = number, bells[-1]
            except FileNotFoundError:
                raise gone(self.folder) from None
            finally:
                for bell in bells:
                    if bell != self._bell:
                        os.close(bell)

    def let_go(self) -> None:
        """Count one object less of the session; the process leaves it with the last one.

        Can be called at any time, also by the garbage collector.
        """
        access.later(functools.partial(self._let_go, [1]))

    def leave(self, patience: float) -> None:
        """Leave the session and release everything; the last participant removes the session."""
        goes = False
        if self.me:
            try:
                goes = self._tidied(lambda work: self._change(work, None, patience), self._leave)
            except HeldError:
                raise
            except ShoalError:
                pass  # the session was removed, with everything in it
        self.disconnect()
        self.forget_parent()
        if goes:
            remove(self.folder, self.spill)

    def check_open(self, op: str) -> None:
        """Refuse an operation of a session that this process has closed.

        Raises:
            ChannelClosed: All session objects are closed.
        """
        if self.handles <= 0:
            stay_silent()
            raise ChannelClosed(f"{op}: the session is closed in this process")

    def disconnect(self) -> None:
        """Close the connection; a later call opens a new one."""
        with access.lock:
            db, self._db = self._db, None
            if db is not None:
                db.cut = db.in_transaction
                try:
                    if db.cut:  # otherwise an open cursor would hold the transaction
                        db.execute("ROLLBACK")
                finally:
                    db.close()
            lock, self._lock = self._lock, -1
            if lock >= 0:
                os.close(lock)

    def forget_parent(self) -> None:
        """Forget that this process, or in a forked child its parent, is a participant."""
        self.me = 0
        self._due.clear()
        bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)

    def _used(self, op: str, use: Callable[[], T]) -> T:
        self.check_open(op)
        try:
            return use()
        except ChannelNotFoundError:
            # Another thread may have closed the session meanwhile, which may have removed it.
            self.check_open(op)
            raise

    def _run(self, work: Callable[[Tables], T], patience: float) -> T:
        def run() -> T:
            outer, self._runs = self._runs, True
            try:
                # A signal's handler runs this within another call, which may hold what it waits
                # for; or a second signal kept an earlier call from its rollback.
                if outer or (self._db is not None and self._db.in_transaction):
                    self.disconnect()
                while True:
                    db = self._connected()
                    try:
                        return work(db)
                    except sqlite3.Error:
                        if db is self._db:
                            raise
                        # A handler has closed it: try again.
            finally:
                self._runs = outer
                if outer:  # the other call must not take this connection for its own
                    self.disconnect()

        try:
            return use(self.folder / TABLES, run, patience)
        except HeldError as error:
            self.held = time.monotonic(), str(error)
            raise

    def _connected(self) -> Tables:
        if self._db is None:
            db = connect(self.folder / TABLES)
            if self._lock < 0:
                try:
                    self._lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    raise gone(self.folder) from None
            self._db = db
        return self._db

    def _change(self, work: Work[T], undone: Callable[[], None] | None, patience: float) -> T:
        def change(db: Tables) -> T:
            try:
                # Until 3.51.3, SQLite can lose a transaction that one process commits while another
                # one copies earlier ones from the journal, as it does after a commit now and then
                # (https://sqlite.org/wal.html#walresetbug). So only one does either at a time.
                if db is self._db:  # otherwise it is closed, and the next line fails
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                db.execute("BEGIN IMMEDIATE")
                result = work(db)
                due = db.execute("DELETE FROM armed WHERE due = 1 RETURNING participant").fetchall()
                self._due.update(row["participant"] for row in due)
                db.execute("COMMIT")
            except BaseException as error:
                try:
                    lost = db.in_transaction if db is self._db else db.cut
                    if undone is not None and (lost or isinstance(error, sqlite3.Error)):
                        undone()
                finally:
                    if db is self._db and db.in_transaction:
                        db.execute("ROLLBACK")
                raise
            finally:
                if self._lock >= 0:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            return result

        try:
            return self._run(change, patience)
        finally:
            self._ring()

    def _ring(self) -> None:
        while self._due:
            # Fails if the process has gone or has no bell; another thread may ring it too.
            with contextlib.suppress(OSError, KeyError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                bell = os.open(bell_of(self.folder, self._due.pop()), flags)
                with os.fdopen(bell, "wb", buffering=0) as pipe:
                    pipe.write(b"\0")

    def _tidied(self, write: Callable[[Work[Any]], Any], work: Work[Any]) -> Any:
        """Do work in a transaction, then remove the files and bells without a row; return its result.

        A process may be killed before it can remove a file, or while it makes one. It makes the file
        and commits its row in one transaction. So a file that is listed before a transaction and has
        no row in it was left by a process that was killed. It is removed after the transaction:
        otherwise, if this process were killed in between, the row of a participant could stay without
        its bell, and the participant would never be taken for dead.
        """
        listed = {path for folder in self._folders for path in folder.glob("[bx]*")}

        def working(db: sqlite3.Connection) -> tuple[Any, set[Path]]:
            result = work(db)
            rows = db.execute("SELECT file FROM messages WHERE file IS NOT NULL").fetchall()
            bells = {bell_of(self.folder, number) for number in participants(db)}
            return result, listed - bells - {Path(row["file"]) for row in rows}

        result, orphans = write(working)
        for path in orphans:
            path.unlink(missing_ok=True)
        return result

    def _enter(self, db: sqlite3.Connection, bells: list[int]) -> int:
        if db.execute("SELECT closed FROM session").fetchone()[0]:
            raise gone(self.folder)
        if self.me:  # a signal's handler has joined meanwhile
            return self.me
        # Random, so that no other process ever has the same: it may remove the bell late.
        number = secrets.randbits(62)
        db.execute("INSERT INTO participants VALUES (?)", (number,))
        bell = bell_of(self.folder, number)
        os.mkfifo(bell, 0o600)
        # Open for writing too: a pipe whose last writer has gone is always readable.
        bells.append(os.open(bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        fcntl.flock(bells[-1], fcntl.LOCK_EX)  # before others can see the row
        return number

    def _let_go(self, objects: list[int], _: float) -> None:
        self.handles -= objects[0]
        objects[0] = 0  # this runs again if a signal comes
        if self.handles == 0:
            _members.pop(self.folder, None)
            access.later(self.leave)

    def _leave(self, db: sqlite3.Connection) -> bool:
        """Remove this process; return whether the session goes too."""
        self._sweep(db)
        _release(db, self.me)
        goes = not self.keeps and not participants(db)
        if goes:
            db.execute("UPDATE session SET closed = 1")
        return goes

    def _sweep(self, db: sqlite3.Connection) -> dict[str, int]:
        """Release all that dead participants held."""
        dead = [number for number in participants(db) if is_dead(self.folder, number)]
        states = [state for number in dead for state in _release(db, number)]
        lost = states.count(LOANED)
        if dead:
            query = "UPDATE session SET lost = lost + ?, recovered = recovered + ?"
            db.execute(query, (lost, len(states)))
        redelivered = states.count(LEASED)
        found = {"recovered": len(states), "redelivered": redelivered, "lost": lost}
        return {"dead": len(dead), **found}


def _release(db: sqlite3.Connection, number: int) -> list[int]:
    """Remove a participant and release all that it held; return the states of these messages."""
    query = "SELECT id, state FROM messages WHERE state <> ? AND owner = ? ORDER BY id"
    rows = db.execute(query, (QUEUED, number)).fetchall()
    for message, state in rows:
        if state == LEASED:
            requeue(db, message)
    db.execute("DELETE FROM messages WHERE state <> ? AND owner = ?", (QUEUED, number))
    db.execute("DELETE FROM participants WHERE id = ?", (number,))
    return [state for _, state in rows]


def requeue(db: sqlite3.Connection, message: int) -> None:
    """Put a leased message at the end of its queue again, as redelivered."""
    columns = "queue, sender, kind, weight, size, memory, written, data, file"
    db.execute(
        f"INSERT INTO messages (state, redelivered, {columns}) "  # noqa: S608  (they are constants)
        f"SELECT {QUEUED}, 1, {columns} FROM messages WHERE id = ?",
        (message,),
    )
    db.execute("DELETE FROM messages WHERE id = ?", (message,))


def remove_files(deleted: list[sqlite3.Row]) -> int:
    """Remove the files of messages that were deleted; return the number of messages."""
    for row in deleted:
        if row["file"] is not None:
            Path(row["file"]).unlink(missing_ok=True)
    return len(deleted)


_members: dict[Path, Member] = {}
_all: weakref.WeakSet[Member] = weakref.WeakSet()
_ending = threading.Event()


def member_of(folder: Path) -> Member:
    """Return the `Member` of a session for one more object."""
    with access.lock:
        member = _members.get(folder)
        if member is None:
            made = Member(folder)
            member = _members.setdefault(folder, made)
            if member is not made:  # a signal's handler has made it meanwhile
                made.disconnect()
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
        access.later(member.leave)
    access.catch_up()


def _held(_: object) -> str:
    """Return the remark on a long wait that another process holds the tables of a session."""
    since = time.monotonic() - _HELD_LATELY_S
    return "; ".join(text for when, text in (member.held for member in list(_all)) if when > since)


def _before_fork() -> None:
    """Close all connections: parent and child open their own."""
    access.lock.acquire()
    for member in list(_all):
        member.disconnect()


def _in_parent() -> None:
    access.lock.release()


def _in_child() -> None:
    access.renew()
    for member in list(_all):
        member.forget_parent()


annotate_waits(_held)
atexit.register(_leave_all)
os.register_at_fork(before=_before_fork, after_in_parent=_in_parent)
in_child(ChildStage.RENEW, _in_child)
