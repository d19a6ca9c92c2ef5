"""Takes messages from a queue, and rebuilds their objects.

If a signal interrupts a get, the messages that it took return to their places in the queue.
"""

import functools
import itertools
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from shoal._pure.shm.checks import Limit
from shoal._pure.shm.encoding import decode
from shoal._pure.shm.member import Member, NotYet
from shoal._pure.shm.memory import map_file, write_file
from shoal._pure.shm.parcel import parcel_of
from shoal._pure.shm.place import Place
from shoal._pure.shm.schema import LEASED, LOANED, QUEUED
from shoal.errors import ChannelClosed, ChannelDecodeError

__all__ = [
    "SIGNALS",
    "Choice",
    "Row",
    "Taking",
    "first",
    "not_rebuilt",
    "rebuilt",
    "up_to_weight",
    "waiting_rows",
]

SIGNALS: Final = (KeyboardInterrupt, GeneratorExit)
"""Errors that are not the fault of the message being rebuilt; all others are, even `SystemExit`."""
_COLUMNS = (
    "id, queue, position, sender, weight, size, memory, redelivered, written, parts, head, file"
)
_WAITING = f"SELECT {_COLUMNS} FROM messages WHERE queue = ? AND state = 0 ORDER BY position"  # noqa: S608  (it is a constant)


@dataclass(slots=True)
class Row:
    """A message that was taken; the first fields are the columns of its row."""

    number: int
    queue: int
    position: int
    sender: int
    weight: int
    size: int
    memory: int
    redelivered: int
    written: float
    parts: bytes
    head: bytes
    file: str | None
    mapped: memoryview | None = field(default=None, repr=False)

    @property
    def columns(self) -> tuple[Any, ...]:
        """The values of the row."""
        return (
            self.number,
            self.queue,
            self.position,
            self.sender,
            self.weight,
            self.size,
            self.memory,
            self.redelivered,
            self.written,
            self.parts,
            self.head,
            self.file,
        )


Choice = Callable[[sqlite3.Connection, Place], list[Row] | NotYet]


def waiting_rows(db: sqlite3.Connection, place: Place, limit: int) -> list[Row]:
    """Return the first messages of a queue."""
    rows = db.execute(f"{_WAITING} LIMIT ?", (place.number, limit)).fetchall()
    return [Row(*row) for row in rows]


def first(n: int) -> Choice:
    """Return a choice of up to `n` first messages."""

    def choose(db: sqlite3.Connection, place: Place) -> list[Row] | NotYet:
        return waiting_rows(db, place, n) or NotYet()

    return choose


def rebuilt(row: Row, memory: memoryview | None, *, parcels: bool) -> Any:
    """Return the object of a message, or its parcel."""
    if parcels:
        return parcel_of(row.sender, row.parts, row.head, memory)
    return decode(row.parts, row.head, memory)


def not_rebuilt(place: Place, row: Row, error: BaseException) -> ChannelDecodeError:
    """Return the error for a message that cannot be rebuilt."""
    return ChannelDecodeError(
        f"{place.name}: a message from process {row.sender} cannot be rebuilt "
        f"here: {type(error).__name__}: {error}"
    )


def up_to_weight(target: int, least: int | None = None) -> Choice:
    """Return a choice of the first messages that reach a weight without exceeding it.

    A first message that alone exceeds the weight is chosen too. If the weight is not reached,
    messages with a total weight of `least` are enough.
    """

    def choose(db: sqlite3.Connection, place: Place) -> list[Row] | NotYet:
        chosen: list[Row] = []
        total = 0
        # Read all rows at once: an open cursor would make other processes wait.
        for values in db.execute(_WAITING, (place.number,)).fetchall():
            row = Row(*values)
            if chosen and total + row.weight > target:
                return chosen
            chosen.append(row)
            total += row.weight
            if total >= target:
                return chosen
        if chosen and least is not None and total >= least:
            return chosen
        closed, count, pressed = db.execute(
            "SELECT closed, count, pressed FROM queues WHERE id = ?", (place.number,)
        ).fetchone()
        complete = closed or pressed or count >= place.bound
        return chosen if chosen and complete else NotYet(f"it holds {count} messages")

    return choose


class Taking:
    """One get.

    Args:
        place: The queue.
        op: The operation, for messages.
        choice: Selects the messages to take.
        lease: Whether the messages return to the queue if this process dies.
        parcels: Whether to return each message as a parcel instead of its object.
    """

    def __init__(
        self,
        place: Place,
        op: str,
        choice: Choice,
        *,
        lease: bool = False,
        parcels: bool = False,
    ) -> None:
        self._place = place
        self._op = op
        self._choice = choice
        self._lease = lease
        self._parcels = parcels
        self._rows: list[Row] = []
        self.failed: ChannelDecodeError | None = None

    def run(self, limit: Limit) -> list[tuple[Row, Any]] | NotYet:
        """Take messages and rebuild them.

        A message that cannot be rebuilt is dropped; its error is kept as `failed`. If anything is
        raised before the caller has the messages, `put_back` must be called.

        Raises:
            ChannelClosed: The queue is closed, and nothing is left in it.
        """
        outcome = self._place.member.wait(
            self._op, limit, self._attempt, at=(self._place.number, "get")
        )
        if isinstance(outcome, NotYet):
            return outcome
        values = list(filter(None, map(self._rebuilt, outcome)))
        if not self._lease:
            for row, _ in values:
                if row.file is not None:
                    Path(row.file).unlink(missing_ok=True)
        return values

    def put_back(self) -> None:
        """Return the messages that were taken to their places in the queue."""
        if self._rows:
            member, place, rows = self._place.member, self._place, self._rows
            member.write(self._op, lambda db: _put_back(db, member, place, rows))

    def _attempt(self, seconds: float) -> list[Row] | NotYet:
        place = self._place
        # Read first: unlike a write, this does not disturb other processes.
        count, closed = place.member.read(
            self._op,
            lambda db: db.execute(
                "SELECT count, closed FROM queues WHERE id = ?", (place.number,)
            ).fetchone(),
        )
        if count == 0 and closed:
            raise ChannelClosed(f"{self._op}: {place.name} is closed and empty")
        if count == 0:
            return NotYet("it holds 0 messages")
        # If the write is rolled back, forget the rows: another process may have taken them by now.
        return place.member.write(self._op, self._take, seconds, self._rows.clear)

    def _take(self, db: sqlite3.Connection) -> list[Row] | NotYet:
        member, number = self._place.member, self._place.number
        chosen = self._choice(db, self._place)
        if isinstance(chosen, NotYet):
            return chosen
        for row in chosen:
            if self._lease or row.file is not None:
                state = LEASED if self._lease else LOANED
                db.execute(
                    "UPDATE messages SET state = ?, owner = ? WHERE id = ?",
                    (state, member.me, row.number),
                )
            else:
                db.execute("DELETE FROM messages WHERE id = ?", (row.number,))
        db.execute("UPDATE queues SET pressed = 0 WHERE id = ? AND pressed = 1", (number,))
        member.due(db, "put")
        self._rows[:] = chosen
        return chosen

    def _rebuilt(self, row: Row) -> tuple[Row, Any] | None:
        try:
            memory = self._mapped(row)
        except FileNotFoundError as error:
            self._gone(row, error)
            return None
        try:
            return row, rebuilt(row, memory, parcels=self._parcels)
        except SIGNALS:
            raise
        except BaseException as error:  # noqa: BLE001  (the object's classes may raise anything)
            self._gone(row, error)
            return None

    def _gone(self, row: Row, error: BaseException) -> None:
        self.failed = not_rebuilt(self._place, row, error)
        self.failed.__cause__ = error
        drop(self._place.member, row)
        self._rows.remove(row)

    def _mapped(self, row: Row) -> memoryview | None:
        if row.file is None:
            return None
        path = Path(row.file)
        # The callback must not refer to the row, which refers to the mapping.
        released = functools.partial(_release, self._place.member, row.number, self._lease)
        row.mapped = map_file(path, path.stat().st_size, released, private=self._lease)
        return row.mapped


def _release(member: Member, number: int, lease: bool) -> None:
    if not lease:
        member.later(lambda db: forget(db, member, number))


def drop(member: Member, row: Row) -> None:
    """Delete a message that this process holds, with its file."""
    if row.file is not None:
        Path(row.file).unlink(missing_ok=True)
    member.later(lambda db: forget(db, member, row.number))


def forget(db: sqlite3.Connection, member: Member, number: int) -> None:
    """Delete the row of a message that this process holds."""
    taken = db.execute(
        "DELETE FROM messages WHERE id = ? AND state <> ? AND owner = ?",
        (number, QUEUED, member.me),
    )
    if taken.rowcount:
        member.due(db, "put")


def _put_back(db: sqlite3.Connection, member: Member, place: Place, rows: list[Row]) -> None:
    """Return messages to their places; messages that are still held have kept their rows."""
    marks = ", ".join(itertools.repeat("?", 12))
    for row in rows:
        db.execute(
            f"INSERT OR IGNORE INTO messages ({_COLUMNS}, state) VALUES ({marks}, {LOANED})",  # noqa: S608  (they are constants)
            row.columns,
        )
        db.execute("UPDATE messages SET state = ?, owner = NULL WHERE id = ?", (QUEUED, row.number))
        if row.file is not None and row.mapped is not None and not Path(row.file).exists():
            write_file(Path(row.file), len(row.mapped), [(0, row.mapped)])
    member.due(db, "get", place.number)
