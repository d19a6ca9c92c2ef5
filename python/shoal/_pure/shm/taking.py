"""Takes messages from a queue, and rebuilds their objects.

If a signal interrupts a get, the messages that it took return to their places in the queue.
"""

import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal._pure.shm.checks import Call
from shoal._pure.shm.files import Memory, read_file, remove_files, write_file
from shoal._pure.shm.member import PATIENCE_S, Member
from shoal._pure.shm.parcel import ShmParcel
from shoal._pure.shm.payload import Payload, decode
from shoal._pure.shm.queue_row import QueueRow
from shoal._pure.shm.refusal import Refusal
from shoal._pure.shm.schema import LEASED, LOANED, QUEUED
from shoal._pure.shm.waiting import wait
from shoal.errors import ChannelClosed, ChannelDecodeError

__all__ = ["Choice", "Taking", "first", "peeked", "up_to_weight"]

_SIGNALS: Final = (KeyboardInterrupt, GeneratorExit)
"""Errors that are not the fault of the message being rebuilt; all others are, even `SystemExit`."""
_WAITING: Final = f"FROM messages WHERE queue = ? AND state = {QUEUED} ORDER BY id LIMIT ?"


class Choice(NamedTuple):
    """Selects the messages to take.

    Attributes:
        choose: Returns their ids.
        needed: The weight that is needed; None if any message is enough.
    """

    choose: Callable[[sqlite3.Connection, QueueRow], list[int] | Refusal]
    needed: int | None = None


def first(n: int) -> Choice:
    """Return a choice of up to `n` first messages."""

    def choose(db: sqlite3.Connection, queue: QueueRow) -> list[int] | Refusal:
        found = db.execute(f"SELECT id {_WAITING}", (queue.number, n)).fetchall()
        return [row["id"] for row in found] or Refusal("empty")

    return Choice(choose)


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

    return Choice(choose, needed)


class Taking:
    """One get.

    Args:
        queue: The queue.
        call: The call.
        choice: Selects the messages to take.
        lease: Whether the messages return to the queue if this process dies.
        parcels: Whether to return each message as a parcel instead of its object.

    Attributes:
        failed: The error of the last message that cannot be rebuilt.
    """

    def __init__(
        self, queue: QueueRow, call: Call, choice: Choice, *, lease: bool, parcels: bool
    ) -> None:
        self._queue = queue
        self._member = queue.member
        self._call = call
        self._op = call.op
        self._choice = choice
        self._lease = lease
        self._parcels = parcels
        self._rows: dict[int, sqlite3.Row] = {}
        # The bytes of these messages, and the finalizers that release them.
        self._memory: dict[int, tuple[Memory | bytearray, weakref.finalize[..., Any] | None]] = {}
        self.failed: ChannelDecodeError | None = None

    def run(self) -> tuple[list[tuple[sqlite3.Row, Any]], Refusal]:
        """Take messages and rebuild them; return their rows and objects, or why there are none.

        A message that cannot be rebuilt is dropped; its error is kept as `failed`. If anything is
        raised before the caller has the messages, `put_back` must be called.

        Raises:
            ChannelClosed: The queue is closed, and nothing is left in it.
            ChannelDecodeError: No message can be rebuilt.
        """
        refusal = wait(self._queue, self._call, self._attempt, "get")
        if refusal is not None:
            return [], self._told(refusal)
        values = [(row, value) for row in list(self._rows.values()) for value in self._rebuilt(row)]
        if not self._lease:
            remove_files(row["file"] for row, _ in values)
        if not values and self.failed is not None:
            raise self.failed
        return values, Refusal("empty")

    def put_back(self) -> None:
        """Return the messages that were taken to their places in the queue."""
        for number, (memory, finalizer) in self._memory.items():
            if finalizer is not None:
                finalizer.detach()
            file = self._rows[number]["file"]
            if file is not None and not Path(file).exists():
                write_file(Path(file), Payload([(0, memory)], len(memory)))

        def back(db: sqlite3.Connection) -> None:
            for number, row in self._rows.items():
                db.execute("DELETE FROM messages WHERE id = ?", (number,))
                db.execute(f"INSERT INTO messages VALUES ({', '.join('?' * len(row))})", tuple(row))  # noqa: S608  (they are constants)

        if self._rows:
            self._member.write(self._op, back)

    def _told(self, refusal: Refusal) -> Refusal:
        """Return why the caller gets nothing; for a caller, locked tables are an empty queue."""
        if refusal.kind != "locked":
            return refusal
        if self._choice.needed is None:
            return Refusal("empty")
        count, *_ = self._member.read(self._op, self._queue.counters)
        return Refusal("weight", count, self._choice.needed)

    def _attempt(self) -> Refusal | None:
        # Read first: unlike a write, this does not disturb other processes.
        count, _, closed, _ = self._member.read(self._op, self._queue.counters)
        if count == 0:
            if closed:
                raise ChannelClosed(f"{self._op}: {self._queue.name} is closed and empty")
            refusal = self._member.read(self._op, lambda db: self._choice.choose(db, self._queue))
            if isinstance(refusal, Refusal):
                return refusal
        # If the write is rolled back, forget the rows: another process may have taken them by now.
        return self._member.write(self._op, self._take, PATIENCE_S, self._rows.clear)

    def _take(self, db: sqlite3.Connection) -> Refusal | None:
        chosen = self._choice.choose(db, self._queue)
        if isinstance(chosen, Refusal):
            return chosen
        for number in chosen:
            row = db.execute("SELECT * FROM messages WHERE id = ?", (number,)).fetchone()
            self._rows[number] = row
            if self._lease or row["file"] is not None:
                db.execute(
                    "UPDATE messages SET state = ?, owner = ? WHERE id = ?",
                    (LEASED if self._lease else LOANED, self._member.me, number),
                )
            else:
                db.execute("DELETE FROM messages WHERE id = ?", (number,))
        return None

    def _rebuilt(self, row: sqlite3.Row) -> list[Any]:
        """Return the object of a message, in a list; an empty list if it cannot be rebuilt."""
        number = row["id"]
        try:
            memory = _bytes_of(row)
            finalizer = None
            if isinstance(memory, Memory) and not self._lease:
                finalizer = weakref.finalize(memory, _forget, self._member, number)
                # At the end of the process all that it holds is released at once.
                finalizer.atexit = False
            self._memory[number] = memory, finalizer
            return [_value(row, memory, parcels=self._parcels)]
        except _SIGNALS:
            raise
        except BaseException as error:  # noqa: BLE001  (the object's classes may raise anything)
            self.failed = _not_rebuilt(self._queue, row, error)
            self.failed.__cause__ = error
            _forget(self._member, number)
            remove_files([row["file"]])
            del self._rows[number]
            self._memory.pop(number, None)
            return []


def peeked(queue: QueueRow, most: int | None, *, parcels: bool) -> list[tuple[int, Any]]:
    """Return the weights and copies of the first messages, which stay in the queue.

    Raises:
        ChannelDecodeError: A message cannot be rebuilt.
    """
    values = (queue.number, -1 if most is None else most)
    rows = queue.member.read(
        "peek", lambda db: db.execute(f"SELECT * {_WAITING}", values).fetchall()
    )
    found = []
    for row in rows:
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


def _forget(member: Member, number: int) -> None:
    """Delete a message that this process holds, now or soon."""
    query = "DELETE FROM messages WHERE id = ? AND state <> ? AND owner = ?"
    member.later(lambda db: db.execute(query, (number, QUEUED, member.me)))
