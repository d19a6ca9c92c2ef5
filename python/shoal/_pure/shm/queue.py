"""`ShmQueue`: one queue of a session, the public class of the pure core; `shm_queues`: all of them."""

import contextlib
import os
import sqlite3
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Self

from shoal._pure.shm.checks import (
    Call,
    Waiting,
    check_queue,
    flag,
    nothing_taken,
    text_or_none,
    weights_for,
    whole,
)
from shoal._pure.shm.folders import TABLES, checked_token
from shoal._pure.shm.lease import leased
from shoal._pure.shm.member import facts_of, remove_files
from shoal._pure.shm.messages import ShmParcel, decode, encode, payload_of
from shoal._pure.shm.queue_row import (
    Choose,
    QueueRow,
    first,
    open_queue,
    up_to_weight,
)
from shoal._pure.shm.reservation import ShmReservation, put_reserved, reserved
from shoal._pure.shm.session import ShmSession, joined
from shoal._pure.shm.tables import LEASED, LOANED, PATIENCE_S, connect, use
from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.problems import listed

__all__ = ["ShmQueue", "shm_queues"]

_STATS: Final = """
    count AS messages, bytes, puts, gets,
    (SELECT count(*) FROM armed WHERE queue = q.id AND side = 'put') AS producers_waiting,
    (SELECT count(*) FROM armed WHERE queue = q.id AND side = 'get') AS consumers_waiting,
    coalesce(? - (SELECT written FROM messages WHERE queue = q.id AND state = 0 ORDER BY id LIMIT 1),
    0.0) AS oldest_s
"""
"""The columns of a queue's statistics, from a row of the table `queues AS q`."""


class ShmQueue:
    """One queue of a session; see `_rust.pyi`."""

    __module__ = "shoal.shm"
    _session: ShmSession
    _row: QueueRow
    _key: bytes
    _pid: int
    _parcels: bool

    def __new__(
        cls,
        session: ShmSession,
        key: bytes,
        maxsize: int | None = None,
        max_bytes: int | None = None,
        name: str = "",
        parcels: bool = False,
    ) -> Self:
        """Open a queue, creating it if it does not exist."""
        if not isinstance(session, ShmSession):
            raise ShoalTypeError(f"session={session!r}: expected a session")
        check_queue(key, maxsize, max_bytes, name)
        flag(parcels, "parcels")
        member = joined(session, "queue")
        self = object.__new__(cls)
        self._session = session
        self._parcels = parcels
        self._key = key
        self._enter(open_queue(member, key, maxsize, max_bytes, name or f"queue {key!r}"))
        return self

    @property
    def maxsize(self) -> int:
        """Maximum number of messages; 0 if the session's backlog is the bound."""
        return self._row.maxsize

    @property
    def max_bytes(self) -> int:
        """Maximum number of bytes of its messages; 0 for no limit of its own."""
        return self._row.max_bytes

    @property
    def name(self) -> str:
        """The queue's name in messages."""
        return self._row.name

    @property
    def closed(self) -> bool:
        """Whether any process closed the queue."""
        return bool(self._counters("closed")["closed"])

    def put(
        self, obj: Any, weight: int = 0, timeout: float | None = None, *, waiting: Waiting = None
    ) -> None:
        """Append an object or a `ShmReservation`, waiting for room."""
        whole(weight, "weight", 0)
        self._put(Call("put", timeout, waiting), obj, weight)

    def put_nowait(self, obj: Any, weight: int = 0) -> None:
        """Append an object if there is room now."""
        whole(weight, "weight", 0)
        self._put(Call("put_nowait", 0), obj, weight)

    def put_many(
        self,
        objs: Iterable[Any],
        weights: Iterable[int] | None = None,
        timeout: float | None = None,
        *,
        waiting: Waiting = None,
    ) -> None:
        """Append objects in their order, waiting for room."""
        done = 0
        try:
            call = Call("put_many", timeout, waiting)
            objs = listed(objs, "objs", "the objects to put")
            self._entered(call.op)
            for obj, weight in zip(objs, weights_for(objs, weights), strict=True):
                self._put(call, obj, weight)
                done += 1
        except Exception as error:
            error.__dict__["done"] = done
            raise

    def get(
        self, timeout: float | None = None, lease: bool = False, *, waiting: Waiting = None
    ) -> Any:
        """Take the first object, waiting for one."""
        return self._take(Call("get", timeout, waiting), first(1), lease=lease)[0]

    def get_nowait(self, lease: bool = False) -> Any:
        """Take the first object if there is one now."""
        return self._take(Call("get_nowait", 0), first(1), lease=lease)[0]

    def get_many(
        self, n: int, timeout: float | None = None, lease: bool = False, *, waiting: Waiting = None
    ) -> list[Any]:
        """Take up to `n` objects, at least one, waiting for the first only."""
        whole(n, "n", 1)
        return self._take(Call("get_many", timeout, waiting), first(n), lease=lease)

    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        lease: bool = False,
        *,
        waiting: Waiting = None,
    ) -> list[Any]:
        """Take objects until their weights add up to `weight`, or to `least`, in one step."""
        whole(weight, "weight", 0)
        if least is not None:
            whole(least, "least", 0)
        call = Call("get_batch", timeout, waiting)
        return self._take(call, up_to_weight(weight, least), lease=lease)

    def displace(self, all: bool = False) -> int:  # noqa: A002  (as in the contract)
        """Drop the oldest message, or with `all` every message, but only if the queue is full."""
        limit = -1 if flag(all, "all") else 1
        row = self._entered("displace")

        def drop(db: sqlite3.Connection) -> list[sqlite3.Row]:
            count, _, closed, _ = row.counters(db)
            if closed or count < row.bound:
                return []
            first = "SELECT id FROM messages WHERE queue = ? AND state = 0 ORDER BY id LIMIT ?"
            query = f"DELETE FROM messages WHERE id IN ({first}) RETURNING file"  # noqa: S608  (it is a constant)
            dropped = db.execute(query, (row.number, limit)).fetchall()
            db.execute("UPDATE session SET dropped = dropped + ?", (len(dropped),))
            return dropped

        return remove_files(row.member.write("displace", drop))

    def reserve(
        self,
        shape: int | Sequence[int],
        dtype: Any,
        timeout: float | None = None,
        *,
        waiting: Waiting = None,
    ) -> ShmReservation:
        """Allocate memory for an array that the caller fills and puts."""
        call = Call("reserve", timeout, waiting)
        return reserved(self._entered(call.op), call, shape, dtype)

    def peek(self, n: int | None = None) -> list[tuple[int, Any]]:
        """Return the weights and copies of the first messages, which stay in the queue."""
        if n is not None:
            whole(n, "n", 0)
        return self._entered("peek").peek(n, self._value)

    def stats(self) -> dict[str, float]:
        """Return how the queue is used."""
        row = self._entered("stats")
        values = (time.monotonic(), row.number)
        query = f"SELECT {_STATS} FROM queues AS q WHERE id = ?"  # noqa: S608  (it is a constant)
        found = row.member.write("stats", lambda db: db.execute(query, values).fetchone())
        return dict(found)

    def qsize(self) -> int:
        """Return the number of messages in the queue; other processes may change it at once."""
        return int(self._counters("qsize")["count"])

    def empty(self) -> bool:
        """Return whether the queue holds no message."""
        return int(self._counters("empty")["count"]) == 0

    def full(self) -> bool:
        """Return whether a put would have to wait until a message is taken."""
        return self._entered("full").why_full(0) is not None

    def tell_no_room(self) -> None:
        """Report that a put waits for memory, so that no get waits for more than can come."""
        row = self._entered("tell_no_room")
        row.member.write_soon("tell_no_room", row.press)

    def close(self) -> None:
        """Refuse further puts in all processes; messages can still be taken. Idempotent."""
        row = self._entered("close")
        query = "UPDATE queues SET closed = 1 WHERE id = ?"
        row.member.write("close", lambda db: db.execute(query, (row.number,)))

    def fileno(self) -> int:
        """Return the doorbell of this process and session: readable after an armed event."""
        return self._entered("fileno").member.bell("fileno")

    def clear_bell(self) -> None:
        """Make the doorbell unreadable until it is rung again."""
        bell = self._entered("clear_bell").member.bell("clear_bell")
        with contextlib.suppress(BlockingIOError):
            while os.read(bell, 4096):
                pass

    def arm(self, side: Literal["get", "put"]) -> None:
        """Have the doorbell rung once when this side may succeed, or when the queue is closed."""
        if side not in ("get", "put"):
            raise ShoalValueError(f"side={side!r}: expected 'get' or 'put'")
        row = self._entered("arm")
        row.member.arm("arm", row.number, side)
        row.member.sweep_when_due()

    def _enter(self, row: QueueRow) -> None:
        self._row, self._pid = row, os.getpid()
        weakref.finalize(self, row.let_go).atexit = False

    def _entered(self, op: str) -> QueueRow:
        """Return the queue's row for an operation of this process."""
        member = joined(self._session, op)
        row = self._row
        if self._pid != os.getpid():
            # This is a forked child, for which the inherited object is not counted yet. The parent
            # may have released the queue, so this may create it again.
            self._enter(open_queue(member, self._key, row.maxsize, row.max_bytes, row.name))
        return self._row

    def _counters(self, op: str) -> Any:
        row = self._entered(op)
        return row.member.read(op, row.counters)

    def _put(self, call: Call, obj: Any, weight: int) -> None:
        row = self._entered(call.op)
        if isinstance(obj, ShmReservation):
            put_reserved(row, call, obj, weight)
        elif isinstance(obj, ShmParcel):
            row.put(call, payload_of(obj), weight, obj.sender)
        else:
            row.put(call, lambda: encode(obj), weight, os.getpid())

    def _take(self, call: Call, choose: Choose, *, lease: bool) -> list[Any]:
        flag(lease, "lease")
        row = self._entered(call.op)

        def made(message: sqlite3.Row, memory: Any) -> Any:
            value = self._value(message, memory)
            return leased(row.member, self._session, message, value) if lease else value

        result, refusal = row.take(call, choose, made, LEASED if lease else LOANED)
        if result:
            return result
        raise nothing_taken(row.name, call, refusal)

    def _value(self, message: sqlite3.Row, memory: Any) -> Any:
        """Return the object of a message, or its parcel."""
        if self._parcels:
            return ShmParcel(message["kind"], memory, message["sender"])
        return decode(message["kind"], memoryview(memory))


def shm_queues(token: str) -> list[dict[str, Any]]:
    """Return the queues of a session and how they are used, without taking part in it."""
    if text_or_none(token, "token") is None:
        raise ShoalTypeError("token=None: expected a str")
    folder = checked_token(token)
    query = f"SELECT key, maxsize, closed, {_STATS} FROM queues AS q ORDER BY id"  # noqa: S608  (it is a constant)

    def listed() -> list[dict[str, Any]]:
        with contextlib.closing(connect(folder / TABLES)) as db:
            facts_of(folder, db)
            found = [dict(row) for row in db.execute(query, (time.monotonic(),))]
        return [{**row, "closed": bool(row["closed"])} for row in found]

    # Not as patient as a participant: a process that is stopped may hold the tables.
    return use(folder / TABLES, listed, PATIENCE_S)
