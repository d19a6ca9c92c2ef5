"""The SQL tables of a session, and the one lock under which a process uses any.

A queue holds its messages in the order of their ids, which are never reused. Triggers keep the
counters up to date. A process that waits at a side of a queue has a row in `armed`, which becomes
due when it should try again, or its queue is forgotten. `pressed` says that a producer waits, so that
no get waits for more messages than can come.

A process that is killed leaves a journal behind; the next process that reads the tables undoes what
was not committed. Its locks end with it.
"""

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from shoal.errors import (
    ChannelCorruptError,
    ChannelError,
    ChannelMemoryError,
    ChannelNotFoundError,
    ShoalError,
)

__all__ = [
    "FORMAT", "LEASED", "LOANED", "PATIENCE_S", "QUEUED", "RESERVED", "SCHEMA",
    "SHORT_S", "HeldError", "Tables", "access", "connect", "gone", "use",
]  # fmt: skip

T = TypeVar("T")

FORMAT: Final = 9
"""The version of these tables."""

QUEUED: Final = 0
"""State of a message that waits in its queue."""
LEASED: Final = 1
"""State of a message that a consumer leased; it returns to the queue unless acknowledged."""
LOANED: Final = 2
"""State of a message that a consumer took, and whose memory it still uses."""
RESERVED: Final = 3
"""State of memory that a producer fills, which belongs to no queue yet."""

SCHEMA: Final = """
CREATE TABLE session (
    format INTEGER, max_bytes INTEGER, backlog INTEGER, policy TEXT, spill TEXT, overfill INTEGER,
    closed INTEGER DEFAULT 0, sealed INTEGER DEFAULT 0, used INTEGER DEFAULT 0,
    lost INTEGER DEFAULT 0, recovered INTEGER DEFAULT 0, dropped INTEGER DEFAULT 0
);
CREATE TABLE participants (id INTEGER PRIMARY KEY);
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, maxsize INTEGER, max_bytes INTEGER,
    closed INTEGER DEFAULT 0, count INTEGER DEFAULT 0, bytes INTEGER DEFAULT 0,
    pressed INTEGER DEFAULT 0, puts INTEGER DEFAULT 0, gets INTEGER DEFAULT 0
);
CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER, participant INTEGER);
CREATE INDEX used ON users (queue);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue INTEGER, state INTEGER, owner INTEGER,
    sender INTEGER, kind INTEGER, weight INTEGER, size INTEGER, memory INTEGER, redelivered INTEGER,
    written REAL, data BLOB, file TEXT
);
CREATE INDEX waiting ON messages (queue, id) WHERE state = 0;
CREATE INDEX owned ON messages (owner) WHERE state <> 0;
CREATE INDEX leased ON messages (queue) WHERE state = 1;
CREATE TABLE armed (
    participant INTEGER, queue INTEGER, side TEXT, due INTEGER DEFAULT 0,
    PRIMARY KEY (queue, side, participant)
) WITHOUT ROWID;
CREATE TRIGGER came AFTER INSERT ON messages BEGIN
    UPDATE session SET used = used + new.memory;
    UPDATE queues SET count = count + 1, bytes = bytes + new.size, puts = puts + 1
        WHERE id = new.queue AND new.state = 0;
    UPDATE armed SET due = 1 WHERE queue = new.queue AND side = 'get' AND new.state = 0;
END;
CREATE TRIGGER went AFTER DELETE ON messages BEGIN
    UPDATE session SET used = used - old.memory;
    UPDATE queues SET count = count - 1, bytes = bytes - old.size, gets = gets + 1, pressed = 0
        WHERE id = old.queue AND old.state = 0;
    UPDATE armed SET due = 1 WHERE side = 'put';
END;
CREATE TRIGGER taken AFTER UPDATE OF state ON messages BEGIN
    UPDATE queues SET count = count - 1, bytes = bytes - old.size, gets = gets + 1, pressed = 0
        WHERE id = old.queue AND old.state = 0;
    UPDATE armed SET due = 1 WHERE side = 'put';
END;
CREATE TRIGGER changed AFTER UPDATE OF pressed, closed ON queues BEGIN
    UPDATE armed SET due = 1 WHERE queue = new.id
        AND (side = 'get' AND new.pressed > old.pressed OR new.closed > old.closed);
END;
CREATE TRIGGER forgotten AFTER DELETE ON queues BEGIN
    UPDATE armed SET due = 1 WHERE queue = old.id;
END;
CREATE TRIGGER left AFTER DELETE ON participants BEGIN
    DELETE FROM armed WHERE participant = old.id;
    DELETE FROM users WHERE participant = old.id;
END;
"""


PATIENCE_S: Final = 1.0
"""Seconds that work which cannot wait for long waits for tables that another process holds."""
SHORT_S: Final = 0.1
"""The same for work that is tried again."""
_PAUSE_S: Final = 0.0005
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_WRITE_LOCK: Final = ["120", "120"]
"""The bytes of the file beside the tables that SQLite locks while a process changes them."""


class HeldError(ChannelError):
    """Another process held the tables for too long.

    Attributes:
        pid: The process; 0 if it is not known.
    """

    def __init__(self, path: Path) -> None:
        self.pid = _holder(path)
        who, which = (f"process {self.pid}", "it") if self.pid else ("another process", "one")
        super().__init__(
            f"the session at {path.parent}: {who} holds its tables; is {which} stopped?"
        )


class _Access:
    """The access of this process to the tables of all sessions.

    Attributes:
        lock: Held while any tables are in use. Reentrant, because a finalizer may run in the thread
            that holds it; taken by `with` only, which is safe against signals.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start anew, as in a forked child: no tables are in use."""
        self.lock = threading.RLock()
        self._depth = 0
        self._deferred: deque[Callable[[float], Any]] = deque()
        self._patience = PATIENCE_S

    def use(self, work: Callable[[], T]) -> T:
        """Do work on tables while other threads and forks wait; afterwards do what was deferred."""
        try:
            with self.lock:
                before = self._depth
                try:
                    self._depth = before + 1
                    return work()
                finally:
                    self._depth = before
        finally:
            if self._deferred:
                self.catch_up()

    def later(self, work: Callable[[float], Any]) -> None:
        """Do work on tables as soon as this process uses none; now, if possible.

        Can be called at any time, as finalizers are: in the middle of another use, too. The work
        gets the seconds that it may wait for the tables. If another process holds them longer, it
        is done after a later use.
        """
        self._deferred.append(work)
        self.catch_up()

    def catch_up(self) -> None:
        """Do what was deferred, unless tables are in use: then it is done after that."""
        with self.lock:
            if self._depth:
                return
            try:
                self._depth = 1
                while self._deferred:
                    try:
                        self._deferred[0](self._patience)
                    except HeldError:
                        self._patience = 0.0  # other threads wait for this one
                        self._deferred.rotate(-1)  # the next one may be of another session
                        return
                    except (ShoalError, OSError):
                        pass  # the session is gone, with all that this process held
                    self._patience = PATIENCE_S
                    self._deferred.popleft()
            finally:
                self._depth = 0


access: Final = _Access()


class Tables(sqlite3.Connection):
    """A connection to the tables.

    Attributes:
        cut: Whether it was closed within a transaction, which was rolled back.
    """

    cut = False


def connect(path: Path, *, create: bool = False) -> Tables:
    """Open the tables in a file."""
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        factory=Tables,
    )
    db.row_factory = sqlite3.Row
    # A power cut ends all processes anyway, and the kernel keeps what a killed process has written.
    db.execute("PRAGMA synchronous = OFF")
    # Keep the journal short: it takes memory of the same file system as the messages.
    db.execute("PRAGMA wal_autocheckpoint = 64")
    if create:
        db.execute("PRAGMA journal_mode = WAL")
    return db


def use(path: Path, work: Callable[[], T], patience: float) -> T:
    """Do work with the tables in a file, as soon as no other process holds them.

    Raises:
        HeldError: Another process held them for `patience` seconds.
        ChannelError: The tables are gone or damaged, or there is no room.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return access.use(work)
        except BlockingIOError:
            pass  # another process changes the tables
        except sqlite3.Error as error:
            if _code(error) not in _BUSY:
                raise _explained(error, path) from error
        if time.monotonic() >= end:
            raise HeldError(path)
        time.sleep(_PAUSE_S)


def _holder(path: Path) -> int:
    """Return the pid of the process that is changing the tables; 0 if it is not known."""
    # Not asked of the lock itself: closing the file would release the locks of this process.
    try:
        facts = Path(f"{path}-shm").stat()
        device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
        file = f"{device}:{facts.st_ino}"
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            _, kind, _, mode, pid, *where = line.split()
            if (kind, mode, where) == ("POSIX", "WRITE", [file, *_WRITE_LOCK]):
                return max(0, int(pid))
    except (OSError, ValueError):
        pass
    return 0


def _explained(error: sqlite3.Error, path: Path) -> ChannelError:
    where = f"the session at {path.parent}"
    if _code(error) == sqlite3.SQLITE_CANTOPEN or not path.exists():
        return gone(path.parent)
    if _code(error) == sqlite3.SQLITE_FULL:
        return ChannelMemoryError(f"{where}: no space is left there")
    return ChannelCorruptError(f"{where}: its tables are damaged: {error}")


def gone(folder: Path) -> ChannelNotFoundError:
    """Return the error for a session that does not exist."""
    return ChannelNotFoundError(f"no session at {folder}: it was closed, or is on another host")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
