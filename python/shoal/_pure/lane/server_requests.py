"""`Serving`: carries out the requests of one connection, one after the other."""

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
    InvalidError,
    Op,
    Reply,
    Request,
    Status,
    leases_of,
    packed_refusal,
)
from shoal._pure.lane.server_state import ServerState
from shoal._pure.lane.streams import Record
from shoal._pure.lane.wire import CutError, LateError, Patience, Wire
from shoal._pure.shm.checks import Call, Refusal
from shoal._pure.shm.messages import ShmParcel
from shoal._pure.shm.operations import first, up_to_weight
from shoal._pure.shm.queue import ShmQueue
from shoal.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelExistsError,
    ChannelFull,
    ChannelMemoryError,
    ShoalError,
    ShoalTimeoutError,
)

__all__ = ["Serving"]

T = TypeVar("T")

_IDLE_S: Final = 10.0
"""Seconds without a request after which a connection is closed."""
_REPLY_S: Final = 10.0
_FEW: Final = 16
"""Number of messages that are taken first, as they may be long."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""A reply gets no further messages once it holds this many bytes."""
_LONGEST_BODY: Final = 4096
_FOREVER: Final = Patience(float("inf"))


class _FailedError(Exception):
    """A request was not carried out; the connection goes on."""

    def __init__(self, status: Status, body: bytes) -> None:
        super().__init__()
        self.status = status
        self.body = body


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
        self._unread = 0

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
            self._unread = request.length
            if request.op in (Op.KEEP, Op.GIVE_BACK):
                if self._has_lent(request.seq):
                    self._end_lent(acknowledged=request.op is Op.KEEP)
            elif request.seq > self._record.done:
                self._carry_out(request, key)
            elif self._has_lent(request.seq):
                self._skip_payload()
                self._send_lent()
            # Others were carried out before the connection was lost, or follow one that failed.
            self._skip_payload()

    def _payload(self) -> bytearray:
        size, self._unread = self._unread, 0
        return self._wire.receive(size, _FOREVER)

    def _skip_payload(self) -> None:
        while self._unread:
            size = min(self._unread, 1024 * 1024)
            self._wire.receive(size, _FOREVER)
            self._unread -= size

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
            self._shared.lent.end(lent[1], acknowledged=acknowledged)

    def _carry_out(self, request: Request, key: bytes) -> None:
        if request.seq != self._record.done + 1:
            raise InvalidError(f"request {request.seq} after {self._record.done}")
        # The client has begun another exchange, so it has heard of the failure.
        self._record.failed = None
        # It asks for something else, so it has what it took before.
        if request.op is not Op.LEASE:
            self._end_lent(acknowledged=True)
        try:
            match request.op:
                case Op.PUT:
                    self._put(request, key)
                case Op.TAKE:
                    self._take(request, key)
                case _:
                    self._change_leases(request)
        except _FailedError as failed:
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

    def _change_leases(self, request: Request) -> None:
        leases, payload = self._shared.leases, self._payload()
        if request.op is Op.LEASE:
            holder, number = LEASE.unpack(payload)
            if not self._has_lent(request.amount):
                raise _failed(Status.INVALID, f"take {request.amount}: nothing is lent")
            lent, self._record.lent = self._record.lent, None
            leases.add(holder, number, [] if lent is None else lent[1])
            return
        holder, numbers = leases_of(payload)
        if request.op is Op.RENEW:
            leases.renew(holder, numbers)
        else:
            leases.end(holder, numbers, acknowledged=not request.kind)

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
            raise _FailedError(status, packed_refusal(Refusal(*found))) from None
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

    def _put(self, request: Request, key: bytes) -> None:
        payload = self._payload()

        def around(attempt: Callable[[], T]) -> T:
            # Between a wake-up and the attempt: a client that has gone puts nothing.
            self._check()
            return attempt()

        def put(queue: ShmQueue) -> None:
            policy = POLICIES[request.policy]
            parcel = ShmParcel(request.kind, payload, request.sender)
            call = self._call(request, "put", around)

            def make_room() -> None:
                self._check()
                if policy in ("drop_oldest", "keep_latest"):
                    queue.displace(all=policy == "keep_latest")
                elif policy == "error" and queue.full():
                    held = queue.qsize()
                    kind = "messages" if queue.maxsize else "backlog"
                    raise Refusal(kind, held, queue.maxsize or held).of(ChannelFull())

            if policy != "block":
                call.waiting = make_room
                self._check()
                if self._put_now(queue, parcel, request, policy):
                    return
            if request.waits:
                self._report()
            queue._put(call, parcel, request.amount)  # noqa: SLF001  (a friend of the class)

        self._on_queue(request, key, put)

    @staticmethod
    def _put_now(queue: ShmQueue, parcel: ShmParcel, request: Request, policy: str) -> bool:
        """Put a message, with the room that a policy makes; return False if memory is missing."""
        while True:
            try:
                queue.put_nowait(parcel, request.amount)
            except ChannelFull:
                if policy == "error":
                    if queue.full() or not request.waits:
                        raise
                    return False
                dropped = queue.displace(all=policy == "keep_latest")
                if not dropped and not queue.full():
                    if not request.waits:
                        raise
                    return False  # the queue has room: memory is missing
            else:
                return True

    def _take(self, request: Request, key: bytes) -> None:
        lent = self._shared.lent
        payload = self._payload()
        least = int.from_bytes(payload, "little") if payload else None
        by_weight = bool(request.kind)
        count = 0 if by_weight else request.amount
        counted = 0

        def around(attempt: Callable[[], Any]) -> Any:
            # Between a wake-up and the take: a client that has gone takes nothing.
            self._check()
            # A message is always in its queue, counted as lent, or both.
            nonlocal counted
            lent.add(1)
            counted += 1
            refusal = attempt()
            if refusal is not None:
                lent.add(-1)
                counted -= 1
            return refusal

        def take(queue: ShmQueue, call: Call, few: int) -> list[Any]:
            nonlocal counted
            choice = up_to_weight(request.amount, least) if by_weight else first(few)
            try:
                found = queue._take(call, choice, lease=True)  # noqa: SLF001  (see above)
                lent.add(len(found))
                return found
            finally:
                lent.add(-counted)
                counted = 0

        def take_all(queue: ShmQueue) -> list[Any]:
            op = ("get_batch" if by_weight else "get") if request.waits else "get_nowait"
            if request.waits:
                self._report()
            found = take(queue, self._call(request, op, around), min(count, _FEW))
            size = sum(message.value.nbytes for message in found)
            while len(found) < count and size < _MOST_BYTES:
                few = min(count - len(found), max(_FEW, 2 * len(found)))
                try:
                    call = self._call(request._replace(waits=False), "get", around)
                    more = take(queue, call, few)
                except Exception:  # noqa: BLE001  (the next take meets it; nothing taken is lost by it)
                    break
                found += more
                size += sum(message.value.nbytes for message in more)
            return found

        self._record.lent = request.seq, self._on_queue(request, key, take_all)

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


def _failed(status: Status, text: str) -> _FailedError:
    return _FailedError(status, text.encode()[:_LONGEST_BODY])


def _gone() -> CutError:
    return CutError("the client has gone", by_peer=True)
