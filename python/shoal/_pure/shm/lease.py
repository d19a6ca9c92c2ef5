"""`ShmMessage`: a leased message."""

import os
import sqlite3
from typing import Any, NoReturn, Self, final

from shoal._pure.shm.member import Member, remove_files, requeue
from shoal._pure.shm.tables import LEASED
from shoal.errors import ShoalValueError

__all__ = ["ShmMessage", "leased"]


@final
class ShmMessage:
    """A leased message: it is delivered again if its consumer dies before `ack`.

    As a context manager it acknowledges on a clean exit. After an exception, or if it is dropped
    without `ack`, it stays leased until this process ends or leaves the session.
    """

    __slots__ = ("_ended", "_member", "_pid", "_row", "_session", "_value")
    __module__ = "shoal.shm"
    _member: Member
    _pid: int
    _row: sqlite3.Row
    _session: object
    _value: Any
    _ended: str

    def __init__(self) -> None:
        raise TypeError("cannot create 'shoal.shm.ShmMessage' instances")

    @property
    def value(self) -> Any:
        """The object."""
        if self._ended == "give_back":
            raise ShoalValueError("the message was given back")
        return self._value

    @property
    def redelivered(self) -> bool:
        """Whether a previous consumer gave it back, died or left the session without `ack`."""
        return bool(self._row["redelivered"])

    @property
    def weight(self) -> int:
        """Its weight in a batch."""
        return int(self._row["weight"])

    def ack(self) -> None:
        """Acknowledge the message, which ends the lease. Idempotent. `value` stays valid."""
        self._end("ack")

    def give_back(self) -> None:
        """Return the message to the end of its queue; any consumer gets it. Idempotent."""
        self._end("give_back")

    def _end(self, op: str) -> None:
        if self._ended:
            return
        if os.getpid() != self._pid:
            raise ShoalValueError(
                f"{op}: the message was leased by process {self._pid}, not by this one"
            )

        mine = (self._row["id"], LEASED, self._member.me)
        query = "FROM messages WHERE id = ? AND state = ? AND owner = ?"

        def end(db: sqlite3.Connection) -> list[sqlite3.Row]:
            if op == "ack":
                return db.execute(f"DELETE {query} RETURNING file", mine).fetchall()
            if db.execute(f"SELECT 1 {query}", mine).fetchone() is not None:
                requeue(db, mine[0])
            return []

        remove_files(self._member.write(op, end))
        self._ended, self._session = op, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.ack()

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'shoal.shm.ShmMessage' object")


def leased(member: Member, session: object, row: sqlite3.Row, value: Any) -> ShmMessage:
    """Create the message of a row that this process has leased.

    The lease keeps the session's object alive: with the last one the process would leave the
    session, and the message would be delivered again.
    """
    message = object.__new__(ShmMessage)
    message._member, message._session, message._pid = member, session, os.getpid()
    message._row, message._value, message._ended = row, value, ""
    return message
