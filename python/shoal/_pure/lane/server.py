"""`LaneServer`: lets processes of other nodes use the queues of a session."""

import contextlib
import os
import select
import socket
import sqlite3
import threading
import time
from typing import Final, Self

from shoal._pure.lane.connection import Place
from shoal._pure.lane.frames import HELLO, WELCOME, InvalidError
from shoal._pure.lane.handshake import HandshakeError, as_server, refuse_plain
from shoal._pure.lane.server_requests import Serving
from shoal._pure.lane.server_state import ForgottenError, ServerState, TakenError
from shoal._pure.lane.wire import CutError, EncryptionError, LateError, Patience, Wire
from shoal._pure.shm.session import ShmSession, joined
from shoal.errors import ShoalError, ShoalTypeError, TransportError

__all__ = ["LaneServer"]

_BACKLOG: Final = 1024
_HANDSHAKE_S: Final = 5.0
_STRANGERS: Final = 64
"""Maximum number of connections in their handshake. One more ends the oldest of them."""
_APART_S: Final = 2.0
"""Seconds that a stream is known after its client ended the connection."""
_CUT_S: Final = 12.0
"""Seconds that a stream is known after its connection ended in any other way."""
_UPKEEP_S: Final = 0.5


class _Listening:
    """The connections of a server. Its threads refer to it, and not to the server.

    Args:
        session: The session.
        place: Where to listen; the port is 0 for a free one.
    """

    def __init__(self, session: ShmSession, place: Place) -> None:
        self.shared = ServerState(session)
        self._place = place
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.wires: dict[Wire, threading.Thread] = {}
        self._strangers: list[Wire] = []
        try:
            self._listener = socket.create_server(
                (place.ip, place.port), family=place.family, backlog=_BACKLOG
            )
        except OSError as error:
            raise TransportError(f"no server can listen on {place.ip}: {error}") from None
        self._listener.setblocking(False)  # noqa: FBT003  (its only argument)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._accepting = threading.Thread(target=self._accept, name="lane-accept", daemon=True)
        self._accepting.start()

    def stop(self) -> None:
        """See `LaneServer.stop`."""
        if self.shared.ends or self._pid != os.getpid():
            return
        self.shared.ends = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._join(self._accepting)
        self._listener.close()
        with self._lock:
            wires = dict(self.wires)
        for wire in wires:
            wire.shut()
        for thread in wires.values():
            self._join(thread)
        self.shared.expire(everything=True)

    @staticmethod
    def _join(thread: threading.Thread) -> None:
        if thread is not threading.current_thread():  # the garbage collector may run in any
            thread.join()

    def _accept(self) -> None:
        upkeep = time.monotonic()
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while not self.shared.ends:
            if time.monotonic() >= upkeep:
                with contextlib.suppress(ShoalError, sqlite3.Error):
                    self.shared.expire()
                upkeep = time.monotonic() + _UPKEEP_S
            poll.poll(1000 * max(0.0, upkeep - time.monotonic()))
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:
                # The peer has gone already; or descriptors are used up, and nothing tells when one
                # is free.
                time.sleep(0.02)
                continue
            with contextlib.suppress(CutError):
                self._begin(Wire(sock))

    def _begin(self, wire: Wire) -> None:
        thread = threading.Thread(target=self._serve, args=(wire,), name="lane-serve", daemon=True)
        with self._lock:
            if len(self._strangers) >= _STRANGERS:
                self._strangers.pop(0).shut()
            self._strangers.append(wire)
            self.wires[wire] = thread
        try:
            thread.start()
        except RuntimeError:  # threads are used up
            with self._lock:
                del self.wires[wire]
            self._is_known(wire)
            wire.shut()

    def _is_known(self, wire: Wire) -> None:
        with self._lock:
            if wire in self._strangers:
                self._strangers.remove(wire)

    def _serve(self, wire: Wire) -> None:
        try:
            with contextlib.suppress(HandshakeError, CutError, LateError, InvalidError):
                self._let_in(wire)
        finally:
            self._is_known(wire)
            wire.shut()
            wire.close()
            with self._lock:
                self.wires.pop(wire, None)

    def _let_in(self, wire: Wire) -> None:
        """Serve a client that knows the key; tell a stranger nothing."""
        shared, until = self.shared, time.monotonic() + _HANDSHAKE_S
        patience = Patience(until)
        if self._place.tls is not None:
            refuse_plain(wire, patience)
            try:
                wire.encrypt(self._place.tls.server, patience)
            except EncryptionError:
                wire.drain(patience)  # so that the client reads why
                raise
        as_server(wire, self._place.key, patience)
        stream, again = HELLO.unpack(wire.receive(HELLO.size, patience))
        self._is_known(wire)
        try:
            record = shared.take_stream(stream, wire, until, again=again)
        except ForgottenError:
            wire.send([WELCOME.pack(1, 0, shared.epoch, 0)], patience)
            return
        except TakenError:
            return
        remembered = _CUT_S
        try:
            welcome = WELCOME.pack(0, record.failed is not None, shared.epoch, record.done)
            failed = [] if record.failed is None else [record.failed[0].packed(), record.failed[1]]
            wire.send([welcome, *failed], patience)
            Serving(shared, wire, record).run()
        except CutError as cut:
            if cut.by_peer:
                remembered = _APART_S
            raise
        finally:
            wire.shut()
            shared.return_stream(stream, record, remembered)


class LaneServer:
    """A server beside a session; see `_rust.pyi`."""

    __module__ = "shoal._backend"
    _listening: _Listening

    def __new__(
        cls,
        session: ShmSession,
        ip: str,
        key: bytes,
        tls: tuple[str, str, str] | None = None,
        port: int = 0,
    ) -> Self:
        """Listen on a port of an IP address."""
        if not isinstance(session, ShmSession):
            raise ShoalTypeError(f"session={session!r}: expected a session")
        place = Place.of(ip, port, key, tls, 0)
        joined(session, "lane")
        self = object.__new__(cls)
        self._listening = _Listening(session, place)
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The IP address and the port."""
        return self._listening.address

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._listening.wires)

    @property
    def lent(self) -> int:
        """The number of messages that clients have: neither in a queue, nor confirmed."""
        return self._listening.shared.lent

    @property
    def leases(self) -> int:
        """The number of messages on lease."""
        return len(self._listening.shared.leases)

    def stop(self) -> None:
        """End all connections. A put that waits for room puts nothing. Idempotent."""
        self._listening.stop()

    def __del__(self) -> None:
        if hasattr(self, "_listening"):
            self.stop()
