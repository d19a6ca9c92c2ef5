"""`Connection`: one connection of a client, which carries a stream, and how it comes about."""

import errno
import ipaddress
import os
import select
import socket
import time
from typing import Any, Final, NamedTuple, Self

from shoal._pure.lane.encryption import Contexts, described, loaded
from shoal._pure.lane.frames import HELLO, REPLY, WELCOME, Op, Reply, Request
from shoal._pure.lane.handshake import KEY_BYTES, HandshakeError, as_client
from shoal._pure.lane.wire import CutError, EncryptionError, LateError, Patience, Wire
from shoal._pure.shm.checks import whole
from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = ["Connection", "ForgottenError", "Place", "Standing", "UnreachableError"]

_CONNECT_S: Final = 2.0
_HANDSHAKE_S: Final = 5.0
_REFUSED_S: Final = 1.0
"""Seconds that a node may refuse connections: then nothing listens there any more."""
_PAUSE_S: Final = 0.02
_IDLE_S: Final = 10.0


class UnreachableError(Exception):
    """No connection came about."""


class ForgottenError(Exception):
    """The server does not know the stream.

    Args:
        is_other: Whether it is another server.
    """

    def __init__(self, *, is_other: bool) -> None:
        super().__init__()
        self.is_other = is_other


class Place(NamedTuple):
    """Where a server listens.

    Attributes:
        ip: Its IP address.
        port: Its port.
        key: The key of the job.
        tls: Encrypts the connections.
    """

    ip: str
    port: int
    key: bytes
    tls: Contexts | None = None

    @classmethod
    def of(cls, ip: Any, port: Any, key: Any, tls: Any, lowest: int) -> Self:
        """Check the arguments of a client or a server, whose port is `lowest` or more.

        Raises:
            TransportError: A file of `tls` cannot be used.
        """
        if not isinstance(ip, str):
            raise ShoalTypeError(f"ip={ip!r}: expected a str")
        try:
            ipaddress.ip_address(ip)
        except ValueError:
            raise ShoalValueError(f"ip={ip!r}: expected an IP address") from None
        whole(port, "port", lowest, 65_535)
        # The value of a key is not shown.
        if not isinstance(key, bytes):
            raise ShoalTypeError(f"key={key!r}: expected bytes")
        if len(key) != KEY_BYTES:
            raise ShoalValueError(f"key: expected {KEY_BYTES} bytes, got {len(key)}")
        return cls(ip, port, key, loaded(tls))

    @property
    def family(self) -> socket.AddressFamily:
        """The family of its address."""
        return socket.AF_INET6 if ":" in self.ip else socket.AF_INET

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class Standing(NamedTuple):
    """Where a stream stands after a reconnection.

    Attributes:
        done: All requests up to this one are carried out.
        failed: Whether the reply to one that failed follows.
    """

    done: int
    failed: bool


class Connection:
    """A connection that carries a stream of its own.

    Args:
        place: The server.
        patience: Ends the attempts to connect.

    Attributes:
        wire: The connection.
        next: Number of the next request.
        began: When the server welcomed it: deadlines count from there.
        used: When it was last used.
        unconfirmed: The last take that was settled and whether its messages are kept; None once a
            later reply shows that the server knows.
    """

    def __init__(self, place: Place, patience: Patience) -> None:
        self._place = place
        self._stream = os.urandom(16)
        self._epoch = 0
        self.unconfirmed: tuple[int, bool] | None = None
        standing = self._connect(patience, again=False)
        self.next = standing.done + 1
        self.used = time.monotonic()

    def reopen(self, patience: Patience) -> Standing:
        """Connect again, and say again what becomes of the last take if that may be lost.

        Raises:
            ForgottenError: The server does not know the stream, or is another one.
            UnreachableError: It is not reached.
            HandshakeError: Another process listens there.
        """
        self.wire.shut()
        self.wire.close()
        standing = self._connect(patience, again=True)
        # First: the server takes the next request for a confirmation.
        if self.unconfirmed is not None:
            try:
                self.settle(*self.unconfirmed)
            except CutError:
                self.wire.shut()  # what is sent next meets the same, and connects again
        return standing

    def settle(self, seq: int, keeps: bool) -> None:
        """Say what becomes of the messages of a take.

        Raises:
            CutError: The connection ended.
        """
        if not self.wire.is_there:
            raise CutError("the server has ended it", by_peer=True)
        self.wire.end_abruptly(abruptly=False)  # a process that ends next must not take it back
        op = Op.KEEP if keeps else Op.GIVE_BACK
        try:
            # The kernel has room for it: only requests of some bytes were sent before.
            self.wire.send([Request(op, seq).packed()], Patience(time.monotonic() + _CONNECT_S))
        except LateError as error:
            raise CutError(str(error), by_peer=False) from None
        self.unconfirmed = seq, keeps

    def receive_reply(self, patience: Patience) -> Reply:
        """Receive the header of the next reply."""
        reply = Reply.of(self.wire.receive(REPLY.size, patience))
        if self.unconfirmed is not None and self.unconfirmed[0] < reply.seq:
            self.unconfirmed = None
        return reply

    @property
    def may_have_lost_a_confirmation(self) -> bool:
        """Whether one may have been on its way when the connection was cut a moment ago."""
        return self.unconfirmed is not None and time.monotonic() - self.used < _IDLE_S

    def _connect(self, patience: Patience, *, again: bool) -> Standing:
        refused: float | None = None
        while True:
            try:
                return self._welcomed(patience, again=again)
            except ConnectionRefusedError as error:
                why, now = str(error), time.monotonic()
                refused = refused or now
                if now - refused > _REFUSED_S:
                    raise UnreachableError(why) from None
            except (CutError, OSError, LateError) as error:
                refused, why = None, str(error) or "the server does not answer"
            try:
                patience.check()
            except LateError:
                raise UnreachableError(why) from None
            time.sleep(min(_PAUSE_S, patience.slice))  # nothing tells when a server listens again

    def _welcomed(self, patience: Patience, *, again: bool) -> Standing:
        wire = _dialled(self._place, patience.shorter(_CONNECT_S))
        patience = patience.shorter(_HANDSHAKE_S)
        try:
            if self._place.tls is not None:
                wire.encrypt(self._place.tls.client, patience, self._place.ip)
            as_client(wire, self._place.key, patience)
        except EncryptionError as error:
            raise HandshakeError(described(error.error)) from None
        wire.send([HELLO.pack(self._stream, again)], patience)
        unknown, failed, epoch, done = WELCOME.unpack(wire.receive(WELCOME.size, patience))
        if unknown or (again and epoch != self._epoch):
            raise ForgottenError(is_other=epoch != self._epoch)
        self.wire, self._epoch, self.began = wire, epoch, time.monotonic()
        return Standing(done, failed)


def _dialled(place: Place, patience: Patience) -> Wire:
    """Connect to an address.

    Raises:
        OSError: The system's error.
    """
    wire = Wire(socket.socket(place.family, socket.SOCK_STREAM))
    code = wire.sock.connect_ex((place.ip, place.port))
    while code == errno.EINPROGRESS:
        if wire.wait(select.POLLOUT, patience.slice):
            code = wire.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        else:
            patience.check()
    if code:
        raise OSError(code, os.strerror(code))
    return wire
