"""Puts messages into a queue, and reserves memory."""

import functools
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from shoal._pure.shm.checks import Call, Refusal
from shoal._pure.shm.payload import LARGE, Payload
from shoal._pure.shm.queue_row import QueueRow
from shoal._pure.shm.tables import QUEUED, RESERVED
from shoal.errors import ChannelFull, ShoalTimeoutError, ShoalValueError

__all__ = ["Message", "put", "reserve"]


class Message(NamedTuple):
    """A message to put.

    Attributes:
        payload: The encoded object.
        weight: The weight of the message.
        sender: The pid of the process that encoded it; another process for a parcel passed on.
        reserved: The id of the row that reserves its memory, or 0.
    """

    payload: Payload
    weight: int
    sender: int
    reserved: int = 0


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


def reserve(queue: QueueRow, call: Call, size: int) -> int:
    """Reserve memory, waiting for it; return the id of its row.

    Raises:
        ShoalError: There is none in time, or the queue is closed.
    """
    queue.check_fits(call, size)
    member, made = queue.member, list[int]()

    def take(db: sqlite3.Connection) -> Refusal | None:
        queue.check_open(db, call)
        memory = queue.memory(db, call, size)
        if isinstance(memory, Refusal):
            return memory
        row = (RESERVED, member.me, os.getpid(), size, memory)
        query = "INSERT INTO messages (state, owner, sender, size, memory) VALUES (?, ?, ?, ?, ?)"
        made.append(db.execute(f"{query} RETURNING id", row).fetchone()["id"])
        return None

    try:
        _wait(queue, call, lambda: member.write(call.op, take, made.clear))
    except BaseException:
        for number in made:  # a signal came after the memory was reserved
            member.forget(number)
        raise
    return made[0]


def _insert(
    queue: QueueRow, call: Call, message: Message, files: list[Path], db: sqlite3.Connection
) -> Refusal | None:
    """Insert a message if there is room; a large one is written into a file."""
    payload = message.payload
    refusal = queue.room(db, call, payload.size)
    if refusal is not None:
        return refusal
    if message.reserved:
        query = "DELETE FROM messages WHERE id = ? AND state = ? RETURNING memory"
        row = db.execute(query, (message.reserved, RESERVED)).fetchone()
        if row is None:
            raise ShoalValueError("the reservation was put")  # by another thread
        memory = row["memory"]
    else:
        memory = queue.memory(db, call, payload.size)
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
