"""The participants of a session: which of them have died, and the release of what they held.

A participant is dead only if its process has ended and its file lock is free, which the kernel
releases then. The process alone cannot be checked from another pid namespace, and the lock is also
released when its process closes any descriptor of the file.
"""

import fcntl
import sqlite3
from typing import Any

from shoal._pure.shm.schema import LEASED, LOANED, QUEUED
from shoal.process import ProcessId, is_running, own_process

__all__ = ["is_dead", "participants", "release", "requeue", "sweep", "take_lock"]


def participants(db: sqlite3.Connection) -> list[Any]:
    """Return the participants: number, host, pid, start time."""
    return db.execute("SELECT id, host, pid, started FROM participants").fetchall()


def take_lock(descriptor: int, number: int) -> bool:
    """Take the lock of a participant; return whether no other process has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except OSError:
        return False
    return True


def is_dead(row: Any, locks: int, me: int = 0) -> bool:
    """Whether a participant has died; never for `me`, whose lock looks free to its own process."""
    number, *found = row
    process = ProcessId(*found)
    if number == me or (process.host == own_process().host and is_running(process)):
        return False
    if not take_lock(locks, number):
        return False
    fcntl.lockf(locks, fcntl.LOCK_UN, 1, number)
    return True


def sweep(db: sqlite3.Connection, me: int, locks: int) -> dict[str, int]:
    """Release all that dead participants held; return what `ShmSession.sweep` returns."""
    dead = [row["id"] for row in participants(db) if is_dead(row, locks, me)]
    states = [state for number in dead for state in release(db, number)]
    lost = states.count(LOANED)
    if dead:
        db.execute(
            "UPDATE session SET lost = lost + ?, recovered = recovered + ?", (lost, len(states))
        )
    return {
        "dead": len(dead),
        "recovered": len(states),
        "redelivered": states.count(LEASED),
        "lost": lost,
    }


def release(db: sqlite3.Connection, number: int) -> list[int]:
    """Remove a participant and release all that it held; return the states of these messages."""
    rows = db.execute(
        f"SELECT id, state FROM messages WHERE state <> {QUEUED} AND owner = ? ORDER BY id",  # noqa: S608  (it is a constant)
        (number,),
    ).fetchall()
    for message, state in rows:
        if state == LEASED:
            requeue(db, message)
        else:
            db.execute("DELETE FROM messages WHERE id = ?", (message,))
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
