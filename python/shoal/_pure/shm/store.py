"""One connection to the tables of a session, for all threads of a process.

A process that is killed leaves a journal behind, and the next one that looks undoes what it had
not committed; its locks are gone with it. No connection crosses a fork: it is closed before, and
both sides open their own.
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
"""How long others may hold the tables; they do for microseconds, unless one is stopped."""
_FIRST_PAUSE_S = 0.0002
_LAST_PAUSE_S = 0.005
_LATE_TRIES = 20
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class LockedError(ChannelError):
    """Another process did not let go of the tables in time."""


class _Inside(threading.local):
    """How deep this thread is in the tables of any session, with their locks."""

    depth = 0


inside = _Inside()


class _Beside:
    """Who has it is at tables without a `Store`; a fork waits for him as for those."""

    lock = threading.RLock()


beside = _Beside()


class Store:
    """The tables of a session.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Taken by `with` only, which a signal cannot tear apart, and held for no longer than a
        # statement takes. A finalizer may come in on the thread that has it, hence the R.
        self._lock = threading.RLock()
        self._busy = False
        self._connection: sqlite3.Connection | None = None
        self._late: deque[Work[None]] = deque()
        self._changes = 0

    def write(
        self, work: Work[T], limit: float = _LONGEST_S, undone: Callable[[], None] | None = None
    ) -> T:
        """Do work on the tables, all of it or nothing.

        After an exception it may have been done nevertheless, when a signal came at the very end;
        `undone` is called where it was not.

        Raises:
            LockedError: Others had them for `limit` seconds.
            ChannelError: They are gone, damaged, or there is no room.
        """
        return self._retried(lambda db: self._committed(db, work, undone), limit)

    def read(self, work: Work[T], limit: float = _LONGEST_S) -> T:
        """Ask the tables one thing; the errors are those of `write`."""
        return self._retried(work, limit)

    def version(self) -> tuple[int, int]:
        """Return what is another value whenever somebody may have changed something."""
        seen = self.read(lambda db: db.execute("PRAGMA data_version").fetchone())
        return int(seen[0]), self._changes

    def later(self, work: Work[None]) -> None:
        """Do work as soon as nobody of this process is at the tables; now if possible.

        For what runs at any time, within a call of this very thread too: it never waits for it.
        """
        self._late.append(work)
        self._catch_up()

    def before_fork(self) -> None:
        """Let nobody in, and close the connection."""
        self._lock.acquire()
        self._close()

    def after_fork(self, *, in_child: bool) -> None:
        """Let callers in again, to a connection of their own."""
        if in_child:
            self._lock = threading.RLock()
            self._late.clear()
        else:
            self._lock.release()

    def close(self) -> None:
        """Close the connection; a later call opens another."""
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
        if db.in_transaction:  # a signal came between a statement and what undoes it
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
                return  # whoever is at the tables of this process does it afterwards
            self._busy = True
            before = inside.depth
            try:
                inside.depth = before + 1
                for _ in range(_LATE_TRIES):
                    if not self._late:
                        break
                    self._try_late()
            except (sqlite3.Error, ChannelError):
                # The session is gone, and what was to be given back with it.
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
    """The error about a session that is not there."""
    return ChannelNotFoundError(f"no session at {folder}: it was closed, or is on another host")


@contextlib.contextmanager
def connected(path: Path, *, create: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection for a moment. The library must not be busy in any thread when a fork comes."""
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
    """Open the tables; they must exist unless they are to be created."""
    mode = "rwc" if create else "rw"
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    # A power cut ends all processes anyway, and a killed process takes nothing from the kernel.
    db.execute("PRAGMA synchronous = OFF")
    # The journal takes memory of the same file system as what it is about.
    db.execute("PRAGMA wal_autocheckpoint = 64")
    if create:
        db.execute("PRAGMA journal_mode = WAL")
    return db
