"""Puts messages into a queue, and reserves memory."""

import functools
import os
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shoal._pure.shm.checks import Call, Refusal
from shoal._pure.shm.member import Member
from shoal._pure.shm.payload import LARGE, Payload
from shoal._pure.shm.queue_row import QueueRow
from shoal._pure.shm.tables import QUEUED, RESERVED
from shoal.errors import ChannelFull, ShoalTimeoutError, ShoalValueError

__all__ = ["Claim", "Message", "put", "reserve"]


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


def put(queue: QueueRow, call: Call, made: Message | Callable[[], Message]) -> None:
    """Put a message, waiting for room; if a function makes it, it is called once there is room.

    Raises:
        ShoalError: It could not be put.
    """
    files: list[Path] = []
    messages = [made] if isinstance(made, Message) else []
    for message in messages:
        queue.check_fits(call, message.payload.size)

    def undone() -> None:
        while files:
            files.pop().unlink(missing_ok=True)

    def attempt() -> Refusal | None:
        if not isinstance(made, Message) and not messages:
            refusal = queue.member.read(call.op, lambda db: queue.room(db, call))
            if refusal is not None:
                return refusal
            messages.append(made())
            queue.check_fits(call, messages[0].payload.size)
        insert = functools.partial(_insert, queue, call, messages[0], files)
        return queue.member.write(call.op, insert, undone)

    _wait(queue, call, attempt)
    if messages[0].claim is not None:
        messages[0].claim.ended = "put"


def reserve(queue: QueueRow, call: Call, size: int) -> Claim:
    """Reserve memory, waiting for it.

    Raises:
        ShoalError: There is none in time, or the queue is closed.
    """
    queue.check_fits(call, size)
    member, claims = queue.member, list[Claim]()

    def take(db: sqlite3.Connection) -> Refusal | None:
        queue.check_open(db, call)
        memory = queue.memory(db, call, size)
        if isinstance(memory, Refusal):
            return memory
        number = db.execute(
            "INSERT INTO messages (state, owner, sender, size, memory) VALUES (?, ?, ?, ?, ?) "
            "RETURNING id",
            (RESERVED, member.me, os.getpid(), size, memory),
        ).fetchone()["id"]
        claims.append(Claim(member, number))
        return None

    try:
        _wait(queue, call, lambda: member.write(call.op, take, claims.clear))
    except BaseException:
        for claim in claims:  # a signal came after the memory was reserved
            claim.cancel()
        raise
    return claims[0]


def _insert(
    queue: QueueRow, call: Call, message: Message, files: list[Path], db: sqlite3.Connection
) -> Refusal | None:
    """Insert a message if there is room; a large one is written into a file."""
    payload, claim = message.payload, message.claim
    refusal = queue.room(db, call, payload.size)
    if refusal is not None:
        return refusal
    memory = queue.memory(db, call, payload.size) if claim is None else claim.delete(db)
    if memory is None:
        raise ShoalValueError("the reservation was put")  # by another thread
    if isinstance(memory, Refusal):
        return memory
    if payload.size >= LARGE or memory == 0 < payload.size:
        files.append(queue.member.new_path(spilled=memory == 0))
        payload.write(files[0])
    data, file = (None, str(files[0])) if files else (payload.copied(), None)
    db.execute(
        "INSERT INTO messages (queue, state, sender, kind, weight, size, memory, redelivered, "
        "written, data, file) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
        (
            *(queue.number, QUEUED, message.sender, payload.kind, message.weight, payload.size),
            *(memory, time.monotonic(), data, file),
        ),
    )
    return None


def _wait(queue: QueueRow, call: Call, attempt: Callable[[], Refusal | None]) -> None:
    refusal = queue.wait(call, attempt, "put")
    if refusal is None:
        return
    text = f"{call.op}: no room in {queue.name}"
    if call.op == "put_nowait":
        raise refusal.of(ChannelFull(f"{text}: {refusal.why()}"))
    raise refusal.of(ShoalTimeoutError(f"{text} within {call.seconds:g} s: {refusal.why()}"))
