"""`QueueRow`: a queue in the tables, which this process has open: its room, and how to wait."""

import sqlite3
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from shoal._pure.shm.checks import Call, Refusal
from shoal._pure.shm.folders import free_bytes
from shoal._pure.shm.member import Member
from shoal._pure.shm.tables import LEASED, RESERVED
from shoal.errors import ChannelClosed, ChannelExistsError, ChannelMemoryError

__all__ = ["QueueRow", "open_queue"]

_FIRST_PAUSE_S: Final = 0.0002
_LAST_PAUSE_S: Final = 0.01
_CALL_EVERY_S: Final = 0.1
_KEPT: Final = 64
"""Number of unused queues to keep, for keys that are used again."""
_SPARE: Final = 512 * 1024
"""Bytes that puts leave free on a file system: gets need room too, for the journal."""
_STATS: Final = """
    SELECT count AS messages, bytes, puts, gets,
    (SELECT count(*) FROM armed WHERE queue = q.id AND side = 'put') AS producers_waiting,
    (SELECT count(*) FROM armed WHERE queue = q.id AND side = 'get') AS consumers_waiting,
    coalesce(? - (SELECT written FROM messages WHERE queue = q.id AND state = 0 ORDER BY id LIMIT 1),
    0.0) AS oldest_s FROM queues AS q WHERE id = ?
"""


class QueueRow(NamedTuple):
    """A queue.

    Attributes:
        member: This process in the session.
        number: The queue's number in the tables.
        user: The number of the row that says that this process has the queue open.
        name: The queue's name in messages.
        maxsize: Maximum number of messages, 0 for the session's backlog.
        max_bytes: Maximum number of bytes, 0 for no limit.
    """

    member: Member
    number: int
    user: int
    name: str
    maxsize: int
    max_bytes: int

    @property
    def bound(self) -> int:
        """Maximum number of messages, also without `maxsize`."""
        return self.maxsize or self.member.backlog

    def counters(self, db: sqlite3.Connection) -> Any:
        """Return the number of messages, their bytes, and whether it is closed and pressed."""
        query = "SELECT count, bytes, closed, pressed FROM queues WHERE id = ?"
        return db.execute(query, (self.number,)).fetchone()

    def wait(self, call: Call, attempt: Callable[[], Refusal | None], side: str) -> Refusal | None:
        """Repeat an attempt until it is not refused, or the time is over; return its last result.

        A longer wait is noted at a side of the queue.
        """
        pause, called = _FIRST_PAUSE_S, time.monotonic()
        while True:
            refusal = attempt() if call.around is None else call.around(attempt)
            if refusal is None or call.over:
                return refusal
            self.member.sweep_when_due()
            if call.waiting is not None and time.monotonic() >= called + _CALL_EVERY_S:
                call.waiting()
                called = time.monotonic()
            time.sleep(min(pause, call.remaining))
            if pause < _LAST_PAUSE_S <= 1.5 * pause and not call.over:
                self.member.arm(call.op, self.number, side)
            pause = min(1.5 * pause, _LAST_PAUSE_S)

    def check_fits(self, call: Call, size: int) -> None:
        """Refuse a message that can never be put.

        Raises:
            ChannelMemoryError: The message is too large.
        """
        session = self.member.max_bytes if self.member.policy != "spill" else 0
        for limit, whose in ((self.max_bytes, self.name), (session, "the session")):
            if limit and size > limit:
                raise ChannelMemoryError(
                    f"{call.op}: a message of {size} bytes never fits into {whose}: "
                    f"max_bytes={limit}"
                )

    def check_open(self, db: sqlite3.Connection, call: Call) -> None:
        """Refuse a put into a closed queue.

        Raises:
            ChannelClosed: The queue is closed.
        """
        if self.counters(db)["closed"]:
            raise ChannelClosed(f"{call.op}: {self.name} is closed")

    def room(self, db: sqlite3.Connection, call: Call, size: int | None = None) -> Refusal | None:
        """Return why a message has no room in the queue; None if it has room.

        The size is None if the message is not encoded yet; otherwise `db` is a transaction.

        Raises:
            ChannelClosed: The queue is closed.
        """
        self.check_open(db, call)
        count, held, *_ = self.counters(db)
        if count >= self.bound:
            return Refusal("messages" if self.maxsize else "backlog", count, self.bound)
        if size is not None and self.max_bytes and held + size > self.max_bytes:
            self.press(db)
            return Refusal("bytes", held, self.max_bytes, size)
        return None

    def memory(self, db: sqlite3.Connection, call: Call, size: int) -> Refusal | int:
        """Return the bytes of memory for a message: 0 if it goes to the spill folder.

        Raises:
            ChannelMemoryError: There is no memory, and the session's policy makes that an error.
        """
        session, folder = self.member, self.member.folder
        full = free_bytes(folder) < size + _SPARE
        used = db.execute("SELECT used FROM session").fetchone()["used"]
        if not full and used + size <= session.max_bytes:
            return size
        if session.policy == "spill":
            return 0
        if full:
            why = f"{folder} has no room for a message of {size} bytes"
            raise ChannelMemoryError(f"{call.op}: {why}")
        refusal = Refusal("memory", used, session.max_bytes, size)
        if session.policy == "error":
            raise refusal.of(ChannelMemoryError(f"{call.op}: {refusal.why()}{_holders(db)}"))
        if not call.over:  # a put that gives up must not end the wait of gets for more messages
            self.press(db)
        return refusal

    def press(self, db: sqlite3.Connection) -> None:
        """Note that a producer waits, so that no get waits for more messages than can come."""
        db.execute("UPDATE queues SET pressed = 1 WHERE id = ? AND pressed = 0", (self.number,))

    def displace(self, db: sqlite3.Connection, *, every: bool) -> list[str | None]:
        """Drop the first message, or every one, if the queue is full; return their files."""
        count, _, closed, _ = self.counters(db)
        if closed or count < self.bound:
            return []
        dropped = db.execute(
            "DELETE FROM messages WHERE id IN (SELECT id FROM messages "
            "WHERE queue = ? AND state = 0 ORDER BY id LIMIT ?) RETURNING file",
            (self.number, count if every else 1),
        ).fetchall()
        db.execute("UPDATE session SET dropped = dropped + ?", (len(dropped),))
        return [row["file"] for row in dropped]

    def stats(self, db: sqlite3.Connection) -> dict[str, float]:
        """Return how the queue is used."""
        return dict(db.execute(_STATS, (time.monotonic(), self.number)).fetchone())

    def let_go(self) -> None:
        """Note that this process does not use the queue any more; finalizers can call this."""
        member, user = self.member, self.user
        # Not in a forked child, for which the row of its parent is not its own.
        query = "DELETE FROM users WHERE id = ? AND participant = ?"
        member.later(lambda db: db.execute(query, (user, member.me)))


def open_queue(
    member: Member, key: bytes, maxsize: int | None, max_bytes: int | None, name: str
) -> QueueRow:
    """Open a queue, creating it if it does not exist.

    Raises:
        ChannelExistsError: The queue exists with other bounds.
    """

    def opened(db: sqlite3.Connection) -> QueueRow:
        find = "SELECT id, maxsize, max_bytes FROM queues WHERE key = ?"
        row = db.execute(find, (key,)).fetchone()
        if row is None:
            _forget_unused(db)
            db.execute(
                "INSERT INTO queues (key, maxsize, max_bytes, closed) "
                "SELECT ?, ?, ?, sealed FROM session",
                (key, maxsize or 0, max_bytes or 0),
            )
            row = db.execute(find, (key,)).fetchone()
        number, *found = row
        wanted = [
            found[0] if maxsize is None else maxsize,
            found[1] if max_bytes is None else max_bytes,
        ]
        if wanted != found:
            raise ChannelExistsError(
                f"{name} has maxsize={found[0]}, max_bytes={found[1]}, "
                f"not maxsize={wanted[0]}, max_bytes={wanted[1]}"
            )
        used = "INSERT INTO users (queue, participant) VALUES (?, ?) RETURNING id"
        user = db.execute(used, (number, member.me)).fetchone()["id"]
        return QueueRow(member, number, user, name, *found)

    return member.write("queue", opened)


def _forget_unused(db: sqlite3.Connection) -> None:
    """Forget the oldest queues that are not in use: not open, empty, not closed, without leases."""
    db.execute(
        "DELETE FROM queues WHERE id IN (SELECT id FROM queues AS q WHERE count = 0 AND closed = 0 "  # noqa: S608  (they are constants)
        "AND NOT EXISTS (SELECT 1 FROM users WHERE queue = q.id) AND NOT EXISTS "
        f"(SELECT 1 FROM messages WHERE queue = q.id AND state = {LEASED}) "
        f"ORDER BY id DESC LIMIT -1 OFFSET {_KEPT - 1})"
    )


def _holders(db: sqlite3.Connection) -> str:
    """Return the end of an error's text: the three processes that sent most bytes in memory.

    Bytes of messages that were taken and are still in use count too.
    """
    rows = db.execute(
        "SELECT sender, sum(memory) AS held FROM messages WHERE state <> ? "
        "GROUP BY sender HAVING held > 0 ORDER BY held DESC, sender LIMIT 3",
        (RESERVED,),
    ).fetchall()
    each = ", ".join(f"process {sender} holds {held} bytes" for sender, held in rows)
    return each and f"; {each}"
