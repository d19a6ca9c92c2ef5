"""Opening queues and letting go of them; those that nobody uses make room for others.

A row for each process and queue says how many objects of the process have it open. A queue without
any, that is empty and not closed, and of which nobody has a lease, may be forgotten: another row is
made where its key comes back.
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
"""So many unused queues are kept, for keys that come again."""
_AT_ONCE: Final = 16
"""No more are forgotten for a new one, so that it costs the same however many there are."""


def opened(
    member: Member, key: bytes, maxsize: int | None, max_bytes: int | None, name: str
) -> Place:
    """Open a queue, which is made where it does not exist; to be let go of with `let_go`.

    Raises:
        ChannelExistsError: It exists with other bounds.
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
    """Count one object less that has a queue open; it comes at any time, as finalizers do.

    Args:
        member: The process.
        number: The queue.
        me: Who opened it: the process may be another one by now, or have left.
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
    """The number of a queue, its bounds, and those that it should have."""
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
            # An event loop may think that it is rung for the old queue still.
            for side in ("get", "put"):
                member.due(db, side, *of_it)
