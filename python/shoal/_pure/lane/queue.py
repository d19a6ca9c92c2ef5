# ruff: noqa: SLF001  (a queue is a part of its client)
"""`LaneQueue` and `LaneMessage`: a queue of a session of another node, and its leased messages."""

import contextlib
from collections.abc import Iterable
from concurrent.futures import CancelledError
from typing import Any, Final, Self, final

from shoal._pure.lane.client import Answer, LaneCancel, LaneClient, Question
from shoal._pure.lane.frames import (
    POLICIES,
    FailedError,
    Item,
    Op,
    Request,
    Status,
    refusal_of,
)
from shoal._pure.shm.checks import (
    SIGNALS,
    Call,
    Waiting,
    check_queue,
    flag,
    not_rebuilt,
    nothing_put,
    nothing_taken,
    refused,
    weights_for,
    whole,
)
from shoal._pure.shm.lease import Lease
from shoal._pure.shm.messages import ShmParcel
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelError,
    ChannelExistsError,
    ChannelFull,
    ChannelMemoryError,
    ShoalError,
    ShoalTypeError,
    ShoalValueError,
    with_items,
)
from shoal.problems import listed

__all__ = ["LaneMessage", "LaneQueue"]

_LARGEST_COUNT: Final = 2**32 - 1
_UNKNOWN: Final = "it is not known whether the message is in the channel"


@final
class LaneMessage(Lease):
    """A message of a `LaneQueue` on lease; see `_rust.pyi`."""

    __slots__ = ("_number",)
    __module__ = "shoal._backend"
    _number: int

    @property
    def number(self) -> int:
        """The number of its lease among those of this process at the server."""
        return self._number


def _leased(client: LaneClient, number: int, item: Item, value: Any) -> LaneMessage:
    def end(op: str) -> None:
        client.end([number], op == "ack")

    message = LaneMessage._of(value, item.weight, item.redelivered, end)
    message._number = number
    return message


class LaneQueue:
    """A queue of a session of another node; see `_rust.pyi`."""

    __module__ = "shoal._backend"
    _client: LaneClient
    _key: bytes
    _name: str
    _policy: str
    _request: Request

    def __new__(
        cls,
        client: LaneClient,
        key: bytes,
        maxsize: int | None = None,
        max_bytes: int | None = None,
        policy: str = "block",
        name: str = "",
    ) -> Self:
        """Make an object for a queue, which is opened when it is used."""
        if not isinstance(client, LaneClient):
            raise ShoalTypeError(f"client={client!r}: expected a client")
        if policy not in POLICIES:
            expected = "block, error, drop_oldest or keep_latest"
            raise ShoalValueError(f"policy={policy!r}: expected {expected}")
        check_queue(key, maxsize, max_bytes, name)
        self = object.__new__(cls)
        self._client = client
        self._key = key
        self._request = Request(Op.TAKE, 0, maxsize=maxsize, max_bytes=max_bytes)
        self._policy = policy
        self._name = name or f"queue {key!r}"
        return self

    @property
    def name(self) -> str:
        """The queue's name in messages."""
        return self._name

    def put(
        self,
        obj: Any,
        weight: int = 0,
        timeout: float | None = None,
        *,
        waiting: Waiting = None,
        cancel: LaneCancel | None = None,
    ) -> None:
        """Append an object, waiting for room."""
        self._put_all(Call("put", timeout, waiting), [obj], [whole(weight, "weight", 0)], cancel)

    def put_nowait(self, obj: Any, weight: int = 0) -> None:
        """Append an object if there is room now."""
        self._put_all(Call("put_nowait", 0), [obj], [whole(weight, "weight", 0)])

    def put_many(
        self,
        objs: Iterable[Any],
        weights: Iterable[int] | None = None,
        timeout: float | None = None,
        *,
        waiting: Waiting = None,
    ) -> None:
        """Append objects in their order, waiting for room."""
        call, objs = Call("put_many", timeout, waiting), listed(objs, "objs", "the objects to put")
        self._put_all(call, objs, weights_for(objs, weights))

    def get(
        self,
        timeout: float | None = None,
        lease: bool = False,
        *,
        waiting: Waiting = None,
        cancel: LaneCancel | None = None,
    ) -> Any:
        """Take the first object, waiting for one."""
        return self._take(
            Call("get", timeout, waiting), self._request._replace(amount=1), lease, cancel
        )[0]

    def get_nowait(self, lease: bool = False) -> Any:
        """Take the first object if there is one now."""
        return self._take(Call("get_nowait", 0), self._request._replace(amount=1), lease)[0]

    def get_many(
        self,
        n: int,
        timeout: float | None = None,
        lease: bool = False,
        *,
        waiting: Waiting = None,
        cancel: LaneCancel | None = None,
    ) -> list[Any]:
        """Take up to `n` objects, at least one, waiting for the first only."""
        want = self._request._replace(amount=min(whole(n, "n", 1), _LARGEST_COUNT))
        return self._take(Call("get_many", timeout, waiting), want, lease, cancel)

    def get_batch(
        self,
        weight: int,
        timeout: float | None = None,
        least: int | None = None,
        lease: bool = False,
        *,
        waiting: Waiting = None,
        cancel: LaneCancel | None = None,
    ) -> list[Any]:
        """Take objects until their weights add up to `weight`, or to `least`, in one step."""
        want = self._request._replace(amount=whole(weight, "weight", 0), kind=1)
        payload = []
        if least is not None:
            payload = [whole(least, "least", 0).to_bytes(8, "little")]
        call = Call("get_batch", timeout, waiting)
        return self._take(call, want, lease, cancel, payload)

    def _put_all(
        self, call: Call, objs: list[Any], weights: list[int], cancel: LaneCancel | None = None
    ) -> None:
        """Put objects one after the other; an error's `done` says how many are in the queue."""
        done = 0
        try:
            for obj, weight in zip(objs, weights, strict=True):
                self._put(call, obj, weight, cancel)
                done += 1
        except BaseException as error:
            # Of the object of this put; None if it is not known.
            found = error.__dict__.pop("done", 0)
            if isinstance(error, CancelledError):
                self._cancelled(call, found)
                return
            if found is not None:
                error.__dict__["done"] = done + found
            raise

    def _cancelled(self, call: Call, done: int | None) -> None:
        """Raise the error for a put that was cancelled, unless the object is in the queue."""
        if done is None:
            text = f"{self._name}: {call.op}: no answer when it was cancelled: {_UNKNOWN}"
            raise ConnectionResetError(text)
        if not done:
            error = CancelledError(f"{call.op}: {self._name}: cancelled")
            error.__dict__["done"] = 0
            raise error

    def _put(self, call: Call, obj: Any, weight: int, cancel: LaneCancel | None) -> None:
        kind, data, sender = ShmParcel.of(obj).__reduce_ex__(0)[1]
        policy = POLICIES.index(self._policy)
        request = self._request._replace(
            op=Op.PUT, policy=policy, kind=kind, sender=sender, amount=weight
        )
        question = Question(request, self._key, [data], call, not call.over, cancel)
        try:
            self._client._keep_idle(self._client._ask(question).connection)
        except FailedError as failed:
            raise self._put_failed(call, failed) from None
        except ConnectionResetError as error:
            raise ConnectionResetError(f"{error}: {_UNKNOWN}") from None

    def _put_failed(self, call: Call, failed: FailedError) -> ShoalError:
        if failed.status is Status.CLOSED:
            return ChannelClosed(f"{call.op}: {self._name} is closed")
        if failed.status not in (Status.FULL, Status.TIMEOUT):
            return self._failed_error(call, failed)
        refusal = refusal_of(failed.body)
        # The policy `error` does not wait for room, but for memory.
        if self._policy != "error" or refusal.kind == "memory":
            return nothing_put(self._name, call, refusal)
        text = f"{call.op}: no room in {self._name}: {refusal.why()}"
        return refused(ChannelFull(text), refusal)

    def _failed_error(self, call: Call, failed: FailedError) -> ShoalError:
        text = failed.body.decode(errors="replace")
        match failed.status:
            case Status.MEMORY | Status.TOO_LARGE:
                return ChannelMemoryError(f"{call.op}: {text}")
            case Status.INVALID:
                return ChannelExistsError(f"{self._name}: {text}")
        return ChannelError(f"{call.op}: {self._name}: {text}")

    def _take(
        self,
        call: Call,
        want: Request,
        lease: bool,
        cancel: LaneCancel | None = None,
        payload: list[Any] | None = None,
    ) -> list[Any]:
        flag(lease, "lease")
        question = Question(want, self._key, payload or [], call, not call.over, cancel)
        while True:
            taken = self._taken(call, question)
            try:
                rebuilt = [self._rebuilt(item, data) for item, data in taken.messages]
                self._check(call, cancel)
            except BaseException:
                taken.give_back()
                raise
            first = taken.lease(call.waiting) if lease else None
            if first is not None or (not lease and taken.keep(call.waiting)):
                return self._handed_out(taken.messages, rebuilt, first)
            # Too late: they are in the queue again.
            question.waits = not call.over

    def _check(self, call: Call, cancel: LaneCancel | None) -> None:
        if cancel is not None and cancel.cancelled:
            raise CancelledError(f"{call.op}: {self._name}: cancelled")

    def _taken(self, call: Call, question: Question) -> Answer:
        try:
            return self._client._ask(question)
        except CancelledError:
            raise CancelledError(f"{call.op}: {self._name}: cancelled") from None
        except FailedError as failed:
            if failed.status is Status.CLOSED:
                raise ChannelClosed(f"{call.op}: {self._name} is closed and empty") from None
            if failed.status in (Status.FULL, Status.TIMEOUT):
                raise nothing_taken(self._name, call, refusal_of(failed.body)) from None
            raise self._failed_error(call, failed) from None

    def _handed_out(
        self, messages: list[tuple[Item, bytearray]], rebuilt: list[Any], first: int | None
    ) -> list[Any]:
        """Return the objects, or with the number of the first lease the leased messages."""
        objects, errors = [], []
        for at, ((item, _), value) in enumerate(zip(messages, rebuilt, strict=True)):
            if isinstance(value, ChannelDecodeError):
                errors.append(value)
                if first is not None:
                    # No other consumer should get a message that cannot be rebuilt. If the server is
                    # lost, another one does, and finds the same.
                    with contextlib.suppress(ConnectionError, FailedError):
                        self._client.end([first + at], acknowledged=True)
            elif first is not None:
                objects.append(_leased(self._client, first + at, item, value[0]))
            else:
                objects.append(value[0])
        if errors:
            raise with_items(errors, objects)
        return objects

    def _rebuilt(self, item: Item, data: bytearray) -> Any:
        """Return the object of a message in a list, or the error of one that cannot be rebuilt."""
        try:
            return [ShmParcel(item.kind, data, item.sender).open()]
        except SIGNALS:
            raise
        except BaseException as error:  # noqa: BLE001  (the object's classes may raise anything)
            return not_rebuilt(self._name, item.sender, error)
