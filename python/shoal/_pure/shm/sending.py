"""Puts messages into a queue, and reserves their memory.

A small message is a row, inserted when there is room. A large message first reserves memory, is
then written there, and enters the queue when there is room for it.
"""

import os
import sqlite3
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal._pure.shm.checks import Limit
from shoal._pure.shm.encoding import Draft, lay_out, pieces_of
from shoal._pure.shm.member import Member, NotYet
from shoal._pure.shm.memory import write_file
from shoal._pure.shm.place import Place
from shoal._pure.shm.schema import QUEUED, RESERVED
from shoal._pure.shm.sweep import next_position
from shoal.errors import ShoalError, ShoalValueError

__all__ = ["Item", "Sending", "Ticket", "already_put", "give_up", "take_memory"]


@dataclass(frozen=True, slots=True)
class Ticket:
    """Memory that is reserved for a message.

    Attributes:
        number: The id of its row.
        path: Its file.
    """

    number: int
    path: Path


@dataclass(frozen=True, slots=True)
class Item:
    """A message to put.

    Attributes:
        draft: The encoded object.
        weight: The weight of the message.
        ticket: The memory of the message, if it is reserved already.
        sender: The pid of the process that encoded it; another process for a parcel passed on.
    """

    draft: Draft
    weight: int
    ticket: Ticket | None = None
    sender: int = field(default_factory=os.getpid)


class Sending:
    """One put of several messages.

    Args:
        place: The queue.
        op: The operation, for messages.
        items: The messages.
        limit: The time limit.
        waits: Whether the operation is one that waits; decides the error for missing room.

    Attributes:
        done: Number of messages that are in the queue.
    """

    def __init__(
        self, place: Place, op: str, items: list[Item], limit: Limit, *, waits: bool = True
    ) -> None:
        self._place = place
        self._op = op
        self._items = items
        self._limit = limit
        self._waits = waits
        self.done = 0

    def run(self) -> None:
        """Put the messages.

        Raises:
            ShoalError: Not all could be put; for `put_many` its attribute `done` says how many
                were.
        """
        try:
            while self.done < len(self._items):
                item = self._items[self.done]
                self._place.check_fits(self._op, item.draft.size)
                if item.draft.large and item.ticket is None:
                    self._put_large(item)
                else:
                    self._publish(item.ticket)
        except ShoalError as error:
            if self._op == "put_many":
                error.__dict__["done"] = self.done
            raise

    def _put_large(self, item: Item) -> None:
        ticket = take_memory(self._place, self._op, item.draft.size, self._limit, waits=self._waits)
        try:
            write_file(ticket.path, item.draft.extent, item.draft.large)
            self._publish(ticket)
        except BaseException:
            give_up(self._place.member, ticket)
            raise

    def _publish(self, ticket: Ticket | None) -> None:
        """Put the next messages, as many as have room; wait until there is room for one."""
        place, op = self._place, self._op

        def attempt(seconds: float) -> int | NotYet:
            return place.member.write(op, lambda db: self._insert(db, ticket), seconds)

        done = place.member.wait(op, self._limit, attempt, at=(place.number, "put"))
        if isinstance(done, NotYet):
            raise place.no_room(op, self._limit, done.why, waits=self._waits)
        self.done += done

    def _insert(self, db: sqlite3.Connection, ticket: Ticket | None) -> int | NotYet:
        done = 0
        refused: NotYet | None = None
        for item in self._items[self.done :]:
            size = item.draft.size
            refused = self._place.room(db, self._op, size)
            if refused is not None:
                break
            if ticket is not None:
                self._adopt(db, item, ticket)
                done = 1
                break
            if item.draft.large or item.ticket is not None or self._too_large(size):
                break  # `run` handles this message separately
            refused = self._place.memory(db, self._op, size, self._limit)
            if refused is not None:
                if self._place.member.facts.policy == "spill" and not done:
                    self._to_file(self.done)
                    return 0
                break
            self._add(db, item)
            done += 1
        if done:
            self._place.member.due(db, "get", self._place.number)
        return done if refused is None or done else refused

    def _too_large(self, size: int) -> bool:
        place = self._place
        return bool(place.max_bytes and size > place.max_bytes) or (
            place.member.facts.policy != "spill" and size > place.member.facts.max_bytes
        )

    def _to_file(self, index: int) -> None:
        """Change a small message to use a file, because there is no memory for it."""
        item = self._items[index]
        self._items[index] = replace(item, draft=lay_out(pieces_of(item.draft), 0))

    def _add(self, db: sqlite3.Connection, item: Item) -> None:
        draft = item.draft
        db.execute(
            "INSERT INTO messages (queue, position, state, sender, weight, size, memory, parts, "
            "head, written) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._place.number,
                next_position(db),
                QUEUED,
                item.sender,
                item.weight,
                draft.size,
                draft.size,
                draft.parts,
                draft.head,
                time.monotonic(),
            ),
        )

    def _adopt(self, db: sqlite3.Connection, item: Item, ticket: Ticket) -> None:
        adopted = db.execute(
            "UPDATE messages SET queue = ?, position = ?, state = ?, owner = NULL, sender = ?, "
            "weight = ?, size = ?, parts = ?, head = ?, written = ? WHERE id = ? AND state = ? AND owner = ?",
            (
                self._place.number,
                next_position(db),
                QUEUED,
                item.sender,
                item.weight,
                item.draft.size,
                item.draft.parts,
                item.draft.head,
                time.monotonic(),
                ticket.number,
                RESERVED,
                self._place.member.me,
            ),
        )
        if adopted.rowcount == 0:  # another thread has put it meanwhile
            raise already_put()


def already_put() -> ShoalValueError:
    """Return the error for a reservation that is in a queue already."""
    return ShoalValueError("the reservation was put")


def take_memory(place: Place, op: str, size: int, limit: Limit, *, waits: bool = True) -> Ticket:
    """Reserve memory for a message, waiting for it.

    Raises:
        ShoalTimeoutError: No memory was free in time.
        ChannelFull: No memory is free, and the operation does not wait.
        ChannelClosed: The queue is closed.
        ChannelMemoryError: No memory is free, and the session's policy makes that an error.
    """
    member = place.member
    made: list[Ticket] = []

    def take(db: sqlite3.Connection) -> Ticket | NotYet:
        row = db.execute("SELECT closed FROM queues WHERE id = ?", (place.number,)).fetchone()
        if row[0]:
            place.room(db, op, size)
        refused = place.memory(db, op, size, limit)
        spilled = refused is not None and member.facts.policy == "spill"
        if refused is not None and not spilled:
            return refused
        path = member.new_path(spilled=spilled)
        row = db.execute(
            "INSERT INTO messages (state, owner, sender, size, memory, file) "
            "VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
            (RESERVED, member.me, os.getpid(), size, 0 if spilled else size, str(path)),
        ).fetchone()
        made.append(Ticket(row[0], path))
        return made[-1]

    try:
        ticket = member.wait(op, limit, lambda seconds: member.write(op, take, seconds))
    except BaseException:
        for taken in made:  # a signal came after the memory was reserved
            give_up(member, taken)
        raise
    if isinstance(ticket, NotYet):
        raise place.no_room(op, limit, ticket.why, waits=waits)
    return ticket


def give_up(member: Member, ticket: Ticket) -> None:
    """Release reserved memory that was not put."""

    def delete(db: sqlite3.Connection) -> None:
        taken = db.execute(
            "DELETE FROM messages WHERE id = ? AND state = ? AND owner = ?",
            (ticket.number, RESERVED, member.me),
        )
        if taken.rowcount:
            ticket.path.unlink(missing_ok=True)
            member.due(db, "put")

    member.later(delete)
