"""`Serving`: carries out the requests of one connection, one after the other."""

import functools
import select
import sqlite3
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from shoal._pure.lane.frames import (
    ITEM,
    LEASE,
    NEVER,
    POLICIES,
    REQUEST,
    FailedError,
    InvalidError,
    Op,
    Reply,
    Request,
    Status,
    leases_of,
    packed_refusal,
)
from shoal._pure.lane.server_state import Record, ServerState
from shoal._pure.lane.wire import CutError, LateError, Patience, Wire
from shoal._pure.shm.checks import Call, refused
from shoal._pure.shm.messages import ShmParcel
from shoal._pure.shm.queue import ShmQueue
from shoal._pure.shm.queue_row import first, up_to_weight
from shoal.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ChannelMemoryError,
    ShoalError,
    ShoalTimeoutError,
)
from shoal.refusals import Refusal

__all__ = ["Serving"]

T = TypeVar("T")

_IDLE_S: Final = 10.0
"""Seconds without a request after which a connection is closed."""
_REPLY_S: Final = 10.0
_MOST_BYTES: Final = 64 * 1024 * 1024
"""A reply gets no further messages once it holds this many bytes."""
_LONGEST_BODY: Final = 4096
_FOREVER: Final = Patience(float("inf"))


class Serving:
    """The requests of one connection.

    Args:
        shared: The state of the server.
        wire: The connection.
        record: The record of its stream.
    """

    def __init__(self, shared: ServerState, wire: Wire, record: Record) -> None:
        self._shared = shared
        self._wire = wire
        self._record = record
        self._began = time.monotonic()
        self._owes = False

    def run(self) -> None:
        """Carry out requests until the connection is idle for too long.

        Raises:
            CutError: The connection ended.
            InvalidError: The client sent what is not a request.
        """
        while True:
            if not self._wire.wait(select.POLLIN, 0):
                self._report()
                # A client that has messages may take long to rebuild them.
                if not self._wire.wait(select.POLLIN, _IDLE_S) and self._record.lent is None:
                    return
                continue
            request = Request.of(self._wire.receive(REQUEST.size, _FOREVER))
            key = bytes(self._wire.receive(request.key_length, _FOREVER))
            settles = request.op in (Op.KEEP, Op.GIVE_BACK)
            if not settles and request.seq > self._record.done:
                self._carry_out(request, key)
                continue
            self._wire.receive(request.length, _FOREVER)
            if not self._has_lent(request.seq):
                continue  # carried out before the connection was lost, or follows one that failed
            if settles:
                self._end_lent(acknowledged=request.op is Op.KEEP)
            else:
                self._send_lent()

    def _report(self) -> None:
        """Say what is done, if the client was not told."""
        owes, self._owes = self._owes, False
        if owes:
            self._send([Reply(Status.DONE, self._record.done).packed()])

    def _send(self, parts: list[Any]) -> None:
        patience = Patience(time.monotonic() + _REPLY_S)
        try:
            self._wire.send(parts, patience, _REPLY_S)
        except LateError:
            raise CutError("the client does not read", by_peer=False) from None

    def _has_lent(self, seq: int) -> bool:
        return self._record.lent is not None and self._record.lent[0] == seq

    def _end_lent(self, *, acknowledged: bool) -> None:
        lent, self._record.lent = self._record.lent, None
        if lent is not None:
            self._shared.end(lent[1], acknowledged=acknowledged)

    def _carry_out(self, request: Request, key: bytes) -> None:
        if request.seq != self._record.done + 1:
            raise InvalidError(f"request {request.seq} after {self._record.done}")
        # The client has begun another exchange, so it has heard of the failure.
        self._record.failed = None
        # It asks for something else, so it has what it took before.
        if request.op is not Op.LEASE:
            self._end_lent(acknowledged=True)
        payload = self._wire.receive(request.length, _FOREVER)
        try:
            match request.op:
                case Op.PUT:
                    put = functools.partial(self._put, request, payload)
                    self._on_queue(request, key, put)
                case Op.TAKE:
                    take = functools.partial(self._take, request, payload)
                    self._record.lent = request.seq, self._on_queue(request, key, take)
                case _:
                    self._change_leases(request, payload)
        except FailedError as failed:
            # The reply says that all before it are done.
            self._owes = False
            last = request.seq + request.left
            reply = self._record.fail(request.seq, last, failed.status, failed.body)
            self._send([reply.packed(), failed.body])
            return
        self._record.done = request.seq
        if request.op is Op.TAKE:
            self._send_lent()
        else:
            self._owes = True

    def _change_leases(self, request: Request, payload: bytearray) -> None:
        if request.op is Op.LEASE:
            holder, number = LEASE.unpack(payload)
            if not self._has_lent(request.amount):
                raise _failed(Status.INVALID, f"take {request.amount}: nothing is lent")
            lent, self._record.lent = self._record.lent, None
            self._shared.add_leases(holder, number, [] if lent is None else lent[1])
            return
        holder, numbers = leases_of(payload)
        if request.op is Op.RENEW:
            self._shared.renew_leases(holder, numbers)
        else:
            self._shared.end_leases(holder, numbers, acknowledged=not request.kind)

    def _on_queue(self, request: Request, key: bytes, use: Callable[[ShmQueue], T]) -> T:
        """Use a queue; turn its errors into what the client is told."""
        try:
            return use(self._shared.queue(key, request.maxsize, request.max_bytes))
        except (ChannelFull, ChannelEmpty, ShoalTimeoutError) as error:
            if not self._wire.is_there:
                raise _gone() from None
            in_vain = isinstance(error, ShoalTimeoutError)
            status = Status.TIMEOUT if in_vain and request.waits else Status.FULL
            found = getattr(error, "refusal", ("empty", 0, 0, 0))
            raise FailedError(status, packed_refusal(Refusal(*found))) from None
        except ChannelClosed as error:
            self._shared.forget_queue(key)
            raise _failed(Status.CLOSED, str(error)) from None
        except ChannelMemoryError as error:
            # Its text begins with the name of the operation.
            raise _failed(Status.MEMORY, str(error).partition(": ")[2]) from None
        except ChannelExistsError as error:
            raise _failed(Status.INVALID, str(error)) from None
        except (ShoalError, sqlite3.Error) as error:
            raise _failed(Status.FAILED, str(error)) from None

    def _call(self, request: Request, op: str, around: Callable[[Any], Any]) -> Call:
        """Return the call of a request; `around` makes each attempt of it."""
        if not request.waits:
            seconds = 0.0
        elif request.deadline == NEVER:
            seconds = float("inf")
        else:
            seconds = max(0.0, self._began + request.deadline / 1e6 - time.monotonic())
        call = Call(op, seconds, self._check)
        call.around = around
        return call

    def _check(self) -> None:
        if not self._wire.is_there or self._shared.ends:
            raise _gone()

    def _put(self, request: Request, payload: bytearray, queue: ShmQueue) -> None:
        policy = POLICIES[request.policy]

        def around(attempt: Callable[[], Refusal | None]) -> Refusal | None:
            """Make an attempt; if it lacks room, do what the policy says, and attempt it again."""
            while True:
                # Between a wake-up and the attempt: a client that has gone puts nothing.
                self._check()
                refusal = attempt()
                if refusal is None or policy == "block" or refusal.kind == "held":
                    return refusal
                if policy == "error":
                    # The attempt may have lacked memory, before others filled the queue.
                    full = queue._row.why_full(refusal.length)  # noqa: SLF001  (a friend of the class)
                    if full is not None:
                        raise refused(ChannelFull(), full)
                    return refusal
                dropped = queue.displace(all=policy == "keep_latest")
                if not dropped and refusal.kind not in ("messages", "backlog"):
                    return refusal  # only consumers give bytes and memory back

        if request.waits:
            self._report()
        parcel = ShmParcel(request.kind, payload, request.sender)
        queue._put(self._call(request, "put", around), parcel, request.amount)  # noqa: SLF001  (a friend of the class)

    def _take(self, request: Request, payload: bytearray, queue: ShmQueue) -> list[Any]:
        shared, counted = self._shared, 0
        least = int.from_bytes(payload, "little") if payload else None
        by_weight = bool(request.kind)
        choice = up_to_weight(request.amount, least) if by_weight else first(1)
        count = 0 if by_weight else request.amount

        def around(attempt: Callable[[], Refusal | None]) -> Refusal | None:
            # Between a wake-up and the take: a client that has gone takes nothing.
            self._check()
            # A message is always in its queue, counted as lent, or both.
            nonlocal counted
            shared.lend(1)
            counted += 1
            refusal = attempt()
            if refusal is not None:
                shared.lend(-1)
                counted -= 1
            return refusal

        def take(request: Request, op: str) -> list[Any]:
            nonlocal counted
            try:
                found = queue._take(self._call(request, op, around), choice, lease=True)  # noqa: SLF001  (see above)
                shared.lend(len(found))
                return found
            finally:
                shared.lend(-counted)
                counted = 0

        if request.waits:
            self._report()
        wait = "get_batch" if by_weight else "get"
        found = take(request, wait if request.waits else "get_nowait")
        size = sum(message.value.nbytes for message in found)
        while len(found) < count and size < _MOST_BYTES:
            try:
                found += take(request._replace(waits=False), "get")
            except Exception:  # noqa: BLE001  (the next take meets it; nothing taken is lost by it)
                break
            size += found[-1].value.nbytes
        return found

    def _send_lent(self) -> None:
        if self._record.lent is None:
            return
        # The reply says that all before it are done.
        self._owes = False
        seq, messages = self._record.lent
        parts: list[Any] = []
        for message in messages:
            kind, data, sender = message.value.__reduce_ex__(0)[1]
            header = (len(data), message.weight, sender, kind, message.redelivered)
            parts += [ITEM.pack(*header), data]
        length = sum(len(part) for part in parts)
        self._send([Reply(Status.DONE, seq, len(messages), length).packed(), *parts])


def _failed(status: Status, text: str) -> FailedError:
    return FailedError(status, text.encode()[:_LONGEST_BODY])


def _gone() -> CutError:
    return CutError("the client has gone", by_peer=True)
