"""Reads a queue without taking messages: `peeked` copies them, `used` returns its counters."""

import sqlite3
import time
from pathlib import Path
from typing import Any

from shoal._pure.shm.member import Member
from shoal._pure.shm.place import Place
from shoal._pure.shm.schema import QUEUED
from shoal._pure.shm.taking import SIGNALS, Row, not_rebuilt, rebuilt, waiting_rows

__all__ = ["peeked", "used"]


def peeked(
    member: Member, place: Place, most: int | None, *, parcels: bool
) -> list[tuple[int, Any]]:
    """Return the weights and copies of the first messages.

    Raises:
        ChannelDecodeError: A message cannot be rebuilt.
    """
    limit = -1 if most is None else min(most, 2**63 - 1)
    rows = member.read("peek", lambda db: waiting_rows(db, place, limit))
    found = []
    for row in rows:
        memory = None
        if row.file is not None:
            memory = _copied(member, row)
            if memory is None:
                continue
        try:
            found.append((row.weight, rebuilt(row, memory, parcels=parcels)))
        except SIGNALS:
            raise
        except BaseException as error:
            raise not_rebuilt(place, row, error) from error
    return found


def _copied(member: Member, row: Row) -> memoryview | None:
    """Return a copy of the file of a message; None if another process took the message."""
    try:
        memory = bytearray(Path(row.file or "").read_bytes())
    except FileNotFoundError:
        return None
    # A consumer that takes the message may write to the file: the copy is valid only if the message
    # is still in the queue now.
    found = member.read(
        "peek",
        lambda db: db.execute("SELECT state FROM messages WHERE id = ?", (row.number,)).fetchone(),
    )
    return memoryview(memory) if found == (QUEUED,) else None


def used(member: Member, place: Place) -> dict[str, float]:
    """Return how the queue is used."""
    number = place.number

    def ask(db: sqlite3.Connection) -> dict[str, float]:
        count, held, puts, gets = db.execute(
            "SELECT count, bytes, puts, gets FROM queues WHERE id = ?", (number,)
        ).fetchone()
        waiting = dict(
            db.execute(
                "SELECT side, count(*) FROM armed WHERE queue = ? GROUP BY side", (number,)
            ).fetchall()
        )
        first = db.execute(
            "SELECT written FROM messages WHERE queue = ? AND state = 0 ORDER BY position LIMIT 1",
            (number,),
        ).fetchone()
        return {
            "messages": count,
            "bytes": held,
            "puts": puts,
            "gets": gets,
            "producers_waiting": waiting.get("put", 0),
            "consumers_waiting": waiting.get("get", 0),
            "oldest_s": 0.0 if first is None else time.monotonic() - first[0],
        }

    return member.read("stats", ask)
