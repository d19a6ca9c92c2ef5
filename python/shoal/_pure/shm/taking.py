"""Takes messages from a queue, and rebuilds their objects.

If a signal interrupts a get, the messages that it took return to their places in the queue.
"""

import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from shoal._pure.shm.checks import Call, Refusal
from shoal._pure.shm.parcel import ShmParcel
from shoal._pure.shm.payload import Memory, Payload, decode, read_file
from shoal._pure.shm.queue_row import QueueRow
from shoal._pure.shm.tables import LEASED, LOANED, QUEUED
from shoal.errors import ChannelClosed, ChannelDecodeError

__all__ = ["Choose", "Taking", "first", "peeked", "up_to_weight"]

Choose = Callable[[sqlite3.Connection, QueueRow], list[int] | Refusal]

_SIGNALS: Final = (KeyboardInterrupt, GeneratorExit)
"""Errors that are not the fault of the message being rebuilt; all others are, even `SystemExit`."""
_WAITING: Final = f"FROM messages WHERE queue = ? AND state = {QUEUED} ORDER BY id LIMIT ?"


def first(n: int) -> Choose:
    """Choose up to `n` first messages."""

    def choose(db: sqlite3.Connection, queue: QueueRow) -> list[int] | Refusal:
        found = db.execute(f"SELECT id {_WAITING}", (queue.number, n)).fetchall()
        return [row["id"] for row in found] or Refusal("empty")

    return choose


def up_to_weight(target: int, least: int | None = None) -> Choose:
    """Choose the first messages that reach a weight without exceeding it.

    A first message that alone exceeds the weight is chosen too. If the weight is not reached,
    messages with a total weight of `least` are enough.
    """
    needed = target if least is None else min(least, target)

    def choose(db: sqlite3.Connection, queue: QueueRow) -> list[int] | Refusal:
        chosen: list[int] = []
        total = 0
        # Read all rows at once: an open cursor would make other processes wait.
        rows = db.execute(f"SELECT id, weight {_WAITING}", (queue.number, -1)).fetchall()
        for number, weight in rows:
            if chosen and total + weight > target:
                return chosen
            chosen.append(number)
            total += weight
            if total >= target:
                return chosen
        count, _, closed, pressed = queue.counters(db)
        complete = closed or pressed or count >= queue.bound or total >= needed
        return chosen if chosen and complete else Refusal("weight", count, needed)

    return choose


class Taking:
    """One get.

    Args:
        queue: The queue.
        call: The call.
        choose: Returns the ids of the messages to take, or why there are none.
        lease: Whether the messages return to the queue if this process dies.
        parcels: Whether to return each message as a parcel instead of its object.

    Attributes:
        failed: The error of the last message that cannot be rebuilt.
    """

    def __init__(
        self, queue: QueueRow, call: Call, choose: Choose, *, lease: bool, parcels: bool
    ) -> None:
        self._queue, self._call, self._choose = queue, call, choose
        self._lease, self._parcels = lease, parcels
        self._rows: dict[int, sqlite3.Row] = {}
        # The bytes of messages without a row or file, and the finalizers that release them.
        self._loans: dict[int, tuple[Memory, weakref.finalize[..., Any]]] = {}
        self.failed: ChannelDecodeError | None = None

    def run(self) -> tuple[list[tuple[sqlite3.Row, Any]], Refusal]:
        """Take messages and rebuild them; return their rows and objects, or why there are none.

        A message that cannot be rebuilt is dropped; its error is kept as `failed`. If anything is
        raised before the caller has the messages, `put_back` must be called.

        Raises:
            ChannelClosed: The queue is closed, and nothing is left in it.
            ChannelDecodeError: No message can be rebuilt.
        """
        refusal = self._queue.wait(self._call, self._attempt, "get")
        if refusal is not None:
            return [], refusal
        values = [(row, value) for row in list(self._rows.values()) for value in self._rebuilt(row)]
        if not self._lease:
            for row, _ in values:
                _remove_file(row)
        if not values and self.failed is not None:
            raise self.failed
        return values, Refusal("empty")

    def put_back(self) -> None:
        """Return the messages that were taken to their places in the queue."""
        for number, (memory, finalizer) in self._loans.items():
            finalizer.detach()
            file = Path(self._rows[number]["file"])
            if not file.exists():
                Payload([(0, memory)], len(memory)).write(file)

        def back(db: sqlite3.Connection) -> None:
            for number, row in self._rows.items():
                db.execute("DELETE FROM messages WHERE id = ?", (number,))
                db.execute(f"INSERT INTO messages VALUES ({', '.join('?' * len(row))})", tuple(row))  # noqa: S608  (they are constants)

        if self._rows:
            self._queue.member.write(self._call.op, back)

    def _attempt(self) -> Refusal | None:
        member, op = self._queue.member, self._call.op
        # Read first: unlike a write, this does not disturb other processes.
        chosen = member.read(op, self._chosen)
        if isinstance(chosen, Refusal):
            return chosen
        # If the write is rolled back, forget the rows: another process may have taken them by now.
        return member.write(op, self._take, self._rows.clear)

    def _chosen(self, db: sqlite3.Connection) -> list[int] | Refusal:
        count, _, closed, _ = self._queue.counters(db)
        if count == 0 and closed:
            raise ChannelClosed(f"{self._call.op}: {self._queue.name} is closed and empty")
        return self._choose(db, self._queue)

    def _take(self, db: sqlite3.Connection) -> Refusal | None:
        chosen = self._chosen(db)
        if isinstance(chosen, Refusal):
            return chosen
        state, me = LEASED if self._lease else LOANED, self._queue.member.me
        for number in chosen:
            row = db.execute("SELECT * FROM messages WHERE id = ?", (number,)).fetchone()
            self._rows[number] = row
            if self._lease or row["file"] is not None:
                query = "UPDATE messages SET state = ?, owner = ? WHERE id = ?"
                db.execute(query, (state, me, number))
            else:
                db.execute("DELETE FROM messages WHERE id = ?", (number,))
        return None

    def _rebuilt(self, row: sqlite3.Row) -> list[Any]:
        """Return the object of a message, in a list; an empty list if it cannot be rebuilt."""
        number, member = row["id"], self._queue.member
        try:
            memory = _bytes_of(row)
            if isinstance(memory, Memory) and not self._lease:
                finalizer = weakref.finalize(memory, member.forget, number)
                # At the end of the process all that it holds is released at once.
                finalizer.atexit = False
                self._loans[number] = memory, finalizer
            return [_value(row, memory, parcels=self._parcels)]
        except _SIGNALS:
            raise
        except BaseException as error:  # noqa: BLE001  (the object's classes may raise anything)
            self.failed = _not_rebuilt(self._queue, row, error)
            self.failed.__cause__ = error
            member.forget(number)
            _remove_file(row)
            del self._rows[number]
            self._loans.pop(number, None)
            return []


def peeked(queue: QueueRow, most: int | None, *, parcels: bool) -> list[tuple[int, Any]]:
    """Return the weights and copies of the first messages, which stay in the queue.

    Raises:
        ChannelDecodeError: A message cannot be rebuilt.
    """
    values = (queue.number, -1 if most is None else most)
    query = f"SELECT * {_WAITING}"
    found = []
    for row in queue.member.read("peek", lambda db: db.execute(query, values).fetchall()):
        try:
            memory = _bytes_of(row)
        except FileNotFoundError:
            continue  # another process has taken it
        try:
            found.append((row["weight"], _value(row, memory, parcels=parcels)))
        except _SIGNALS:
            raise
        except BaseException as error:
            raise _not_rebuilt(queue, row, error) from error
    return found


def _bytes_of(row: sqlite3.Row) -> Memory | bytearray:
    if row["file"] is None:
        return bytearray(row["data"])
    return read_file(Path(row["file"]), row["size"])


def _value(row: sqlite3.Row, memory: Memory | bytearray, *, parcels: bool) -> Any:
    """Return the object of a message, or its parcel."""
    if parcels:
        return ShmParcel(row["kind"], memory, row["sender"])
    return decode(row["kind"], memoryview(memory))


def _not_rebuilt(queue: QueueRow, row: sqlite3.Row, error: BaseException) -> ChannelDecodeError:
    return ChannelDecodeError(
        f"{queue.name}: a message from process {row['sender']} cannot be rebuilt here: "
        f"{type(error).__name__}: {error}"
    )


def _remove_file(row: sqlite3.Row) -> None:
    if row["file"] is not None:
        Path(row["file"]).unlink(missing_ok=True)
