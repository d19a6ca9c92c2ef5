"""Puts messages into a queue, and reserves memory."""

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal._pure.shm.checks import Limit
from shoal._pure.shm.member import PATIENCE_S, Member
from shoal._pure.shm.payload import LARGE, Payload, write_file
from shoal._pure.shm.queue_row import QueueRow
from shoal._pure.shm.refusal import Refusal
from shoal._pure.shm.schema import QUEUED, RESERVED
from shoal.errors import ChannelFull, ShoalError, ShoalTimeoutError, ShoalValueError

__all__ = ["Claim", "Message", "Putting"]


@dataclass(slots=True)
class Claim:
    """Memory that is reserved for a message.

    Attributes:
        member: The process that reserved it.
        number: The id of its row.
        pid: The pid of that process; differs in a forked child.
        ended: `put` or `cancelled`; empty before.
    """

    member: Member
    number: int
    pid: int = field(default_factory=os.getpid)
    ended: str = ""

    def check(self) -> None:
        """Refuse to use memory that was put or given back."""
        if self.ended:
            raise ShoalValueError(f"the reservation was {self.ended}")

    def cancel(self) -> None:
        """Release the memory, now or soon; finalizers can call this."""
        if not self.ended and self.pid == os.getpid():
            self.ended = "cancelled"
            self.member.later(self.delete)

    def delete(self, db: sqlite3.Connection) -> int | None:
        """Remove the row; return the number of bytes that it reserved, None if it is gone."""
        row = db.execute(
            "DELETE FROM messages WHERE id = ? AND state = ? AND owner = ? RETURNING memory",
            (self.number, RESERVED, self.member.me),
        ).fetchone()
        return None if row is None else int(row["memory"])


@dataclass(frozen=True, slots=True)
class Message:
    """A message to put.

    Attributes:
        payload: The encoded object.
        weight: The weight of the message.
        claim: The memory of the message, if it is a reservation.
        sender: The pid of the process that encoded it; another process for a parcel passed on.
    """

    payload: Payload
    weight: int
    claim: Claim | None = None
    sender: int = field(default_factory=os.getpid)


class Putting:
    """One call that puts messages or reserves memory.

    Args:
        queue: The queue.
        op: The operation, for messages.
        limit: The time limit.
        waiting: Called every now and then while the call waits.
        waits: Whether the operation is one that waits; decides the error for missing room.
    """

    def __init__(
        self,
        queue: QueueRow,
        op: str,
        limit: Limit,
        waiting: Callable[[], object] | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self._queue = queue
        self._member = queue.member
        self._op = op
        self._limit = limit
        self._waiting = waiting
        self._waits = waits

    def wait_for_room(self) -> None:
        """Wait until the queue has room for a message that is not encoded yet."""
        self._wait(lambda: self._member.read(self._op, lambda db: self._queue.room(db, self._op)))

    def put(self, message: Message) -> None:
        """Put a message, waiting for room."""
        self._queue.check_fits(self._op, message.payload.size)
        if message.claim is not None:
            message.claim.check()
        files: list[Path] = []

        def undone() -> None:
            while files:
                files.pop().unlink(missing_ok=True)

        def attempt() -> Refusal | None:
            return self._member.write(
                self._op, lambda db: self._insert(db, message, files), PATIENCE_S, undone
            )

        self._wait(attempt)
        if message.claim is not None:
            message.claim.ended = "put"

    def reserve(self, size: int) -> Claim:
        """Reserve memory, waiting for it."""
        self._queue.check_fits(self._op, size)
        claims: list[Claim] = []

        def reserve(db: sqlite3.Connection) -> Refusal | None:
            self._queue.check_open(db, self._op)
            memory = self._memory(db, size)
            if isinstance(memory, Refusal):
                return memory
            number = db.execute(
                "INSERT INTO messages (state, owner, sender, size, memory) VALUES (?, ?, ?, ?, ?) "
                "RETURNING id",
                (RESERVED, self._member.me, os.getpid(), size, memory),
            ).fetchone()["id"]
            claims.append(Claim(self._member, number))
            return None

        try:
            self._wait(lambda: self._member.write(self._op, reserve, PATIENCE_S, claims.clear))
        except BaseException:
            for claim in claims:  # a signal came after the memory was reserved
                claim.cancel()
            raise
        return claims[0]

    def _insert(
        self, db: sqlite3.Connection, message: Message, files: list[Path]
    ) -> Refusal | None:
        """Insert a message if there is room; a large one is written into a file."""
        size, claim = message.payload.size, message.claim
        refusal = self._queue.room(db, self._op, size)
        if refusal is not None:
            return refusal
        memory = self._memory(db, size) if claim is None else claim.delete(db)
        if memory is None:
            raise ShoalValueError("the reservation was put")  # by another thread
        if isinstance(memory, Refusal):
            return memory
        if size >= LARGE or memory == 0 < size:
            files.append(self._member.new_path(spilled=memory == 0))
            write_file(files[-1], message.payload)
        values: dict[str, Any] = {
            "queue": self._queue.number,
            "state": QUEUED,
            "sender": message.sender,
            "weight": message.weight,
            "size": size,
            "memory": memory,
            "redelivered": 0,
            "written": time.monotonic(),
            "data": None if files else message.payload.copied(),
            "file": str(files[-1]) if files else None,
        }
        marks = ", ".join("?" * len(values))
        db.execute(
            f"INSERT INTO messages ({', '.join(values)}) VALUES ({marks})",  # noqa: S608  (they are constants)
            tuple(values.values()),
        )
        return None

    def _memory(self, db: sqlite3.Connection, size: int) -> Refusal | int:
        """Return the number of bytes of memory for a message: 0 if it goes to the spill folder."""
        refusal = self._queue.memory(db, self._op, size, last=self._limit.over)
        if refusal is not None and self._member.facts.policy == "spill":
            return 0
        return size if refusal is None else refusal

    def _wait(self, attempt: Callable[[], Refusal | None]) -> None:
        """Repeat an attempt until it is not refused.

        Raises:
            ShoalError: There is no room in time, or the queue is closed.
        """
        at = (self._queue.number, "put")
        refusal = self._member.wait(self._op, self._limit, attempt, at, self._waiting)
        if refusal is None:
            return
        text = f"{self._op}: no room in {self._queue.name}"
        error: ShoalError
        if self._waits:
            error = ShoalTimeoutError(f"{text} within {self._limit.seconds:g} s: {refusal.why()}")
        else:
            error = ChannelFull(f"{text}: {refusal.why()}")
        raise refusal.of(error)
