"""`Doorbell`: a named pipe for each process, into which others write when an event has happened.

The processes that wait for a side of a queue are noted in the tables, also those without a pipe.
"""

import contextlib
import os
import sqlite3
from pathlib import Path

__all__ = ["Doorbell"]


class Doorbell:
    """The doorbells of a session, as one process uses them.

    Args:
        folder: The session's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = -1
        self._due: set[int] = set()

    def descriptor(self, me: int) -> int:
        """Return the descriptor of this process's bell, which is made first if necessary."""
        if self._own < 0:
            path = self._path(me)
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            # Open for writing too: a pipe whose last writer has gone is always readable.
            self._own = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return self._own

    def clear(self) -> None:
        """Make this process's bell unreadable until it is rung again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._own, 4096):
                pass

    def note_due(self, db: sqlite3.Connection) -> None:
        """Remember to ring the processes that the changes of a transaction concern."""
        found = db.execute("DELETE FROM armed WHERE due = 1 RETURNING participant").fetchall()
        self._due.update(row["participant"] for row in found)

    def ring(self) -> None:
        """Ring the bells that are due; call this after the transaction."""
        while self._due:
            # Fails if the process has gone or has no bell, or if its bell was rung very often.
            with contextlib.suppress(OSError, KeyError):  # another thread may ring it
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                bell = os.open(self._path(self._due.pop()), flags)
                try:
                    os.write(bell, b"\0")
                finally:
                    os.close(bell)

    def close(self, me: int = 0) -> None:
        """Close this process's bell, and remove the pipe of participant `me`."""
        self._due.clear()
        own, self._own = self._own, -1
        if own >= 0:
            os.close(own)
        if me:
            self._path(me).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"b{number}"
