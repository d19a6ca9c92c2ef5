# ruff: noqa: SLF001  (the classes of this file know each other)
"""`LaneClient`: the connections of this process to one server, and its requests."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Final

from shoal._pure.lane.connection import (
    Connection,
    ForgottenError,
    Place,
    Standing,
    UnreachableError,
)
from shoal._pure.lane.frames import (
    ITEM,
    LEASE,
    MOST_LEASES,
    NEVER,
    FailedError,
    InvalidError,
    Item,
    Op,
    Reply,
    Request,
    Status,
    packed_leases,
)
from shoal._pure.lane.handshake import HandshakeError
from shoal._pure.lane.wire import CutError, EncryptionError, LateError, Patience
from shoal._pure.shm.checks import Call

__all__ = ["Answer", "LaneCancel", "LaneClient", "Question"]

_RECONNECT_S: Final = 24.0
"""Seconds to try to connect, and to wait for the reply to a request that does not wait."""
_LATE_S: Final = 2.0
"""Seconds after its deadline that a request waits for its reply."""
_IDLE_S: Final = 10.0
"""Seconds that a connection is kept without use."""
_MANY: Final = 16
"""Maximum number of idle connections."""


class LaneCancel:
    """Ends a put or a get of a `LaneQueue` from another thread; see `_rust.pyi`."""

    __module__ = "shoal._backend"

    def __init__(self) -> None:
        self._cancelled = False
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def cancel(self) -> None:
        """End the calls that have this object, at once."""
        if self._pid != os.getpid():
            return
        self._cancelled = True
        with self._lock:
            if self._connection is not None:
                self._connection.wire.shut()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled


def _watch(cancel: LaneCancel | None, connection: Connection | None) -> None:
    """Let a cancellation end a connection, until this is called with None.

    Raises:
        CancelledError: It was cancelled.
    """
    if cancel is None:
        return
    with cancel._lock:
        cancel._connection = connection
    if connection is not None and cancel.cancelled:  # looked at last: `cancel` sets it first
        _watch(cancel, None)
        raise CancelledError


@dataclass
class Question:
    """A request that is asked again after a cut, until it is answered.

    Attributes:
        request: Its header, without its number, deadline and lengths.
        key: The key of the queue.
        payload: The payload, as buffers.
        call: The call that makes it; its `waiting` is called while it waits.
        waits: Whether the server waits, until the call is over.
        cancel: Ends it from another thread.
        sent: Whether the server may have received bytes of it.
    """

    request: Request
    key: bytes = b""
    payload: list[Any] = field(default_factory=list)
    call: Call = field(default_factory=lambda: Call("", 0))
    waits: bool = False
    cancel: LaneCancel | None = None
    sent: bool = False

    def patience(self) -> Patience:
        """Return how long to wait for the answer."""
        now = time.monotonic()
        until = now + (self.call.remaining + _LATE_S if self.waits else _RECONNECT_S)
        return Patience(until, self.call.waiting, self.cancel)

    def frames(self, connection: Connection, seq: int) -> list[Any]:
        """Return the buffers to send."""
        deadline = 0
        if self.waits and self.call.remaining == float("inf"):
            deadline = NEVER
        elif self.waits:
            ends = time.monotonic() + self.call.remaining - connection.began
            deadline = min(NEVER - 1, int(ends * 1e6))
        length = sum(len(part) for part in self.payload)
        request = self.request._replace(
            seq=seq,
            waits=self.waits,
            deadline=deadline,
            key_length=len(self.key),
            length=length,
        )
        return [request.packed() + self.key, *self.payload]


@dataclass
class Answer:
    """The answer to a question. The messages of a take are lent until they are kept.

    Attributes:
        client: The client that asked.
        connection: The connection, which is not idle yet.
        seq: The number of the request.
        messages: The messages: their headers and their bytes.
    """

    client: "LaneClient"
    connection: Connection
    seq: int
    messages: list[tuple[Item, bytearray]]

    def keep(self, waiting: Callable[[], object] | None) -> bool:
        """Confirm that this process has them; False if they are in their queue again."""
        connection, patience = self.connection, Patience(float("inf"), waiting)
        while True:
            try:
                connection.settle(self.seq, keeps=True)
            except CutError:
                try:
                    self.client._reopen(connection, patience)
                except (ForgottenError, ConnectionError):
                    return False
            else:
                self.client._keep_idle(connection)
                return True

    def lease(self, waiting: Callable[[], object] | None) -> int | None:
        """Make them leases of this client; return the number of the first, None if it is too late."""
        client, connection = self.client, self.connection
        holder, first = client._new_leases(len(self.messages))
        question = Question(
            Request(Op.LEASE, 0, amount=self.seq),
            payload=[LEASE.pack(holder, first)],
            call=Call("", 0, waiting),
        )
        seq, connection.next = connection.next, connection.next + 1
        try:
            client._ask_on(connection, seq, question, question.patience())
        except (FailedError, ForgottenError, ConnectionError):
            return None
        except BaseException:
            connection.wire.shut()
            raise
        client._keep_idle(connection)
        return first

    def give_back(self) -> None:
        """Return them to their queue."""
        try:
            self.connection.settle(self.seq, keeps=False)
        except CutError:
            self.connection.wire.shut()  # the server gives them back when this does not come again
        else:
            self.client._keep_idle(self.connection)


class LaneClient:
    """The connections of this process to a `LaneServer`, and the requests over them."""

    __module__ = "shoal._backend"
    _connecting: int
    _idle: list[Connection]

    def __init__(
        self, ip: str, port: int, key: bytes, tls: tuple[str, str, str] | None = None
    ) -> None:
        """Make a client, which does not connect before it is used."""
        self._place = Place.of(ip, port, key, tls, 1)
        self._reset()

    @property
    def is_connecting(self) -> bool:
        """Whether a call tries to connect to the server, at first or after a cut."""
        return self._connecting > 0

    def renew(self, numbers: Sequence[int]) -> None:
        """Keep leases for longer, by the numbers of their messages."""
        self._ask_about_leases(Request(Op.RENEW, 0), numbers)

    def end(self, numbers: Sequence[int], acknowledged: bool) -> None:
        """End leases, by the numbers of their messages."""
        self._ask_about_leases(Request(Op.SETTLE, 0, kind=int(not acknowledged)), numbers)

    def _ask_about_leases(self, request: Request, numbers: Sequence[int]) -> None:
        holder, _ = self._new_leases(0)
        for start in range(0, len(numbers), MOST_LEASES):
            some = packed_leases(holder, numbers[start : start + MOST_LEASES])
            self._keep_idle(self._ask(Question(request, payload=[some])).connection)

    def _new_leases(self, count: int) -> tuple[bytes, int]:
        """Return the holder of this process's leases, and the first number of some new ones."""
        self._be_here()
        with self._lock:
            first = self._leases
            self._leases += count
        return self._holder, first

    def _ask(self, question: Question) -> Answer:
        """Ask, and return the answer.

        Raises:
            FailedError: The server says why it did nothing.
            ConnectionRefusedError: No connection came about, and nothing was sent.
            ConnectionResetError: There was no answer.
        """
        patience = question.patience()
        while True:
            connection = self._connect(patience)
            seq, connection.next = connection.next, connection.next + 1
            try:
                messages = self._ask_on(connection, seq, question, patience)
            except FailedError:
                self._keep_idle(connection)
                raise
            except ForgottenError:
                # The messages of a take are in their queue again, and to renew a lease twice does no
                # harm: such a request is made again.
                if question.request.op is Op.PUT:
                    raise self._lost("the server has forgotten this client") from None
            except ConnectionError:
                connection.wire.shut()
                raise
            except BaseException as error:
                if question.sent:
                    self._interrupted(connection, seq, question, error)
                else:
                    connection.next = seq
                    self._keep_idle(connection)
                raise
            else:
                if not messages and question.request.op is Op.TAKE:
                    raise self._lost("the server sent bytes that are not a reply: no messages")
                return Answer(self, connection, seq, messages)

    def _ask_on(
        self, connection: Connection, seq: int, question: Question, patience: Patience
    ) -> list[tuple[Item, bytearray]]:
        """Ask on a connection until there is an answer; after a cut on the next one of its stream."""
        op = question.request.op
        while True:
            try:
                _watch(question.cancel, connection)
                question.sent = True
                connection.wire.end_abruptly(abruptly=op is Op.PUT)
                frames = question.frames(connection, seq)
                connection.wire.send(frames, patience, _LATE_S if op is Op.PUT else 0.0)
                return self._answer(connection, seq, question, patience)
            except (InvalidError, EncryptionError) as error:
                text = f"the server sent bytes that are not a reply: {error}"
                raise self._lost(text) from None
            except CutError:
                standing = self._reopen(connection, patience)
                # Only a take is answered twice.
                if standing.done >= seq and not standing.failed and op is not Op.TAKE:
                    return []
            except LateError:
                raise self._lost("the server did not answer in time") from None
            finally:
                _watch(question.cancel, None)

    def _answer(
        self, connection: Connection, seq: int, question: Question, patience: Patience
    ) -> list[tuple[Item, bytearray]]:
        while True:
            reply = connection.receive_reply(patience)
            if reply.seq == seq and reply.status is Status.DONE:
                _watch(question.cancel, None)  # what comes now is received, and given back
                return self._items(connection, reply, patience)
            body = connection.wire.receive(reply.length, patience)
            if reply.seq == seq:
                raise FailedError(reply.status, bytes(body))
            # Others are replies to what was asked before.

    @staticmethod
    def _items(
        connection: Connection, reply: Reply, patience: Patience
    ) -> list[tuple[Item, bytearray]]:
        wire, left = connection.wire, reply.length
        items: list[tuple[Item, bytearray]] = []
        for _ in range(reply.items):
            item = Item.of(wire.receive(ITEM.size, patience, _RECONNECT_S))
            left -= ITEM.size + item.length
            if left < 0:
                raise InvalidError(f"a message of {item.length} bytes too many")
            try:
                items.append((item, wire.receive(item.length, patience, _RECONNECT_S)))
            except MemoryError:
                text = f"this process has no memory for a message of {item.length} bytes"
                wire.shut()  # what was taken goes back
                raise FailedError(Status.MEMORY, text.encode()) from None
        if left:
            raise InvalidError(f"{left} bytes too many")
        return items

    def _interrupted(
        self, connection: Connection, seq: int, question: Question, error: BaseException
    ) -> None:
        """Find out what becomes of a request whose caller has ended the wait.

        The server does nothing more for it once another connection has come for the stream.
        """
        patience = Patience(time.monotonic() + _LATE_S)
        op = question.request.op
        if op is Op.PUT:
            error.__dict__["done"] = None
        try:
            if op not in (Op.PUT, Op.TAKE):
                return
            connection.wire.shut()
            standing = self._reopen(connection, patience)
            if op is Op.TAKE:
                connection.settle(seq, keeps=False)
            else:
                error.__dict__["done"] = int(standing.done >= seq and not standing.failed)
        except (CutError, ForgottenError, ConnectionError, LateError):
            pass  # it is not known; what was taken goes back after a while
        finally:
            connection.wire.close()

    def _reopen(self, connection: Connection, patience: Patience) -> Standing:
        """Connect again, to go on with the same stream.

        Raises:
            ForgottenError: The server does not know the stream any more.
            ConnectionResetError: The server is not reached, or another one listens there.
        """
        began = time.monotonic()
        try:
            patience.check()
            with self._attempt():
                return connection.reopen(patience.shorter(_RECONNECT_S))
        except UnreachableError as error:
            waited = time.monotonic() - began
            text = f"the connection was cut, and not made again within {waited:.1f} s: {error}"
            raise self._lost(text) from None
        except ForgottenError as error:
            if not error.is_other:
                raise
            raise self._lost("another server listens there now") from None
        except HandshakeError as error:
            raise self._lost(f"another server listens there now: {error}") from None
        except LateError:
            raise self._lost("the server did not answer in time") from None

    def _connect(self, patience: Patience) -> Connection:
        """Return an idle connection, or a new one."""
        began = time.monotonic()
        self._be_here()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if connection.wire.is_idle:
                return connection
            # Others are closed.
            if connection.may_have_lost_a_confirmation:
                try:
                    self._reopen(connection, patience)
                except (ForgottenError, ConnectionError):
                    continue  # what was taken is in its queue again
                return connection
            connection.wire.close()
        try:
            with self._attempt():
                return Connection(self._place, patience.shorter(_RECONNECT_S))
        except UnreachableError as error:
            waited = time.monotonic() - began
            text = f"{self._place} could not be reached within {waited:.1f} s: {error}"
            raise ConnectionRefusedError(text) from None
        except HandshakeError as error:
            raise ConnectionRefusedError(f"{self._place}: {error}") from None

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        """Count a thread that tries to connect."""
        with self._lock:
            self._connecting += 1
        try:
            yield
        finally:
            with self._lock:
                self._connecting -= 1

    def _keep_idle(self, connection: Connection) -> None:
        """Keep a connection for later."""
        now = connection.used = time.monotonic()
        with self._lock:
            kept = [one for one in self._idle if now - one.used < _IDLE_S]
            self._idle = [*kept[1 - _MANY :], connection]

    def _lost(self, why: str) -> ConnectionResetError:
        return ConnectionResetError(f"{self._place}: {why}")

    def _be_here(self) -> None:
        if self._pid != os.getpid():  # in a child of a fork, which has connections of its own
            self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle = []
        self._connecting = 0
        self._holder = os.urandom(16)
        self._leases = 0
