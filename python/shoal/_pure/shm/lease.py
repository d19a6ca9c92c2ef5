"""`ShmMessage`: a leased message; and `Lease`, its base, which messages of other nodes have too."""

import functools
import os
import sqlite3
from collections.abc import Callable
from typing import Any, NoReturn, Self, final

from shoal._pure.shm.member import Member, remove_files, requeue
from shoal._pure.shm.tables import LEASED
from shoal.errors import ShoalValueError

__all__ = ["Lease", "ShmMessage", "leased"]


class Lease:
    """A message on lease."""

    __slots__ = ("_end", "_ended", "_pid", "_redelivered", "_value", "_weight")
    _end: Callable[[str], object] | None
    _ended: str
    _pid: int
    _redelivered: bool
    _value: Any
    _weight: int

    def __init__(self) -> None:
        name = type(self).__name__
        raise TypeError(f"cannot create '{self.__module__}.{name}' instances")

    @classmethod
    def _of(cls, value: Any, weight: int, redelivered: Any, end: Callable[[str], object]) -> Self:
        """Create the message of an object; `end` ends the lease, by the name of a method."""
        self = object.__new__(cls)
        self._value, self._weight, self._redelivered = value, weight, bool(redelivered)
        self._end, self._ended, self._pid = end, "", os.getpid()
        return self

    @property
    def value(self) -> Any:
        """The object."""
        if self._ended == "give_back":
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
        self._finish("ack")

    def give_back(self) -> None:
        """Return the message to the end of its queue; any consumer gets it. Idempotent."""
        self._finish("give_back")

    def _finish(self, op: str) -> None:
        end = self._end
        if end is None:
            return
        if os.getpid() != self._pid:
            raise ShoalValueError(
                f"{op}: the message was leased by process {self._pid}, not by this one"
            )
        end(op)
        self._ended, self._end = op, None


@final
class ShmMessage(Lease):
    """A leased message: it is delivered again if its consumer dies before `ack`.

    As a context manager it acknowledges on a clean exit. After an exception, or if it is dropped
    without `ack`, it stays leased until this process ends or leaves the session.
    """

    __slots__ = ()
    __module__ = "shoal.shm"

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
    end = functools.partial(_end, member, (row["id"], LEASED, member.me), session)
    return ShmMessage._of(value, row["weight"], row["redelivered"], end)  # noqa: SLF001  (its constructor)


def _end(member: Member, mine: tuple[int, int, int], _session: object, op: str) -> None:
    query = "FROM messages WHERE id = ? AND state = ? AND owner = ?"

    def end(db: sqlite3.Connection) -> list[sqlite3.Row]:
        if op == "ack":
            return db.execute(f"DELETE {query} RETURNING file", mine).fetchall()
        if db.execute(f"SELECT 1 {query}", mine).fetchone() is not None:
            requeue(db, mine[0])
        return []

    remove_files(member.write(op, end))
