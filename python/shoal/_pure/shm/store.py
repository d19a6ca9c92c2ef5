"""`Store`: the connection to the tables of a session that all threads of a process share.

A process that is killed leaves a journal behind; the next process that reads the tables undoes what
was not committed. Its locks end with it. No connection is used across a fork: it is closed before,
and parent and child open their own.
"""

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from shoal.errors import (
    ChannelCorruptError,
    ChannelError,
    ChannelMemoryError,
    ChannelNotFoundError,
)

__all__ = ["LockedError", "Store", "Work", "beside", "connect", "connected", "gone", "inside"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

_LONGEST_S = 30.0
"""Maximum seconds to wait for the tables; others hold them for microseconds, unless stopped."""
_FIRST_PAUSE_S = 0.0002
_LAST_PAUSE_S = 0.005
_LATE_TRIES = 20
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class LockedError(ChannelError):
    """Another process did not release the tables in time."""


class _Inside(threading.local):
    """Number of nested calls in which this thread uses the tables of any session."""

    depth = 0


inside = _Inside()


class _Beside:
    """Lock for use of tables without a `Store`; a fork waits for it, as for the stores."""

    lock = threading.RLock()


beside = _Beside()


class Store:
    """The tables of a session.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Taken only by `with`, which is safe against signals, and held only for the time of one
        # statement. Reentrant, because a finalizer may run in the thread that holds it.
        self._lock = threading.RLock()
        self._busy = False
        self._connection: sqlite3.Connection | None = None
        self._late: deque[Work[None]] = deque()
        self._changes = 0

    def write(
        self, work: Work[T], limit: float = _LONGEST_S, undone: Callable[[], None] | None = None
    ) -> T:
        """Run work on the tables as one transaction: all of it or nothing.

        After an exception the work may be committed nevertheless, if a signal came at the very end;
        `undone` is called if the work was rolled back.

        Raises:
            LockedError: Other processes held the tables for `limit` seconds.
            ChannelError: The tables are gone or damaged, or there is no room.
        """
        return self._retried(lambda db: self._committed(db, work, undone), limit)

    def read(self, work: Work[T], limit: float = _LONGEST_S) -> T:
        """Run one query; raises the same errors as `write`."""
        return self._retried(work, limit)

    def version(self) -> tuple[int, int]:
        """Return a value that differs whenever any process may have changed the tables."""
        seen = self.read(lambda db: db.execute("PRAGMA data_version").fetchone())
        return int(seen[0]), self._changes

    def later(self, work: Work[None]) -> None:
        """Run work as soon as no thread of this process uses the tables; now if possible.

        Never waits, so that finalizers can call it at any time, even within a call of this thread.
        """
        self._late.append(work)
        self._catch_up()

    def before_fork(self) -> None:
        """Keep all callers out, and close the connection."""
        self._lock.acquire()
        self._close()

    def after_fork(self, *, in_child: bool) -> None:
        """Let callers in again; parent and child open their own connections."""
        if in_child:
            self._lock = threading.RLock()
            self._late.clear()
        else:
            self._lock.release()

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = connect(self._path)
        return self._connection

    def _committed(
        self, db: sqlite3.Connection, work: Work[T], undone: Callable[[], None] | None = None
    ) -> T:
        if db.in_transaction:  # a signal came before the rollback of an earlier call
            db.execute("ROLLBACK")
        before = db.total_changes
        try:
            db.execute("BEGIN IMMEDIATE")
            result = work(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
                if undone is not None:
                    undone()
            raise
        if db.total_changes != before:
            self._changes += 1
        return result

    def _retried(self, work: Work[T], limit: float) -> T:
        end = time.monotonic() + limit
        pause = _FIRST_PAUSE_S
        before = inside.depth
        while True:
            try:
                with self._lock:
                    self._busy = True
                    try:
                        inside.depth = before + 1
                        return work(self._open())
                    finally:
                        inside.depth = before
                        self._busy = False
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY:
                    raise self._translated(error) from error
            finally:
                if self._late:
                    self._catch_up()
            if time.monotonic() >= end:
                raise self._locked(limit)
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)

    def _catch_up(self) -> None:
        with self._lock:
            if self._busy:
                return  # the call that uses the tables catches up when it ends
            self._busy = True
            before = inside.depth
            try:
                inside.depth = before + 1
                for _ in range(_LATE_TRIES):
                    if not self._late:
                        break
                    self._try_late()
            except (sqlite3.Error, ChannelError):
                # The session is gone, so there is nothing to give back.
                self._late.clear()
            finally:
                inside.depth = before
                self._busy = False

    def _try_late(self) -> None:
        try:
            self._committed(self._open(), self._late[0])
            self._late.popleft()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY:
                raise
            time.sleep(_FIRST_PAUSE_S)

    def _locked(self, limit: float) -> LockedError:
        return LockedError(
            f"the session at {self._path.parent}: another process has held its tables for "
            f"{limit:g} s; is one stopped?"
        )

    def _translated(self, error: sqlite3.Error) -> ChannelError:
        where = f"the session at {self._path.parent}"
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_CANTOPEN or not self._path.exists():
            return gone(self._path.parent)
        if code == sqlite3.SQLITE_FULL:
            return ChannelMemoryError(f"{where}: no space is left there")
        return ChannelCorruptError(f"{where}: its tables are damaged: {error}")


def gone(folder: Path) -> ChannelNotFoundError:
    """Return the error for a session that does not exist."""
    return ChannelNotFoundError(f"no session at {folder}: it was closed, or is on another host")


@contextlib.contextmanager
def connected(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a connection for a short use, and close it.

    Holds the lock of `beside`: SQLite must not be in use in any thread during a fork.
    """
    before = inside.depth
    with beside.lock:
        try:
            inside.depth = before + 1
            db = connect(path, create=create)
            try:
                yield db
            finally:
                db.close()
        finally:
            inside.depth = before


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open a connection to the tables; they must exist unless `create` is set."""
    mode = "rwc" if create else "rw"
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    # A power cut ends all processes anyway, and the kernel keeps what a killed process has written.
    db.execute("PRAGMA synchronous = OFF")
    # Keep the journal short: it takes memory of the same file system as the messages.
    db.execute("PRAGMA wal_autocheckpoint = 64")
    if create:
        db.execute("PRAGMA journal_mode = WAL")
    return db
