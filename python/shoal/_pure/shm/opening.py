"""Opens and releases queues; forgets queues that are not in use.

A row for each process and queue counts the objects of the process that have the queue open. A queue
may be forgotten if no process has it open, it is empty and not closed, and none of its messages is
leased. If its key is used again, a new row is made.
"""

import sqlite3
from functools import partial
from typing import Any, Final

from shoal._pure.shm.member import Member
from shoal._pure.shm.place import Place
from shoal._pure.shm.schema import LEASED
from shoal.errors import ChannelExistsError

__all__ = ["let_go", "opened"]

_KEPT: Final = 64
"""Number of unused queues to keep, for keys that are used again."""
_AT_ONCE: Final = 16
"""Maximum number of queues to forget for a new one, so that its cost stays the same."""


def opened(
    member: Member, key: bytes, maxsize: int | None, max_bytes: int | None, name: str
) -> Place:
    """Open a queue, creating it if it does not exist; `let_go` releases it.

    Raises:
        ChannelExistsError: The queue exists with other bounds.
    """
    bounds = (maxsize, max_bytes)
    number, found, wanted = member.write("queue", partial(_open, member, key, bounds))
    if wanted != found:
        raise ChannelExistsError(
            f"{name} has maxsize={found[0]}, max_bytes={found[1]}, "
            f"not maxsize={wanted[0]}, max_bytes={wanted[1]}"
        )
    return Place(member, number, name, *found)


def let_go(member: Member, number: int, me: int) -> None:
    """Count one object less that has a queue open; can be called at any time, as finalizers are.

    Args:
        member: The process.
        number: The queue.
        me: The participant that opened it; this may be a forked child, or the process has left.
    """

    def less(db: sqlite3.Connection) -> None:
        if member.me == me:
            of_it = (number, me)
            db.execute(
                "UPDATE users SET objects = objects - 1 WHERE queue = ? AND participant = ?", of_it
            )
            db.execute(
                "DELETE FROM users WHERE queue = ? AND participant = ? AND objects <= 0", of_it
            )

    member.later(less)


def _open(
    member: Member,
    key: bytes,
    bounds: tuple[int | None, int | None],
    db: sqlite3.Connection,
) -> tuple[int, list[int], list[int]]:
    """Open a queue; return its number, its bounds, and the bounds that it should have."""
    row = _find(db, key)
    if row is None:
        _forget_some(member, db)
        db.execute(
            "INSERT INTO queues (key, maxsize, max_bytes, closed) "
            "SELECT ?, ?, ?, sealed FROM session",
            (key, bounds[0] or 0, bounds[1] or 0),
        )
        row = _find(db, key)
    number, *found = row
    wanted = [there if asked is None else asked for asked, there in zip(bounds, found, strict=True)]
    if wanted == found:
        db.execute(
            "INSERT INTO users (queue, participant, objects) VALUES (?, ?, 1) "
            "ON CONFLICT DO UPDATE SET objects = objects + 1",
            (number, member.me),
        )
    return number, found, wanted


def _find(db: sqlite3.Connection, key: bytes) -> Any:
    return db.execute("SELECT id, maxsize, max_bytes FROM queues WHERE key = ?", (key,)).fetchone()


def _forget_some(member: Member, db: sqlite3.Connection) -> None:
    unused = db.execute(
        "SELECT id FROM queues INDEXED BY unused "
        "WHERE users = 0 AND count = 0 AND closed = 0 ORDER BY id LIMIT ?",
        (_KEPT + _AT_ONCE,),
    ).fetchall()
    for of_it in unused[: max(0, len(unused) - _KEPT)]:
        leased = db.execute(
            f"SELECT 1 FROM messages WHERE queue = ? AND state = {LEASED} LIMIT 1",  # noqa: S608  (it is a constant)
            of_it,
        )
        if leased.fetchone() is None:
            db.execute("DELETE FROM queues WHERE id = ?", of_it)
            # An event loop may still wait to be rung for the old queue.
            for side in ("get", "put"):
                member.due(db, side, *of_it)
