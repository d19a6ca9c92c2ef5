"""`Wire`: a TCP connection whose waits end with a deadline, by a call, or by a cancellation."""

import contextlib
import select
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from typing import Any, Final

__all__ = ["SLICE_S", "CutError", "EncryptionError", "LateError", "Patience", "Wire"]

SLICE_S: Final = 0.1
"""Maximum seconds of a sleep, before it is looked whether the wait should end."""

_PEER_TIMEOUT_MS: Final = 10_000
"""Milliseconds that the kernel tries to reach a peer that does not answer."""
_KEEPALIVE: Final = (
    (socket.TCP_KEEPIDLE, 3),
    (socket.TCP_KEEPINTVL, 2),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, _PEER_TIMEOUT_MS),
)
_MUST_WAIT: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_GONE: Final = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class CutError(Exception):
    """The connection ended.

    Args:
        why: The reason.
        by_peer: Whether the peer itself ended it: its process is there, or is dead. Otherwise the
            network did, and the peer may not know yet.
    """

    def __init__(self, why: str, *, by_peer: bool) -> None:
        super().__init__(why)
        self.by_peer = by_peer


class EncryptionError(CutError):
    """TLS has ended the connection: one side refused the other's certificate, for example.

    Args:
        error: The error of TLS.
    """

    def __init__(self, error: ssl.SSLError) -> None:
        super().__init__(str(error), by_peer=False)
        self.error = error


class LateError(Exception):
    """A wait has ended at its deadline."""


class Patience:
    """The end of a wait: a time, a call that raises, or a cancellation by another thread.

    Args:
        until: The end by `time.monotonic`; infinity for none.
        waiting: Called about every 0.1 s; an error that it raises ends the wait.
        cancel: Has an attribute `cancelled`, by which another thread ends the wait.
    """

    def __init__(
        self, until: float, waiting: Callable[[], object] | None = None, cancel: Any = None
    ) -> None:
        self.until = until
        self.waiting = waiting
        self.cancel = cancel
        self._called = time.monotonic()

    def shorter(self, seconds: float) -> "Patience":
        """Return the same that ends after some seconds at the latest."""
        until = min(self.until, time.monotonic() + seconds)
        return Patience(until, self.waiting, self.cancel)

    def last_at_least(self, seconds: float) -> None:
        """Do not end before some seconds have passed from now."""
        self.until = max(self.until, time.monotonic() + seconds)

    @property
    def slice(self) -> float:
        """Maximum seconds of the next sleep."""
        return max(0.0, min(SLICE_S, self.until - time.monotonic()))

    def check(self) -> None:
        """Raise an error if the wait should end.

        Raises:
            CancelledError: Another thread has cancelled it.
            LateError: It is after the deadline.
        """
        if self.cancel is not None and self.cancel.cancelled:
            raise CancelledError
        now = time.monotonic()
        if self.waiting is not None and now - self._called >= SLICE_S:
            self._called = now
            self.waiting()
        if now >= self.until:
            raise LateError


class Wire:
    """A connection.

    Args:
        sock: Its socket.

    Attributes:
        sock: Same as the argument.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        # Python would warn of a socket that is not closed.
        weakref.finalize(self, sock.close).atexit = False
        try:
            sock.setblocking(False)  # noqa: FBT003  (its only argument)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError as error:
            raise _cut(error) from None

    def send(self, parts: Iterable[Any], patience: Patience, extra_s: float = 0.0) -> None:
        """Send bytes.

        Args:
            parts: Buffers, in their order.
            patience: Ends the wait.
            extra_s: Seconds that the patience lasts at least after the peer has taken some.

        Raises:
            CutError: The connection ended.
        """
        for part in parts:
            view = memoryview(part).cast("B")
            while view:
                try:
                    view = view[self.sock.send(view) :]
                    patience.last_at_least(extra_s)
                except _MUST_WAIT as why:
                    self._wait_with(why, select.POLLOUT, patience)
                except OSError as error:
                    raise _cut(error) from None

    def receive(self, size: int, patience: Patience, extra_s: float = 0.0) -> bytearray:
        """Receive exactly this many bytes; the other arguments are as for `send`.

        Raises:
            CutError: The connection ended.
            MemoryError: This process has no memory for them.
        """
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self.sock.recv_into(view)
            except _MUST_WAIT as why:
                self._wait_with(why, select.POLLIN, patience)
                continue
            except OSError as error:
                raise _cut(error) from None
            if count == 0:
                raise CutError("the peer ended the connection", by_peer=True)
            view = view[count:]
            patience.last_at_least(extra_s)
        return data

    def encrypt(
        self, context: ssl.SSLContext, patience: Patience, server_ip: str | None = None
    ) -> None:
        """Set up TLS; everything after that is encrypted.

        Args:
            context: This end.
            patience: Ends the wait.
            server_ip: The IP address that the certificate of the server must name; None at a server.

        Raises:
            EncryptionError: The peer does not speak TLS, or one side refused the certificate of the
                other.
        """
        sock = context.wrap_socket(
            self.sock,
            server_side=server_ip is None,
            do_handshake_on_connect=False,
            server_hostname=server_ip,
        )
        weakref.finalize(self, sock.close).atexit = False
        self.sock = sock
        while True:
            try:
                sock.do_handshake()
            except _MUST_WAIT as why:
                self._wait_with(why, select.POLLIN, patience)
            except OSError as error:
                raise _cut(error) from None
            else:
                return

    def _wait_with(self, why: OSError, events: int, patience: Patience) -> None:
        """Wait for what a call lacks: with TLS a read may have to write, and a write to read."""
        if isinstance(why, ssl.SSLWantReadError):
            events = select.POLLIN
        elif isinstance(why, ssl.SSLWantWriteError):
            events = select.POLLOUT
        self._poll(events, patience.slice)
        patience.check()

    def peek(self, size: int, patience: Patience) -> bytes:
        """Return the first bytes that arrive, without taking them."""
        while True:
            try:
                return self.sock.recv(size, socket.MSG_PEEK)
            except BlockingIOError as why:
                self._wait_with(why, select.POLLIN, patience)
            except OSError as error:
                raise _cut(error) from None

    def drain(self, patience: Patience) -> None:
        """Throw away what the peer sends, until it has ended the connection or the patience ends.

        With unread bytes the end of the connection would overtake what was sent last.
        """
        with contextlib.suppress(CutError, LateError, OSError):
            while True:
                self._poll(select.POLLIN, patience.slice)
                patience.check()
                try:
                    # Not decrypted: TLS may have failed.
                    data = socket.socket.recv(self.sock, 4096)
                except BlockingIOError:
                    continue
                if not data:
                    return

    def wait(self, events: int, seconds: float) -> int:
        """Wait for events of `select.poll`, or the end of the connection; return what happened."""
        if events & select.POLLIN and isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return select.POLLIN
        return self._poll(events, seconds)

    def _poll(self, events: int, seconds: float) -> int:
        poll = select.poll()
        try:
            poll.register(self.sock, events)
        except ValueError:  # another thread has closed it
            raise CutError("the connection is closed", by_peer=True) from None
        found = poll.poll(seconds * 1000)
        return found[0][1] if found else 0

    @property
    def is_there(self) -> bool:
        """Whether the peer is there, as far as the kernel knows."""
        return not self.wait(select.POLLRDHUP, 0) & _GONE

    @property
    def is_idle(self) -> bool:
        """Whether the peer is there, and has sent nothing that was not read."""
        return not self.wait(select.POLLIN | select.POLLRDHUP, 0)

    def end_abruptly(self, *, abruptly: bool) -> None:
        """Set whether the end of the connection overtakes the bytes that wait to be sent."""
        linger = struct.pack("ii", abruptly, 0)
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError as error:
            raise _cut(error) from None

    def shut(self) -> None:
        """End the connection, also for copies of its descriptor; threads that wait on it go on."""
        try:
            # Not that of an SSLSocket, which would go on without TLS.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        except OSError:
            return  # it has ended already

    def close(self) -> None:
        """Close this process's descriptor of the connection."""
        self.sock.close()


def _cut(error: OSError) -> CutError:
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return EncryptionError(error)
    if isinstance(error, ssl.SSLEOFError):
        return CutError("the peer ended the connection", by_peer=True)
    return CutError(str(error), by_peer=isinstance(error, (ConnectionResetError, BrokenPipeError)))
