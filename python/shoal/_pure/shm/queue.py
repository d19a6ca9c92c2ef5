"""`ShmQueue`: one queue of a session, the public class of the pure core."""

import os
import sqlite3
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, Self, overload

from shoal._pure.shm.checks import Limit, flag, weights_for, whole
from shoal._pure.shm.displacing import displace
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
from shoal._pure.shm.opening import let_go, opened
from shoal._pure.shm.parcel import ShmParcel, draft_of
from shoal._pure.shm.peeking import peeked, used
from shoal._pure.shm.place import Place
from shoal._pure.shm.sending import Item, Sending, already_put
from shoal._pure.shm.session import ShmSession, joined
from shoal._pure.shm.taking import Choice, Taking, first, up_to_weight
from shoal.errors import (
    ChannelDecodeError,
    ChannelEmpty,
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
    _key: bytes
    _pid: int
    _failed: ChannelDecodeError | None
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
        flag(parcels, "parcels")
        member = joined(session, "queue")
        self = object.__new__(cls)
        self._session = session
        self._failed = None
        self._parcels = parcels
        self._key = key
        self._enter(opened(member, key, maxsize, max_bytes, name or f"queue {key!r}"))
        return self

    def _enter(self, place: Place) -> None:
        self._place, self._pid = place, os.getpid()
        finalizer = weakref.finalize(self, let_go, place.member, place.number, place.member.me)
        finalizer.atexit = False

    @property
    def maxsize(self) -> int:
        """Maximum number of messages; 0 if the session's backlog is the bound."""
        return self._place.maxsize

    @property
    def max_bytes(self) -> int:
        """Maximum number of bytes of its messages; 0 for no limit of its own."""
        return self._place.max_bytes

    @property
    def name(self) -> str:
        """The queue's name in messages."""
        return self._place.name

    @property
    def closed(self) -> bool:
        """Whether any process closed the queue."""
        return self._ask("closed")[2]

    def put(self, obj: Any, weight: int = 0, timeout: float | None = None) -> None:
        """Append an object or a `ShmReservation`, waiting for room."""
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
        """Append objects in their order, waiting for room."""
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

    @overload
    def get_many(
        self, n: int, timeout: float | None = None, lease: Literal[False] = False
    ) -> list[Any]: ...
    @overload
    def get_many(
        self, n: int, timeout: float | None = None, *, lease: Literal[True]
    ) -> list[ShmMessage]: ...
    def get_many(self, n: int, timeout: float | None = None, lease: bool = False) -> list[Any]:
        """Take up to `n` objects, at least one, waiting for the first only."""
        whole(n, "n", 1)
        limit = Limit(timeout)
        return self._take("get_many", first(n), limit, lease=flag(lease, "lease"))

    @overload
    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        lease: Literal[False] = False,
    ) -> list[Any]: ...
    @overload
    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        *,
        lease: Literal[True],
    ) -> list[ShmMessage]: ...
    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        lease: bool = False,
    ) -> list[Any]:
        """Take objects until their weights add up to `weight`, or to `least`, in one step."""
        whole(weight, "weight", 0)
        limit = Limit(timeout)
        if least is not None:
            whole(least, "least", 0)
        choice = up_to_weight(weight, least)
        needed = weight if least is None else min(least, weight)
        return self._take("get_batch", choice, limit, lease=flag(lease, "lease"), weight=needed)

    def displace(self, all: bool = False) -> int:  # noqa: A002  (as in the contract)
        """Drop the oldest message, or with `all` every message, but only if the queue is full."""
        every = flag(all, "all")
        self._member("displace")
        return displace(self._place, every=every)

    def reserve(
        self, shape: int | Sequence[int], dtype: Any, timeout: float | None = None
    ) -> ShmReservation:
        """Allocate memory for an array that the caller fills in place and puts without a copy."""
        limit = Limit(timeout)
        self._member("reserve")
        return reserved(self._place, shape, dtype, limit)

    def peek(self, n: int | None = None) -> list[tuple[int, Any]]:
        """Return the weights and copies of the first messages, which stay in the queue."""
        if n is not None:
            whole(n, "n", 0)
        return peeked(self._member("peek"), self._place, n, parcels=self._parcels)

    def stats(self) -> dict[str, float]:
        """Return how the queue is used."""
        return used(self._member("stats"), self._place)

    def qsize(self) -> int:
        """Return the number of messages in the queue; other processes may change it at once."""
        return self._ask("qsize")[0]

    def empty(self) -> bool:
        """Return whether the queue holds no message."""
        return self._ask("empty")[0] == 0

    def full(self) -> bool:
        """Return whether a put would have to wait until a message is taken."""
        count, held, closed = self._ask("full")
        return not closed and (count >= self._place.bound or 0 < self._place.max_bytes <= held)

    def tell_no_room(self) -> None:
        """Report that a put waits for memory, so that no get waits for more than can come."""
        self._member("tell_no_room").write("tell_no_room", self._place.press)

    def close(self) -> None:
        """Refuse further puts in all processes; messages can still be taken. Idempotent."""
        member = self._member("close")
        number = self._place.number

        def shut(db: sqlite3.Connection) -> None:
            db.execute("UPDATE queues SET closed = 1 WHERE id = ? AND closed = 0", (number,))
            for side in _SIDES:
                member.due(db, side, number)

        member.write("close", shut)

    def fileno(self) -> int:
        """Return the doorbell of this process and session: readable after an armed event."""
        return self._member("fileno").bell().descriptor

    def clear_bell(self) -> None:
        """Make the doorbell unreadable until it is rung again."""
        self._member("clear_bell").bell().clear()

    def arm(self, side: Literal["get", "put"]) -> None:
        """Have the doorbell rung once when this side may succeed, or when the queue is closed."""
        if side not in _SIDES:
            raise ShoalValueError(f"side={side!r}: expected 'get' or 'put'")
        member = self._member("arm")
        member.bell()
        member.arm("arm", self._place.number, side)
        member.sweep_when_due()

    def _member(self, op: str) -> Member:
        member = joined(self._session, op)
        if self._pid != os.getpid():
            # This is a forked child, for which the inherited object is not counted yet. The parent
            # may have released the queue, so this may create it again.
            place = self._place
            self._enter(opened(member, self._key, place.maxsize, place.max_bytes, place.name))
        return member

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
        taking = Taking(self._place, op, choice, lease=lease, parcels=self._parcels)
        result: list[Any] | None = None
        try:
            taken = taking.run(limit)
            if not isinstance(taken, NotYet):
                result = [leased(member, row, value) if lease else value for row, value in taken]
                self._failed = taking.failed if result else None
        except BaseException:
            taking.put_back()
            raise
        # Signals arrive at calls; there is no call between here and the caller.
        if result:
            return result
        raise taking.failed or self._nothing(op, limit, weight, taken)

    def _nothing(self, op: str, limit: Limit, weight: int | None, why: Any) -> Exception:
        queue = self.name
        if op == "get_nowait":
            return ChannelEmpty(f"{op}: {queue} is empty")
        if weight is not None:
            return ShoalTimeoutError(
                f"{op}: {queue} did not reach weight {weight} within {limit.seconds:g} s: {why.why}"
            )
        return ShoalTimeoutError(f"{op}: no message in {queue} within {limit.seconds:g} s")

    def _ask(self, op: str) -> tuple[int, int, bool]:
        """Return the number of messages, their bytes, and whether the queue is closed."""
        member, number = self._member(op), self._place.number
        count, held, closed = member.read(
            op,
            lambda db: db.execute(
                "SELECT count, bytes, closed FROM queues WHERE id = ?", (number,)
            ).fetchone(),
        )
        return count, held, bool(closed)


def _before_second(objs: list[Any]) -> int:
    """Return the number of objects before the first reservation that occurs a second time."""
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
    if type(obj) is ShmParcel:
        return Item(draft_of(obj), weight, sender=obj.sender)
    return Item(encode(obj), weight)
