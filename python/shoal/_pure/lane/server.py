"""`LaneServer`: lets processes of other nodes use the queues of a session."""

import contextlib
import os
import select
import socket
import threading
import time
from typing import Final, Self

from shoal._pure.lane.arguments import checked_ip, checked_key
from shoal._pure.lane.encryption import Contexts, loaded
from shoal._pure.lane.frames import HELLO, WELCOME, InvalidError
from shoal._pure.lane.handshake import HandshakeError, as_server, refuse_plain
from shoal._pure.lane.serving import Serving
from shoal._pure.lane.shared import Shared
from shoal._pure.lane.streams import ForgottenError, Record, TakenError
from shoal._pure.lane.wire import CutError, EncryptionError, LateError, Patience, Wire
from shoal._pure.shm.checks import whole
from shoal._pure.shm.session import ShmSession, joined
from shoal.errors import ShoalTypeError, TransportError

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


class LaneServer:
    """A server beside a session; see `_rust.pyi`."""

    __module__ = "shoal._backend"
    _accepting: threading.Thread
    _address: tuple[str, int]
    _key: bytes
    _listener: socket.socket
    _lock: threading.Lock
    _pid: int
    _shared: Shared
    _strangers: list[Wire]
    _tls: Contexts | None
    _wires: dict[Wire, threading.Thread]

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
        checked_ip(ip), checked_key(key), whole(port, "port", 0, 65_535)
        joined(session, "lane")
        self = object.__new__(cls)
        self._shared = Shared(session)
        self._key = key
        self._tls = loaded(tls)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wires = {}
        self._strangers = []
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        try:
            self._listener = socket.create_server((ip, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise TransportError(f"no server can listen on {ip}: {error}") from None
        self._listener.setblocking(False)  # noqa: FBT003  (its only argument)
        self._address = self._listener.getsockname()[:2]
        self._accepting = threading.Thread(target=self._accept, name="lane-accept", daemon=True)
        self._accepting.start()
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The IP address and the port."""
        return self._address

    @property
    def connections(self) -> int:
        """The number of connections."""
        return len(self._wires)

    @property
    def lent(self) -> int:
        """The number of messages that clients have: neither in a queue, nor confirmed."""
        return self._shared.lent.count

    @property
    def leases(self) -> int:
        """The number of messages on lease."""
        return len(self._shared.leases)

    def stop(self) -> None:
        """End all connections. A put that waits for room puts nothing. Idempotent."""
        if self._shared.ends or self._pid != os.getpid():
            return
        self._shared.ends = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._accepting.join()
        self._listener.close()
        with self._lock:
            wires = dict(self._wires)
        for wire in wires:
            wire.shut()
        for thread in wires.values():
            thread.join()
        self._shared.streams.forget(everything=True)
        self._shared.leases.expire(everything=True)

    def __del__(self) -> None:
        if hasattr(self, "_accepting"):
            self.stop()

    def _accept(self) -> None:
        upkeep = time.monotonic()
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        while not self._shared.ends:
            if time.monotonic() >= upkeep:
                self._shared.streams.forget()
                self._shared.leases.expire()
                upkeep = time.monotonic() + _UPKEEP_S
            poll.poll(1000 * max(0.0, upkeep - time.monotonic()))
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError:
                # The peer has gone already, or descriptors are used up.
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
            self._wires[wire] = thread
        thread.start()

    def _is_known(self, wire: Wire) -> None:
        with self._lock:
            if wire in self._strangers:
                self._strangers.remove(wire)

    def _serve(self, wire: Wire) -> None:
        try:
            with contextlib.suppress(
                HandshakeError, CutError, EncryptionError, LateError, InvalidError
            ):
                self._let_in(wire)
        finally:
            self._is_known(wire)
            wire.shut()
            wire.close()
            with self._lock:
                self._wires.pop(wire, None)

    def _let_in(self, wire: Wire) -> None:
        """Serve a client that knows the key; tell a stranger nothing."""
        shared, until = self._shared, time.monotonic() + _HANDSHAKE_S
        patience = Patience(until)
        if self._tls is not None:
            refuse_plain(wire, patience)
            try:
                wire.encrypt(self._tls.server, patience)
            except EncryptionError:
                wire.drain(patience)  # so that the client reads why
                raise
        as_server(wire, self._key, patience)
        stream, again = HELLO.unpack(wire.receive(HELLO.size, patience))
        self._is_known(wire)
        try:
            record = shared.streams.take(stream, wire, until, again=again)
        except ForgottenError:
            wire.send([WELCOME.pack(1, 0, shared.epoch, 0)], patience)
            return
        except TakenError:
            return
        remembered = _CUT_S
        try:
            self._welcome(wire, record, patience)
            Serving(shared, wire, record).run()
        except CutError as cut:
            if cut.by_peer:
                remembered = _APART_S
            raise
        finally:
            wire.shut()
            shared.streams.give_back(stream, record, remembered)

    def _welcome(self, wire: Wire, record: Record, patience: Patience) -> None:
        welcome = WELCOME.pack(0, record.failed is not None, self._shared.epoch, record.done)
        failed = record.failed
        more = [] if failed is None else [failed[0].packed(), failed[1]]
        wire.send([welcome, *more], patience)
