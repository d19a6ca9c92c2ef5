"""`ShmMessage`: a leased message."""

import os
import sqlite3
from pathlib import Path
from typing import Any, NoReturn, Self, final

from shoal._pure.shm.member import Member, requeue
from shoal._pure.shm.tables import LEASED
from shoal.errors import ShoalValueError

__all__ = ["ShmMessage", "leased"]


@final
class ShmMessage:
    """A leased message: it is delivered again if its consumer dies before `ack`.

    As a context manager it acknowledges on a clean exit. After an exception, or if it is dropped
    without `ack`, it stays leased until this process ends or leaves the session.
    """

    __slots__ = (
        "_given_back", "_member", "_pid", "_redelivered", "_row", "_session", "_value", "_weight",
    )  # fmt: skip
    __module__ = "shoal.shm"
    _member: Member
    _pid: int
    _row: sqlite3.Row | None
    _session: object
    _value: Any
    _redelivered: bool
    _weight: int
    _given_back: bool

    def __init__(self) -> None:
        raise TypeError("cannot create 'shoal.shm.ShmMessage' instances")

    @property
    def value(self) -> Any:
        """The object."""
        if self._given_back:
            raise ShoalValueError("the message was given back")
        return self._value

    @property
    def redelivered(self) -> bool:
        """Whether a previous consumer gave it back, died or left the session without `ack`."""
        return self._redelivered

    @property
    def weight(self) -> int:
        """Its weight in a batch."""
        return self._weight

    def ack(self) -> None:
        """Acknowledge the message, which ends the lease. Idempotent. `value` stays valid."""
        self._end("ack")

    def give_back(self) -> None:
        """Return the message to the end of its queue; any consumer gets it. Idempotent."""
        if self._end("give_back"):
            self._given_back = True

    def _end(self, op: str) -> bool:
        """End the lease; return False if it has ended before."""
        row, member = self._row, self._member
        if row is None:
            return False
        if os.getpid() != self._pid:
            raise ShoalValueError(
                f"{op}: the message was leased by process {self._pid}, not by this one"
            )
        number, file = row["id"], row["file"]

        def end(db: sqlite3.Connection) -> None:
            mine = db.execute(
                "SELECT 1 FROM messages WHERE id = ? AND state = ? AND owner = ?",
                (number, LEASED, member.me),
            ).fetchone()
            if mine is not None and op == "give_back":
                requeue(db, number)
            elif mine is not None:
                db.execute("DELETE FROM messages WHERE id = ?", (number,))

        member.write(op, end)
        self._row = self._session = None
        if op == "ack" and file is not None:
            Path(file).unlink(missing_ok=True)
        return True

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
    message._member = member
    message._session = session
    message._pid = os.getpid()
    message._row = row
    message._value = value
    message._redelivered = bool(row["redelivered"])
    message._weight = row["weight"]
    message._given_back = False
    return message
