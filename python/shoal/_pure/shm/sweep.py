"""Cleans up after participants of a session that died, and after one that leaves."""

import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple

from shoal._pure.shm.alive import Process, locked
from shoal._pure.shm.schema import LEASED, LOANED, QUEUED

__all__ = ["Swept", "dead", "files", "is_dead", "leave", "participants"]

Due = Callable[..., None]


class Swept(NamedTuple):
    """The result of a sweep: the number of dead participants, and of messages that they held.

    `recovered` counts all these messages and reservations, `redelivered` the leased ones, and
    `lost` those taken without a lease.
    """

    dead: int = 0
    recovered: int = 0
    redelivered: int = 0
    lost: int = 0


def participants(db: sqlite3.Connection) -> list[Any]:
    """Return the participants: number, pid, start time, pid namespace."""
    return db.execute("SELECT id, pid, started, space FROM participants").fetchall()


def files(db: sqlite3.Connection) -> list[str]:
    """Return the files of all messages."""
    rows = db.execute("SELECT file FROM messages WHERE file IS NOT NULL").fetchall()
    return [row[0] for row in rows]


def is_dead(row: Any, me: int, locks: int) -> bool:
    """Whether a participant has died: both its lock and its process are gone."""
    number, *process = row
    # A process cannot check its own lock, which looks free to its holder.
    return number != me and Process(*process).gone() and not locked(locks, 1 + number)


def dead(db: sqlite3.Connection, me: int, locks: int, due: Due) -> tuple[Swept, list[str]]:
    """Give back all that dead participants held.

    Returns:
        The counts, and the files that are not needed any more.
    """
    found = [row[0] for row in participants(db) if is_dead(row, me, locks)]
    swept, files = Swept(len(found)), []
    for number in found:
        redelivered, loaned, reserved, of_it = _give_back(db, number, due)
        files += of_it
        swept = Swept(
            swept.dead,
            swept.recovered + redelivered + loaned + reserved,
            swept.redelivered + redelivered,
            swept.lost + loaned,
        )
    db.execute(
        "UPDATE session SET lost = lost + ?, recovered = recovered + ?",
        (swept.lost, swept.recovered),
    )
    return swept, files


def leave(
    db: sqlite3.Connection, me: int, locks: int, due: Due, *, keeps: bool
) -> tuple[list[str], bool]:
    """Give back all that this process holds.

    Returns:
        The files that are not needed any more, and whether to remove the session: no other
        participant is left, and it is not to be kept.
    """
    _, files = dead(db, me, locks, due)
    files += _give_back(db, me, due)[3]
    goes = not keeps and db.execute("SELECT count(*) FROM participants").fetchone()[0] == 0
    if goes:
        db.execute("UPDATE session SET closed = 1")
    return files, goes


def _give_back(db: sqlite3.Connection, number: int, due: Due) -> tuple[int, int, int, list[str]]:
    rows = db.execute(
        "SELECT id, state, queue, file FROM messages WHERE state <> ? AND owner = ? ORDER BY id",
        (QUEUED, number),
    ).fetchall()
    files, counts = [], {LEASED: 0, LOANED: 0}
    for message, state, queue, file in rows:
        counts[state] = counts.get(state, 0) + 1
        if state == LEASED:
            requeue(db, message)
            due(db, "get", queue)
            continue
        db.execute("DELETE FROM messages WHERE id = ?", (message,))
        if file is not None:
            files.append(file)
    db.execute("DELETE FROM participants WHERE id = ?", (number,))
    db.execute("DELETE FROM armed WHERE participant = ?", (number,))
    db.execute("DELETE FROM users WHERE participant = ?", (number,))
    if rows:
        due(db, "put")
    leased, loaned = counts[LEASED], counts[LOANED]
    return leased, loaned, len(rows) - leased - loaned, files


def requeue(db: sqlite3.Connection, message: int) -> None:
    """Return a message to the end of its queue, as redelivered."""
    db.execute(
        "UPDATE messages SET state = ?, owner = NULL, redelivered = 1, position = ? WHERE id = ?",
        (QUEUED, next_position(db), message),
    )


def next_position(db: sqlite3.Connection) -> int:
    """Return a position behind all messages of the session."""
    row = db.execute("UPDATE session SET position = position + 1 RETURNING position").fetchone()
    return int(row[0])
