"""`displace`: drops messages of a full queue to make room."""

import sqlite3
from pathlib import Path

from shoal._pure.shm.place import Place

__all__ = ["displace"]


def displace(place: Place, *, every: bool) -> int:
    """Drop the oldest message of a queue, or every one, if the queue is full; return how many."""
    member, number = place.member, place.number

    def drop(db: sqlite3.Connection) -> list[str | None]:
        count, closed = db.execute(
            "SELECT count, closed FROM queues WHERE id = ?", (number,)
        ).fetchone()
        if closed or count < place.bound:
            return []
        dropped = db.execute(
            "DELETE FROM messages WHERE id IN (SELECT id FROM messages "
            "WHERE queue = ? AND state = 0 ORDER BY position LIMIT ?) RETURNING file",
            (number, count if every else 1),
        ).fetchall()
        db.execute("UPDATE queues SET pressed = 0 WHERE id = ? AND pressed = 1", (number,))
        db.execute("UPDATE session SET dropped = dropped + ?", (len(dropped),))
        member.due(db, "put")
        return [row[0] for row in dropped]

    files = member.write("displace", drop)
    for file in files:
        if file is not None:
            Path(file).unlink(missing_ok=True)
    return len(files)
