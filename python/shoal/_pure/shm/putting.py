"""Puts messages into a queue, and reserves memory.

A small message is one row, inserted when there is room. A large one first reserves memory, is then
written into a file, and enters the queue when there is room for it.
"""

import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shoal._pure.shm.checks import Limit
from shoal._pure.shm.doorbell import Side
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
        path: Its file.
        pid: The pid of that process; differs in a forked child.
        ended: `put` or `cancelled`; empty before.
    """

    member: Member
    number: int
    path: Path
    pid: int = field(default_factory=os.getpid)
    ended: str = ""

    def check(self) -> None:
        """Refuse to use memory that was put or given back.

        Raises:
            ShoalValueError: It was.
        """
        if self.ended:
            raise ShoalValueError(f"the reservation was {self.ended}")

    def give_up(self) -> None:
        """Release the memory, now or soon; finalizers can call this."""
        if self.ended or self.pid != os.getpid():
            return
        self.ended = "cancelled"

        def delete(db: sqlite3.Connection) -> None:
            if self.delete(db) is not None:
                self.path.unlink(missing_ok=True)
                self.member.bell.due(db, "put")

        self.member.later(delete)

    def delete(self, db: sqlite3.Connection) -> int | None:
        """Remove the row; return the number of bytes that it reserved, None if it is gone."""
        found = db.execute(
            "DELETE FROM messages WHERE id = ? AND state = ? AND file = ? RETURNING memory",
            (self.number, RESERVED, str(self.path)),
        ).fetchone()
        return None if found is None else int(found[0])


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
        waits: Whether the operation is one that waits; decides the error for missing room.
        waiting: Called every now and then while the call waits.
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
        """Wait until the queue has room for a message that is not encoded yet.

        Raises:
            ShoalError: There is no room in time, or the queue is closed.
        """
        self._wait(lambda: self._member.read(self._op, lambda db: self._queue.room(db, self._op)))

    def put(self, message: Message) -> None:
        """Put a message, waiting for room.

        Raises:
            ShoalError: It could not be put.
        """
        size, claim = message.payload.size, message.claim
        self._queue.check_fits(self._op, size)
        if claim is not None:
            claim.check()
        if size >= LARGE or not self._write(partial(self._insert, message)):
            self._put_large(message, claim or self._reserved(size, queued=True))
        if claim is not None:
            claim.ended = "put"

    def reserve(self, size: int) -> Claim:
        """Reserve memory, waiting for it.

        Raises:
            ShoalError: There is none in time, or the queue is closed.
        """
        self._queue.check_fits(self._op, size)
        return self._reserved(size, queued=False)

    def _put_large(self, message: Message, claim: Claim) -> None:
        try:
            write_file(claim.path, message.payload)
            self._write(partial(self._publish, message, claim))
        except BaseException:
            if message.claim is None:
                claim.give_up()
            raise

    def _reserved(self, size: int, *, queued: bool) -> Claim:
        """Reserve memory: for a message that is put at once if `queued`."""
        made: list[Claim] = []

        def reserve(db: sqlite3.Connection) -> Refusal | None:
            refusal = self._queue.room(db, self._op, size if queued else None)
            if not queued:
                refusal = None  # a reservation needs room at its put only
            spilled = False
            if refusal is None:
                refusal = self._memory(db, size)
                spilled = refusal is not None and self._member.facts.policy == "spill"
            if refusal is not None and not spilled:
                return refusal
            path = self._member.new_path(spilled=spilled)
            number = db.execute(
                "INSERT INTO messages (state, owner, sender, size, memory, file) "
                "VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
                (
                    RESERVED,
                    self._member.me,
                    os.getpid(),
                    size,
                    0 if spilled else size,
                    str(path),
                ),
            ).fetchone()[0]
            made.append(Claim(self._member, number, path))
            return None

        try:
            self._write(reserve)
        except BaseException:
            for claim in made:  # a signal came after the memory was reserved
                claim.give_up()
            raise
        return made[-1]

    def _insert(self, message: Message, db: sqlite3.Connection) -> Refusal | bool:
        """Insert a small message; return False if it must go into a file."""
        size = message.payload.size
        refusal = self._queue.room(db, self._op, size)
        if refusal is not None:
            return refusal
        if message.claim is not None:
            _deleted(message.claim, db)
        else:
            refusal = self._memory(db, size)
            if refusal is not None:
                return False if self._member.facts.policy == "spill" else refusal
        self._append(message, size, message.payload.copied(), None, db)
        return True

    def _publish(self, message: Message, claim: Claim, db: sqlite3.Connection) -> Refusal | None:
        refusal = self._queue.room(db, self._op, message.payload.size)
        if refusal is not None:
            return refusal
        self._append(message, _deleted(claim, db), None, str(claim.path), db)
        return None

    def _append(
        self,
        message: Message,
        memory: int,
        data: bytearray | None,
        file: str | None,
        db: sqlite3.Connection,
    ) -> None:
        values: dict[str, Any] = {
            "queue": self._queue.number,
            "state": QUEUED,
            "sender": message.sender,
            "weight": message.weight,
            "size": message.payload.size,
            "memory": memory,
            "redelivered": 0,
            "written": time.monotonic(),
            "data": data,
            "file": file,
        }
        marks = ", ".join("?" * len(values))
        db.execute(
            f"INSERT INTO messages ({', '.join(values)}) VALUES ({marks})",  # noqa: S608  (they are constants)
            tuple(values.values()),
        )
        self._member.bell.due(db, "get", self._queue.number)

    def _memory(self, db: sqlite3.Connection, size: int) -> Refusal | None:
        return self._queue.memory(db, self._op, size, last=self._limit.over)

    def _write(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        return self._wait(lambda: self._member.write(self._op, work, PATIENCE_S))

    def _wait(self, attempt: Callable[[], Any]) -> Any:
        at: tuple[int, Side] = (self._queue.number, "put")
        result = self._member.wait(self._op, self._limit, attempt, at, self._waiting)
        if isinstance(result, Refusal):
            raise result.of(self._no_room(result.why()))
        return result

    def _no_room(self, why: str) -> ShoalError:
        start = f"{self._op}: no room in {self._queue.name}"
        if not self._waits:
            return ChannelFull(f"{start}: {why}")
        return ShoalTimeoutError(f"{start} within {self._limit.seconds:g} s: {why}")


def _deleted(claim: Claim, db: sqlite3.Connection) -> int:
    memory = claim.delete(db)
    if memory is None:  # another thread has put it meanwhile
        raise ShoalValueError("the reservation was put")
    return memory
