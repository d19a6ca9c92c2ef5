"""`QueueRow`: a queue in the tables, and the transactions that put, choose, take and put back messages.

If a signal interrupts a get, the messages that it took return to their places in the queue.
"""

import functools
import os
import sqlite3
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from shoal._pure.shm.checks import Call, not_rebuilt, nothing_put, refused
from shoal._pure.shm.folders import free_bytes
from shoal._pure.shm.member import Member
from shoal._pure.shm.messages import LARGE, Memory, Payload, read_file
from shoal._pure.shm.tables import LEASED, LOANED, QUEUED, RESERVED, HeldError
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelExistsError,
    ChannelMemoryError,
    ShoalValueError,
    with_items,
)
from shoal.refusals import Refusal

__all__ = ["Choose", "QueueRow", "first", "open_queue", "up_to_weight"]

_FIRST_PAUSE_S: Final = 0.0002
_LAST_PAUSE_S: Final = 0.01
_CALL_EVERY_S: Final = 0.1
_KEPT: Final = 64
"""Number of unused queues to keep, for keys that are used again."""
_LIMIT: Final = 8192
"""Number of queues of a session."""
_EMPTY: Final = Refusal("empty")
_SPARE: Final = 512 * 1024
"""Bytes that puts leave free on a file system: gets need room too, for the journal."""
_WAITING: Final = f"FROM messages WHERE queue = ? AND state = {QUEUED} ORDER BY id LIMIT ?"

Made = Callable[[sqlite3.Row, Any], Any]
"""Returns the result of a get for the row of a message and its bytes."""


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

    def why_full(self, length: int) -> Refusal | None:
        """Return the refusal of a message with this many bytes if the queue is full, else None."""
        count, held, closed, _ = self.member.read("full", self.counters)
        return None if closed else self._lack(count, held, 1, length)

    def press(self, db: sqlite3.Connection) -> None:
        """Note that a producer waits, so that no get waits for more messages than can come."""
        db.execute("UPDATE queues SET pressed = 1 WHERE id = ? AND pressed = 0", (self.number,))

    def let_go(self) -> None:
        """Note that this process does not use the queue any more; finalizers can call this."""
        member, user = self.member, self.user
        # Not in a forked child, for which the row of its parent is not its own.
        query = "DELETE FROM users WHERE id = ? AND participant = ?"
        member.later(lambda db: db.execute(query, (user, member.me)))

    def put(
        self,
        call: Call,
        made: Payload | Callable[[], Payload],
        weight: int,
        sender: int,
        reserved: int = 0,
    ) -> None:
        """Put a message, waiting for room.

        Args:
            call: The call.
            made: The encoded object, or a function that encodes it once there is room.
            weight: The weight of the message.
            sender: The pid of the process that encoded it; another process for a parcel passed on.
            reserved: The id of the row that reserves its memory, or 0.
        """
        files: list[Path] = []
        encoded = [] if callable(made) else [made]

        def attempt() -> Refusal | None:
            if callable(made) and not encoded:
                refusal = self.member.read(
                    call.op, lambda db: self._refusal(db, call), call.patience
                )
                if refusal is not None:
                    return refusal
                encoded.append(made())
            self._check_fits(call, encoded[0].size)
            return self.member.write(call.op, insert, undone, call.patience)

        def insert(db: sqlite3.Connection) -> Refusal | None:
            payload = encoded[0]
            memory = self._memory_for(db, call, payload.size, reserved)
            if isinstance(memory, Refusal):
                return memory
            if payload.size >= LARGE or memory == 0 < payload.size:
                files.append(self.member.new_path(spilled=memory == 0))
                payload.write(files[0])
            data, file = (None, str(files[0])) if files else (payload.copied(), None)
            db.execute(
                "INSERT INTO messages (queue, state, sender, kind, weight, size, memory, "
                "redelivered, written, data, file) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
                (
                    *(self.number, QUEUED, sender, payload.kind, weight, payload.size),
                    *(memory, time.monotonic(), data, file),
                ),
            )
            return None

        def undone() -> None:
            while files:
                files.pop().unlink(missing_ok=True)

        self._wait_for_room(call, attempt)

    def reserve(self, call: Call, size: int) -> int:
        """Reserve memory, waiting for it; return the id of its row."""
        self._check_fits(call, size)
        member, made = self.member, list[int]()

        def take(db: sqlite3.Connection) -> Refusal | None:
            self._check_open(db, call)
            memory = self._memory(db, call, size)
            if isinstance(memory, Refusal):
                return memory
            row = (RESERVED, member.me, os.getpid(), size, memory)
            query = (
                "INSERT INTO messages (state, owner, sender, size, memory) VALUES (?, ?, ?, ?, ?)"
            )
            made.append(db.execute(f"{query} RETURNING id", row).fetchone()["id"])
            return None

        try:
            self._wait_for_room(
                call, lambda: member.write(call.op, take, made.clear, call.patience)
            )
        except BaseException:
            for number in made:  # a signal came after the memory was reserved
                member.forget(number)
            raise
        return made[0]

    def take(
        self, call: Call, choose: "Choose", made: Made, state: int
    ) -> tuple[list[Any], Refusal]:
        """Take messages, and return what is made of them; or why there are none.

        A message of which nothing can be made is dropped; the error of the first has the `items`
        that are made of the others.

        Args:
            call: The call.
            choose: Returns the ids of the messages to take, or why there are none.
            made: Returns the result for each message.
            state: `LEASED` or `LOANED`.
        """
        member, rows = self.member, dict[int, sqlite3.Row]()
        loans: list[weakref.finalize[..., Any]] = []
        held: list[Memory] = []  # freed memory cannot be put back after an interruption

        results, spoilt = list[Any](), dict[int, ChannelDecodeError]()
        try:
            refusal = self._wait(call, self._taking(call, choose, state, rows), "get")
            for row in list(rows.values()):
                try:
                    memory = _bytes_of(row)
                    if isinstance(memory, Memory) and state == LOANED:
                        held.append(memory)
                        loans.append(weakref.finalize(memory, member.forget, row["id"]))
                        loans[-1].atexit = False  # the end of the process releases all at once
                    results.append(made(row, memory))
                except Exception as error:  # noqa: BLE001  (any of the object's classes)
                    spoilt[row["id"]] = not_rebuilt(self.name, row["sender"], error)
            failed = with_items(list(spoilt.values()), results) if spoilt else None
            for number in spoilt:
                del rows[number]
                member.forget(number)
        except BaseException:
            for loan in loans:
                loan.detach()
            if rows:
                member.later(functools.partial(_put_back, rows))
            raise
        # Signals arrive at calls; there is no call between here and the caller of the queue.
        if failed is not None:
            raise failed
        return results, refusal or _EMPTY

    def _taking(
        self, call: Call, choose: "Choose", state: int, rows: dict[int, sqlite3.Row]
    ) -> Callable[[], Refusal | None]:
        """Return an attempt to take messages, whose rows it adds."""
        member = self.member

        def chosen(db: sqlite3.Connection) -> list[int] | Refusal:
            count, _, closed, _ = self.counters(db)
            if count == 0 and closed:
                raise ChannelClosed(f"{call.op}: {self.name} is closed and empty")
            return choose(db, self)

        def taken(db: sqlite3.Connection) -> Refusal | None:
            numbers = chosen(db)
            if isinstance(numbers, Refusal):
                return numbers
            for number in numbers:
                find = "SELECT * FROM messages WHERE id = ?"
                rows[number] = db.execute(find, (number,)).fetchone()
                if state == LEASED or rows[number]["file"] is not None:
                    query = "UPDATE messages SET state = ?, owner = ? WHERE id = ?"
                    db.execute(query, (state, member.me, number))
                else:
                    db.execute("DELETE FROM messages WHERE id = ?", (number,))
            return None

        def attempt() -> Refusal | None:
            # Read first: unlike a write, this does not disturb other processes.
            found = member.read(call.op, chosen, call.patience)
            if isinstance(found, Refusal):
                return found
            # After a rollback, forget the rows: another process may have taken them by now.
            return member.write(call.op, taken, rows.clear, call.patience)

        return attempt

    def peek(self, most: int | None, made: Made) -> list[tuple[int, Any]]:
        """Return the weights and copies of the first messages, which stay in the queue."""
        values = (self.number, -1 if most is None else most)
        query = f"SELECT * {_WAITING}"
        found = []
        for row in self.member.read("peek", lambda db: db.execute(query, values).fetchall()):
            try:
                memory = _bytes_of(row)
            except FileNotFoundError:
                continue  # another process has taken it
            try:
                found.append((row["weight"], made(row, memory)))
            except Exception as error:
                raise not_rebuilt(self.name, row["sender"], error) from error
        return found

    def _wait_for_room(self, call: Call, attempt: Callable[[], Refusal | None]) -> None:
        refusal = self._wait(call, attempt, "put")
        if refusal is not None:
            raise nothing_put(self.name, call, refusal)

    def _wait(self, call: Call, attempt: Callable[[], Refusal | None], side: str) -> Refusal | None:
        """Repeat an attempt until it is not refused, or the time is over; return its last result.

        A longer wait is noted at a side of the queue.
        """

        def tried() -> Refusal | None:
            try:
                return attempt()
            except HeldError as error:
                return Refusal("held", error.pid)

        pause, called = _FIRST_PAUSE_S, time.monotonic()
        while True:
            refusal = tried() if call.around is None else call.around(tried)
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

    def _check_fits(self, call: Call, size: int) -> None:
        """Refuse a message that can never be put."""
        limit = self.member.max_bytes
        if size > limit and self.member.policy != "spill":
            raise ChannelMemoryError(
                f"{call.op}: a message of {size} bytes never fits into the session: "
                f"max_bytes={limit}"
            )

    def _check_open(self, db: sqlite3.Connection, call: Call) -> None:
        """Refuse a put into a closed queue."""
        if self.counters(db)["closed"]:
            raise ChannelClosed(f"{call.op}: {self.name} is closed")

    def _refusal(self, db: sqlite3.Connection, call: Call, size: int = 0) -> Refusal | None:
        """Return why a message has no room in the queue, which must be open; None if it has room.

        The size is 0 if the message is not encoded yet; otherwise `db` is a transaction.
        """
        self._check_open(db, call)
        count, held, *_ = self.counters(db)
        needed = 1 if self.member.overfill else size
        refusal = self._lack(count, held if size else 0, needed, size)
        if refusal is not None and refusal.kind == "bytes":
            self.press(db)
        return refusal

    def _lack(self, count: int, held: int, needed: int, length: int) -> Refusal | None:
        """Return the refusal of a message if so many messages and bytes leave it no room, else None."""
        if count >= self.bound:
            return Refusal("messages" if self.maxsize else "backlog", self.bound, self.bound)
        # A message that is larger than the bound has room when the queue is empty.
        if self.max_bytes and held and held + needed > self.max_bytes:
            return Refusal("bytes", held, self.max_bytes, length)
        return None

    def _memory(self, db: sqlite3.Connection, call: Call, size: int) -> Refusal | int:
        """Return the bytes of memory for a message, 0 if it goes to the spill folder; or why none."""
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
            why = f"{call.op}: {refusal.why()}{_holders(db)}"
            raise refused(ChannelMemoryError(why), refusal)
        if not call.over:  # a put that gives up must not end the wait of gets for more messages
            self.press(db)
        return refusal

    def _memory_for(
        self, db: sqlite3.Connection, call: Call, size: int, reserved: int
    ) -> Refusal | int:
        """Return the bytes of memory for a message to put, which may be reserved; or why none."""
        refusal = self._refusal(db, call, size)
        if refusal is not None:
            return refusal
        if not reserved:
            return self._memory(db, call, size)
        query = "DELETE FROM messages WHERE id = ? AND state = ? RETURNING memory"
        row = db.execute(query, (reserved, RESERVED)).fetchone()
        if row is None:
            raise ShoalValueError("the reservation was put")  # by another thread
        return int(row["memory"])


def open_queue(
    member: Member, key: bytes, maxsize: int | None, max_bytes: int | None, name: str
) -> QueueRow:
    """Open a queue, creating it if it does not exist."""

    def opened(db: sqlite3.Connection) -> QueueRow:
        find = "SELECT id, maxsize, max_bytes FROM queues WHERE key = ?"
        row = db.execute(find, (key,)).fetchone()
        if row is None:
            _make_room(db)
            db.execute(
                "INSERT INTO queues (key, maxsize, max_bytes, closed) "
                "SELECT ?, ?, ?, sealed FROM session",
                (key, maxsize or 0, max_bytes or 0),
            )
            row = db.execute(find, (key,)).fetchone()
        number, *found = row
        given = zip((maxsize, max_bytes), found, strict=True)
        wanted = [has if bound is None else bound for bound, has in given]
        if wanted != found:
            raise ChannelExistsError(
                f"{name} has maxsize={found[0]}, max_bytes={found[1]}, "
                f"not maxsize={wanted[0]}, max_bytes={wanted[1]}"
            )
        used = "INSERT INTO users (queue, participant) VALUES (?, ?) RETURNING id"
        user = db.execute(used, (number, member.me)).fetchone()["id"]
        return QueueRow(member, number, user, name, *found)

    return member.write("queue", opened)


def _make_room(db: sqlite3.Connection) -> None:
    for kept in (_KEPT - 1, 0):
        _forget_unused(db, kept)
        if db.execute("SELECT count(*) FROM queues").fetchone()[0] < _LIMIT:
            return
    raise ChannelMemoryError(
        f"queue: the session has its {_LIMIT} queues already, and cannot have more"
    )


def _forget_unused(db: sqlite3.Connection, kept: int) -> None:
    """Forget the oldest queues that are not in use: not open, empty, not closed, without leases."""
    db.execute(
        "DELETE FROM queues WHERE id IN (SELECT id FROM queues AS q WHERE count = 0 AND closed = 0 "  # noqa: S608  (they are constants)
        "AND NOT EXISTS (SELECT 1 FROM users WHERE queue = q.id) AND NOT EXISTS "
        f"(SELECT 1 FROM messages WHERE queue = q.id AND state = {LEASED}) "
        "ORDER BY id DESC LIMIT -1 OFFSET ?)",
        (kept,),
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


Choose = Callable[[sqlite3.Connection, QueueRow], list[int] | Refusal]


def first(n: int) -> Choose:
    """Choose up to `n` first messages."""

    def choose(db: sqlite3.Connection, queue: QueueRow) -> list[int] | Refusal:
        found = db.execute(f"SELECT id {_WAITING}", (queue.number, n)).fetchall()
        return [row["id"] for row in found] or _EMPTY

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
        if chosen and complete:
            return chosen
        return Refusal("weight", count, needed) if needed else _EMPTY

    return choose


def _put_back(rows: dict[int, sqlite3.Row], db: sqlite3.Connection) -> None:
    """Return messages that were taken to their places in the queue."""
    for number, row in rows.items():
        db.execute("DELETE FROM messages WHERE id = ?", (number,))
        db.execute(f"INSERT INTO messages VALUES ({', '.join('?' * len(row))})", tuple(row))  # noqa: S608  (they are constants)


def _bytes_of(row: sqlite3.Row) -> Memory | bytearray:
    if row["file"] is None:
        return bytearray(row["data"])
    return read_file(Path(row["file"]), row["size"])
