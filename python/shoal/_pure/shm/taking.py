"""Takes messages from a queue, and rebuilds their objects.

If a signal interrupts a get, the messages that it took return to their places in the queue.
"""

import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal._pure.shm.checks import Limit
from shoal._pure.shm.doorbell import Side
from shoal._pure.shm.member import PATIENCE_S, Member
from shoal._pure.shm.parcel import ShmParcel
from shoal._pure.shm.payload import Memory, Payload, decode, read_file, write_file
from shoal._pure.shm.queue_row import QueueRow
from shoal._pure.shm.refusal import Refusal
from shoal._pure.shm.schema import LEASED, LOANED, QUEUED
from shoal.errors import ChannelClosed, ChannelDecodeError

__all__ = ["Choice", "Row", "Taking", "drop", "first", "peeked", "up_to_weight"]

_SIGNALS: Final = (KeyboardInterrupt, GeneratorExit)
"""Errors that are not the fault of the message being rebuilt; all others are, even `SystemExit`."""
_WAITING: Final = f"FROM messages WHERE queue = ? AND state = {QUEUED} ORDER BY id"


class Row(NamedTuple):
    """A message: all columns of its row."""

    number: int
    queue: int
    state: int
    owner: int | None
    sender: int
    weight: int
    size: int
    memory: int
    redelivered: int
    written: float
    data: bytes | None
    file: str | None

    def bytes(self) -> Memory:
        """Return the bytes of the message.

        Raises:
            FileNotFoundError: Another process has taken the message, or removed the session.
        """
        if self.file is None:
            return Memory(self.data or b"")
        return read_file(Path(self.file), self.size)


Choice = Callable[[sqlite3.Connection, QueueRow], list[int] | Refusal]


def first(n: int) -> Choice:
    """Return a choice of up to `n` first messages."""

    def choose(db: sqlite3.Connection, queue: QueueRow) -> list[int] | Refusal:
        found = db.execute(f"SELECT id {_WAITING} LIMIT ?", (queue.number, n)).fetchall()
        return [row[0] for row in found] or Refusal("empty")

    return choose


def up_to_weight(target: int, least: int | None = None) -> Choice:
    """Return a choice of the first messages that reach a weight without exceeding it.

    A first message that alone exceeds the weight is chosen too. If the weight is not reached,
    messages with a total weight of `least` are enough.
    """
    needed = target if least is None else min(least, target)

    def choose(db: sqlite3.Connection, queue: QueueRow) -> list[int] | Refusal:
        chosen: list[int] = []
        total = 0
        # Read all rows at once: an open cursor would make other processes wait.
        for number, weight in db.execute(
            f"SELECT id, weight {_WAITING}",
            (queue.number,),
        ).fetchall():
            if chosen and total + weight > target:
                return chosen
            chosen.append(number)
            total += weight
            if total >= target:
                return chosen
        count, _, closed = queue.counters(db)
        pressed = db.execute("SELECT pressed FROM queues WHERE id = ?", (queue.number,)).fetchone()[
            0
        ]
        complete = closed or pressed or count >= queue.bound or total >= needed
        return chosen if chosen and complete else Refusal("weight", count, needed)

    return choose


class Taking:
    """One get.

    Args:
        queue: The queue.
        op: The operation, for messages.
        choice: Selects the messages to take.
        lease: Whether the messages return to the queue if this process dies.
        parcels: Whether to return each message as a parcel instead of its object.

    Attributes:
        failed: The error of the last message that cannot be rebuilt.
    """

    def __init__(
        self, queue: QueueRow, op: str, choice: Choice, *, lease: bool, parcels: bool
    ) -> None:
        self._queue = queue
        self._member = queue.member
        self._op = op
        self._choice = choice
        self._lease = lease
        self._parcels = parcels
        # The messages that were taken, with their bytes and the finalizer that releases these.
        self._taken: dict[int, tuple[Row, Memory | None, weakref.finalize[..., Any] | None]] = {}
        self.failed: ChannelDecodeError | None = None

    def run(
        self, limit: Limit, waiting: Callable[[], object] | None = None
    ) -> list[tuple[Row, Any]] | Refusal:
        """Take messages and rebuild them.

        A message that cannot be rebuilt is dropped; its error is kept as `failed`. If anything is
        raised before the caller has the messages, `put_back` must be called.

        Raises:
            ChannelClosed: The queue is closed, and nothing is left in it.
        """
        at: tuple[int, Side] = (self._queue.number, "get")
        rows = self._member.wait(self._op, limit, self._attempt, at, waiting)
        if isinstance(rows, Refusal):
            return rows
        values = [found for row in rows if (found := self._rebuilt(row)) is not None]
        if not self._lease:
            for row, _ in values:
                if row.file is not None:
                    Path(row.file).unlink(missing_ok=True)
        return values

    def put_back(self) -> None:
        """Return the messages that were taken to their places in the queue."""
        for row, memory, finalizer in self._taken.values():
            if finalizer is not None:
                finalizer.detach()
            if row.file is not None and memory is not None and not Path(row.file).exists():
                write_file(Path(row.file), Payload([(0, memory)], row.size))
        rows = [taken[0] for taken in self._taken.values()]

        def back(db: sqlite3.Connection) -> None:
            for row in rows:
                db.execute("DELETE FROM messages WHERE id = ?", (row.number,))
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT INTO messages VALUES ({marks})", row)  # noqa: S608  (they are constants)
            self._member.bell.due(db, "get", self._queue.number)

        if rows:
            self._member.write(self._op, back)

    def _attempt(self) -> list[Row] | Refusal:
        # Read first: unlike a write, this does not disturb other processes.
        count, _, closed = self._member.read(self._op, self._queue.counters)
        if count == 0 and closed:
            raise ChannelClosed(f"{self._op}: {self._queue.name} is closed and empty")
        if count == 0:
            refusal = self._member.read(self._op, lambda db: self._choice(db, self._queue))
            if isinstance(refusal, Refusal):
                return refusal
        # If the write is rolled back, forget the rows: another process may have taken them by now.
        return self._member.write(self._op, self._take, PATIENCE_S, self._taken.clear)

    def _take(self, db: sqlite3.Connection) -> list[Row] | Refusal:
        chosen = self._choice(db, self._queue)
        if isinstance(chosen, Refusal):
            return chosen
        rows = []
        for number in chosen:
            found = db.execute("SELECT * FROM messages WHERE id = ?", (number,)).fetchone()
            row = Row(*found)
            rows.append(row)
            self._taken[number] = row, None, None
            if self._lease or row.file is not None:
                db.execute(
                    "UPDATE messages SET state = ?, owner = ? WHERE id = ?",
                    (LEASED if self._lease else LOANED, self._member.me, number),
                )
            else:
                db.execute("DELETE FROM messages WHERE id = ?", (number,))
        self._queue.relieve(db)
        return rows

    def _rebuilt(self, row: Row) -> tuple[Row, Any] | None:
        try:
            memory = row.bytes()
            finalizer = None
            if row.file is not None and not self._lease:
                finalizer = weakref.finalize(memory, _forget, self._member, row.number)
                # At the end of the process all that it holds is released at once.
                finalizer.atexit = False
            self._taken[row.number] = row, memory, finalizer
            return row, _value(row, memory, parcels=self._parcels)
        except _SIGNALS:
            raise
        except BaseException as error:  # noqa: BLE001  (the object's classes may raise anything)
            self.failed = _not_rebuilt(self._queue, row, error)
            self.failed.__cause__ = error
            drop(self._member, row)
            del self._taken[row.number]
            return None


def drop(member: Member, row: Row) -> None:
    """Delete a message that this process holds, with its file, now or soon."""
    _forget(member, row.number)
    if row.file is not None:
        Path(row.file).unlink(missing_ok=True)


def _forget(member: Member, number: int) -> None:
    def delete(db: sqlite3.Connection) -> None:
        taken = db.execute(
            "DELETE FROM messages WHERE id = ? AND state <> ? AND owner = ?",
            (number, QUEUED, member.me),
        )
        if taken.rowcount:
            member.bell.due(db, "put")

    member.later(delete)


def peeked(queue: QueueRow, most: int | None, *, parcels: bool) -> list[tuple[int, Any]]:
    """Return the weights and copies of the first messages, which stay in the queue.

    Raises:
        ChannelDecodeError: A message cannot be rebuilt.
    """
    query = f"SELECT * {_WAITING} LIMIT ?"
    limit = -1 if most is None else most
    rows = queue.member.read("peek", lambda db: db.execute(query, (queue.number, limit)).fetchall())
    found = []
    for row in [Row(*values) for values in rows]:
        try:
            memory = row.bytes()
        except FileNotFoundError:
            continue  # another process has taken it
        try:
            found.append((row.weight, _value(row, memory, parcels=parcels)))
        except _SIGNALS:
            raise
        except BaseException as error:
            raise _not_rebuilt(queue, row, error) from error
    return found


def _value(row: Row, memory: Memory, *, parcels: bool) -> Any:
    """Return the object of a message, or its parcel."""
    return ShmParcel(1, memory, row.sender) if parcels else decode(memoryview(memory))


def _not_rebuilt(queue: QueueRow, row: Row, error: BaseException) -> ChannelDecodeError:
    return ChannelDecodeError(
        f"{queue.name}: a message from process {row.sender} cannot be rebuilt here: "
        f"{type(error).__name__}: {error}"
    )
