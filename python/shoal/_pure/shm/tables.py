"""`Tables`: the SQLite tables of a session, which all threads of a process use in turn.

A process that is killed leaves a journal behind; the next process that reads the tables undoes what
was not committed. Its locks end with it. All connections are closed before a fork: parent and child
open their own.
"""

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shoal.errors import (
    ChannelCorruptError,
    ChannelError,
    ChannelMemoryError,
    ChannelNotFoundError,
    ShoalError,
)
from shoal.fork import ChildStage, in_child

__all__ = ["LONGEST_S", "LockedError", "Tables", "access", "gone", "later", "use_once"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

LONGEST_S = 30.0
"""Maximum seconds to wait for the tables; others hold them only while they write a message."""
_FIRST_PAUSE_S = 0.0002
_LAST_PAUSE_S = 0.005
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class LockedError(ChannelError):
    """Another process did not release the tables in time."""


class _Access:
    """The access of this process to the tables of all sessions.

    Attributes:
        lock: Held while any tables are in use. Reentrant, because a finalizer may run in the thread
            that holds it; taken by `with` only, which is safe against signals.
        depth: Number of nested uses.
        deferred: Work for when no tables are in use.
        tables: All tables that may be open.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0
        self.deferred: deque[Callable[[], Any]] = deque()
        self.tables: weakref.WeakSet[Tables] = weakref.WeakSet()

    def use(self, work: Callable[[], T]) -> T:
        """Do work on tables now, while other threads, forks and deferred work wait."""
        with self.lock:
            before = self.depth
            try:
                self.depth = before + 1
                return work()
            finally:
                self.depth = before

    def catch_up(self) -> None:
        """Do the deferred work, unless tables are in use: then it is done after that."""
        with self.lock:
            if self.deferred and not self.depth:
                self.use(self._catch_up)

    def _catch_up(self) -> None:
        while self.deferred:
            try:
                self.deferred[0]()
            except LockedError:
                return  # the next use of tables tries again
            except (ShoalError, OSError):
                pass  # the session is gone, with all that this process held in it
            self.deferred.popleft()


access = _Access()


def later(work: Callable[[], Any]) -> None:
    """Do work on tables as soon as this process uses none; now, if possible.

    Can be called at any time, as finalizers are: in the middle of another use, too.
    """
    access.deferred.append(work)
    access.catch_up()


class Tables:
    """The tables of a session.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._changes = 0
        with access.lock:
            access.tables.add(self)

    def write(
        self, work: Work[T], patience: float = LONGEST_S, undone: Callable[[], None] | None = None
    ) -> T:
        """Run work as one transaction: all of it or nothing.

        After an exception the work may be committed nevertheless, if a signal came at the very end;
        `undone` is called if the work was rolled back.

        Raises:
            LockedError: Other processes held the tables for `patience` seconds.
            ChannelError: The tables are gone or damaged, or there is no room.
        """
        return self._retried(lambda db: self._committed(db, work, undone), patience)

    def read(self, work: Work[T], patience: float = LONGEST_S) -> T:
        """Run one query; raises the same errors as `write`."""
        return self._retried(work, patience)

    def version(self) -> tuple[int, int]:
        """Return a value that differs whenever any process may have changed the tables."""
        seen = self.read(lambda db: db.execute("PRAGMA data_version").fetchone())
        return int(seen[0]), self._changes

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        with access.lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = _connect(self._path)
        return self._connection

    def _committed(
        self, db: sqlite3.Connection, work: Work[T], undone: Callable[[], None] | None
    ) -> T:
        if db.in_transaction:  # a signal came before the rollback of an earlier call
            db.execute("ROLLBACK")
        before = db.total_changes
        try:
            db.execute("BEGIN IMMEDIATE")
            result = work(db)
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            elif not isinstance(error, sqlite3.Error):
                raise  # a signal came after the end of the transaction
            if undone is not None:
                undone()
            raise
        if db.total_changes != before:
            self._changes += 1
        return result

    def _retried(self, work: Work[T], patience: float) -> T:
        end = time.monotonic() + patience
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return access.use(lambda: work(self._connected()))
            except sqlite3.Error as error:
                if not _is_busy(error):
                    raise self._explained(error) from error
            finally:
                if access.deferred:
                    access.catch_up()
            if time.monotonic() >= end:
                raise LockedError(
                    f"the session at {self._path.parent}: another process has held its tables for "
                    f"{patience:g} s; is one stopped?"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_S)

    def _explained(self, error: sqlite3.Error) -> ChannelError:
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


def use_once(path: Path, work: Work[T], *, create: bool = False) -> T:
    """Open a connection, do work with it and close it."""

    def use() -> T:
        with contextlib.closing(_connect(path, create=create)) as db:
            return work(db)

    return access.use(use)


def _connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    db.row_factory = sqlite3.Row
    # A power cut ends all processes anyway, and the kernel keeps what a killed process has written.
    db.execute("PRAGMA synchronous = OFF")
    # Keep the journal short: it takes memory of the same file system as the messages.
    db.execute("PRAGMA wal_autocheckpoint = 64")
    if create:
        db.execute("PRAGMA journal_mode = WAL")
    return db


def _is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


def _before_fork() -> None:
    access.lock.acquire()
    for tables in list(access.tables):
        tables.close()


def _after_fork_in_child() -> None:
    access.lock = threading.RLock()
    access.depth = 0
    access.deferred.clear()


def _after_fork_in_parent() -> None:
    access.lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)
in_child(ChildStage.RENEW, _after_fork_in_child)
