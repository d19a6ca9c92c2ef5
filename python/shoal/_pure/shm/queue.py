"""A queue as its users hold it."""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Self, overload

from shoal._pure.shm.checks import Limit, flag, weights_for, whole
from shoal._pure.shm.encoding import encode
from shoal._pure.shm.held import (
    ShmMessage,
    ShmReservation,
    item_of,
    leased,
    reserved,
    was_put,
)
from shoal._pure.shm.member import Member, NotYet
from shoal._pure.shm.place import Place
from shoal._pure.shm.sending import Item, Sending, already_put
from shoal._pure.shm.session import ShmSession, joined
from shoal._pure.shm.taking import Choice, Taking, first, up_to_weight
from shoal.errors import (
    ChannelDecodeError,
    ChannelEmpty,
    ChannelExistsError,
    ShoalError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)

__all__ = ["ShmQueue"]

_LONGEST_KEY: Final = 65_535
_LARGEST_MAXSIZE: Final = 2**20
_SIDES: Final = ("get", "put")


class ShmQueue:
    """One queue of a session; see `_rust.pyi`."""

    __module__ = "shoal.shm"
    _session: ShmSession
    _place: Place
    _failed: ChannelDecodeError | None

    def __new__(
        cls,
        session: ShmSession,
        key: bytes,
        maxsize: int | None = None,
        max_bytes: int | None = None,
        name: str = "",
    ) -> Self:
        """Open a queue, which is made where it does not exist."""
        if not isinstance(session, ShmSession):
            raise ShoalTypeError(f"session={session!r}: expected a session")
        if not isinstance(key, bytes):
            raise ShoalTypeError(f"key={key!r}: expected bytes")
        if not 1 <= len(key) <= _LONGEST_KEY:
            raise ShoalValueError(f"key: expected 1 to {_LONGEST_KEY} bytes, got {len(key)}")
        if maxsize is not None:
            whole(maxsize, "maxsize", 0, _LARGEST_MAXSIZE)
        if max_bytes is not None:
            whole(max_bytes, "max_bytes", 0)
        if not isinstance(name, str):
            raise ShoalTypeError(f"name={name!r}: expected a str")
        member = joined(session, "queue")
        self = object.__new__(cls)
        self._session = session
        self._failed = None
        self._place = _open(member, key, maxsize, max_bytes, name or repr(key))
        return self

    @property
    def maxsize(self) -> int:
        """The most messages that it may hold, 0 where the session's backlog bounds it."""
        return self._place.maxsize

    @property
    def max_bytes(self) -> int:
        """The most bytes that its messages may have, 0 for no limit of its own."""
        return self._place.max_bytes

    @property
    def name(self) -> str:
        """The key as messages show it."""
        return self._place.name

    @property
    def closed(self) -> bool:
        """Whether it was closed, by any process."""
        return self._ask("closed")[2]

    def put(self, obj: Any, weight: int = 0, timeout: float | None = None) -> None:
        """Append an object, or what `reserve` returned, waiting for room."""
        self._put("put", obj, weight, Limit(timeout), waits=True)

    def put_nowait(self, obj: Any, weight: int = 0) -> None:
        """Append an object if there is room now."""
        self._put("put_nowait", obj, weight, Limit(0), waits=False)

    def put_many(
        self,
        objs: Iterable[Any],
        weights: Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Append objects in their order, waiting for room where there is none."""
        try:
            self._put_all(list(objs), weights, Limit(timeout))
        except ShoalError as error:
            error.__dict__.setdefault("done", 0)
            raise

    @overload
    def get(self, timeout: float | None = None, lease: Literal[False] = False) -> Any: ...
    @overload
    def get(self, timeout: float | None = None, *, lease: Literal[True]) -> ShmMessage: ...
    def get(self, timeout: float | None = None, lease: bool = False) -> Any:
        """Take the first object, waiting for one."""
        limit = Limit(timeout)
        return self._take("get", first(1), limit, lease=flag(lease, "lease"))[0]

    @overload
    def get_nowait(self, lease: Literal[False] = False) -> Any: ...
    @overload
    def get_nowait(self, lease: Literal[True]) -> ShmMessage: ...
    def get_nowait(self, lease: bool = False) -> Any:
        """Take the first object if there is one now."""
        return self._take("get_nowait", first(1), Limit(0), lease=flag(lease, "lease"))[0]

    def get_many(self, n: int, timeout: float | None = None) -> list[Any]:
        """Take up to `n` objects, at least one, waiting for the first only."""
        whole(n, "n", 1)
        return self._take("get_many", first(n), Limit(timeout))

    def get_batch(self, weight: int, timeout: float | None = None) -> list[Any]:
        """Take objects until their weights add up to `weight`, in one step."""
        whole(weight, "weight", 0)
        return self._take("get_batch", up_to_weight(weight), Limit(timeout), weight=weight)

    def reserve(
        self, shape: int | Sequence[int], dtype: Any, timeout: float | None = None
    ) -> ShmReservation:
        """Take memory for an array that is made in place and put without a copy."""
        limit = Limit(timeout)
        self._member("reserve")
        return reserved(self._place, shape, dtype, limit)

    def qsize(self) -> int:
        """Return how many messages wait; others may change that at once."""
        return self._ask("qsize")[0]

    def empty(self) -> bool:
        """Return whether no message waits."""
        return self._ask("empty")[0] == 0

    def full(self) -> bool:
        """Return whether a put would have to wait for a message to be taken."""
        count, held, closed = self._ask("full")
        return not closed and (count >= self._place.bound or 0 < self._place.max_bytes <= held)

    def close(self) -> None:
        """Refuse further puts everywhere; what it holds can still be taken. Again is nothing."""
        number = self._place.number

        def shut(db: sqlite3.Connection) -> None:
            db.execute("UPDATE queues SET closed = 1 WHERE id = ? AND closed = 0", (number,))
            for side in _SIDES:
                member.due(db, side, number)

        member = self._member("close")
        member.write("close", shut)

    def fileno(self) -> int:
        """Return the doorbell of this process and session: readable once something it armed came."""
        return self._member("fileno").bell().descriptor

    def clear_bell(self) -> None:
        """Make the doorbell unreadable until it is rung again."""
        self._member("clear_bell").bell().clear()

    def arm(self, side: Literal["get", "put"]) -> None:
        """Ask to be rung when a message (`get`) or room and memory (`put`) may have come, or a close."""
        if side not in _SIDES:
            raise ShoalValueError(f"side={side!r}: expected 'get' or 'put'")
        member = self._member("arm")
        member.bell()
        member.write(
            "arm",
            lambda db: db.execute(
                "INSERT OR IGNORE INTO armed (participant, queue, side) VALUES (?, ?, ?)",
                (member.me, self._place.number, side),
            ),
        )
        member.sweep_when_due()

    def _member(self, op: str) -> Member:
        return joined(self._session, op)

    def _put(self, op: str, obj: Any, weight: int, limit: Limit, *, waits: bool) -> None:
        whole(weight, "weight", 0)
        item = _item(self._member(op), obj, weight)
        Sending(self._place, op, [item], limit, waits=waits).run()
        if isinstance(obj, ShmReservation):
            was_put(obj, item)

    def _put_all(self, objs: list[Any], weights: Iterable[int] | None, limit: Limit) -> None:
        member = self._member("put_many")
        items = [
            _item(member, obj, weight)
            for obj, weight in zip(objs, weights_for(objs, weights), strict=True)
        ]
        end = _before_second(objs)
        sending = Sending(self._place, "put_many", items[:end], limit)
        try:
            sending.run()
        finally:
            for obj, item in zip(objs[: sending.done], items, strict=False):
                if isinstance(obj, ShmReservation):
                    was_put(obj, item)
        if end < len(objs):
            error = already_put()
            error.__dict__["done"] = end
            raise error

    def _take(
        self,
        op: str,
        choice: Choice,
        limit: Limit,
        *,
        lease: bool = False,
        weight: int | None = None,
    ) -> list[Any]:
        member = self._member(op)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        taking = Taking(self._place, op, choice, lease=lease)
        result: list[Any] | None = None
        try:
            taken = taking.run(limit)
            if not isinstance(taken, NotYet):
                result = [leased(member, row, value) if lease else value for row, value in taken]
                self._failed = taking.failed if result else None
        except BaseException:
            taking.put_back()
            raise
        # Signals come in at calls; there is none between here and the caller.
        if result:
            return result
        raise taking.failed or self._nothing(op, limit, weight, taken)

    def _nothing(self, op: str, limit: Limit, weight: int | None, why: Any) -> Exception:
        queue = f"queue {self.name}"
        if op == "get_nowait":
            return ChannelEmpty(f"{op}: {queue} is empty")
        if weight is not None:
            return ShoalTimeoutError(
                f"{op}: {queue} did not reach weight {weight} within {limit.seconds:g} s: {why.why}"
            )
        return ShoalTimeoutError(f"{op}: no message in {queue} within {limit.seconds:g} s")

    def _ask(self, op: str) -> tuple[int, int, bool]:
        """How many messages it holds, how many bytes they have, and whether it is closed."""
        member, number = self._member(op), self._place.number
        count, held, closed = member.read(
            op,
            lambda db: db.execute(
                "SELECT count, bytes, closed FROM queues WHERE id = ?", (number,)
            ).fetchone(),
        )
        return count, held, bool(closed)


def _before_second(objs: list[Any]) -> int:
    """How many objects come before a reservation that is among them already."""
    seen: set[int] = set()
    for index, obj in enumerate(objs):
        if isinstance(obj, ShmReservation):
            if id(obj) in seen:
                return index
            seen.add(id(obj))
    return len(objs)


def _item(member: Member, obj: Any, weight: int) -> Item:
    if isinstance(obj, ShmReservation):
        return item_of(obj, member, weight)
    return Item(encode(obj), weight)


def _open(
    member: Member, key: bytes, maxsize: int | None, max_bytes: int | None, name: str
) -> Place:
    def find(db: sqlite3.Connection) -> Any:
        db.execute(
            "INSERT OR IGNORE INTO queues (key, maxsize, max_bytes) VALUES (?, ?, ?)",
            (key, maxsize or 0, max_bytes or 0),
        )
        return db.execute(
            "SELECT id, maxsize, max_bytes FROM queues WHERE key = ?", (key,)
        ).fetchone()

    number, *found = member.write("queue", find)
    wanted = [
        there if asked is None else asked
        for asked, there in zip((maxsize, max_bytes), found, strict=True)
    ]
    if wanted != found:
        raise ChannelExistsError(
            f"queue {name} has maxsize={found[0]}, max_bytes={found[1]}, "
            f"not maxsize={wanted[0]}, max_bytes={wanted[1]}"
        )
    return Place(member, number, name, *found)
