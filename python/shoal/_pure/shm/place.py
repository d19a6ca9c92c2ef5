"""`Place`: a queue as puts and gets use it, with its bounds and the reasons for missing room."""

import sqlite3
from dataclasses import dataclass
from typing import Final

from shoal._pure.shm.checks import Limit
from shoal._pure.shm.member import Member, NotYet
from shoal._pure.shm.places import free_bytes
from shoal._pure.shm.schema import RESERVED
from shoal.errors import ChannelClosed, ChannelFull, ChannelMemoryError, ShoalTimeoutError

__all__ = ["Place"]

_SPARE: Final = 512 * 1024
"""Bytes that puts leave free on a file system: gets need room too, for the journal."""


@dataclass(frozen=True, slots=True)
class Place:
    """A queue.

    Attributes:
        member: This process in the session.
        number: The queue's number in the tables.
        name: The queue's name in messages.
        maxsize: Maximum number of messages, 0 for the session's backlog.
        max_bytes: Maximum number of bytes, 0 for no limit.
    """

    member: Member
    number: int
    name: str
    maxsize: int
    max_bytes: int

    @property
    def bound(self) -> int:
        """Maximum number of messages, also without `maxsize`."""
        return self.maxsize or self.member.facts.backlog

    def check_fits(self, op: str, size: int) -> None:
        """Refuse a message that can never be put.

        Raises:
            ChannelMemoryError: The message is too large.
        """
        facts = self.member.facts
        for limit, whose in (
            (self.max_bytes, self.name),
            (facts.max_bytes if facts.policy != "spill" else 0, "the session"),
        ):
            if limit and size > limit:
                raise ChannelMemoryError(
                    f"{op}: a message of {size} bytes never fits into {whose}: max_bytes={limit}"
                )

    def room(self, db: sqlite3.Connection, op: str, size: int) -> NotYet | None:
        """Return why a message has no room in the queue; None if it has room.

        Raises:
            ChannelClosed: The queue is closed.
        """
        closed, count, held = db.execute(
            "SELECT closed, count, bytes FROM queues WHERE id = ?", (self.number,)
        ).fetchone()
        if closed:
            raise ChannelClosed(f"{op}: {self.name} is closed")
        if count >= self.bound:
            cause = f"maxsize={self.maxsize}" if self.maxsize else "the session's backlog"
            return NotYet(f"it holds {count} messages, as many as {cause} allows")
        if self.max_bytes and held + size > self.max_bytes:
            self.press(db)
            return NotYet(
                f"it holds {held} bytes of max_bytes={self.max_bytes}, and this message has {size}"
            )
        return None

    def memory(self, db: sqlite3.Connection, op: str, size: int, limit: Limit) -> NotYet | None:
        """Return why there is no memory for a message; None if there is memory.

        Raises:
            ChannelMemoryError: There is none, and the session's policy makes that an error.
        """
        full = self._disk_full(db, size)
        if full is not None:
            if self.member.facts.policy != "spill":
                raise ChannelMemoryError(f"{op}: {full}")
            return NotYet(full)
        most = self.member.facts.max_bytes
        used = db.execute("SELECT used FROM session").fetchone()[0]
        if used + size <= most:
            return None
        why = (
            f"the session's memory is used up ({used} of {most} bytes), and this message has {size}"
        )
        if self.member.facts.policy == "error":
            raise ChannelMemoryError(f"{op}: {why}{_holders(db)}")
        if not limit.over:  # a put that gives up must not end the wait of gets for more messages
            self.press(db)
        return NotYet(why)

    def _disk_full(self, db: sqlite3.Connection, size: int) -> str | None:
        folder = self.member.folder
        free = free_bytes(folder)
        if free < size + _SPARE:
            unused, page = (
                db.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("freelist_count", "page_size")
            )
            if free + unused * page < size + _SPARE:
                return f"{folder} has no room for a message of {size} bytes"
        return None

    def press(self, db: sqlite3.Connection) -> None:
        """Note that a producer waits, so that no get waits for more messages than can come."""
        pressed = db.execute(
            "UPDATE queues SET pressed = 1 WHERE id = ? AND pressed = 0", (self.number,)
        )
        if pressed.rowcount:
            self.member.due(db, "get", self.number)

    def no_room(self, op: str, limit: Limit, why: str, *, waits: bool) -> Exception:
        """Return the error of a put that found no room in time."""
        if not waits:
            return ChannelFull(f"{op}: no room in {self.name}: {why}")
        return ShoalTimeoutError(f"{op}: no room in {self.name} within {limit.seconds:g} s: {why}")


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
