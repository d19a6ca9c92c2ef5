"""Lines over TCP between two processes: the lane, and a bare connection in Python."""

import os
import socket
from functools import cached_property
from typing import Any

import numpy as np

from harness.lines import Line, Load
from shoal import _backend, shm
from shoal.shm.keys import canonical

__all__ = ["BareTcp", "Lane", "LaneGets"]

KEY = "bench"
# Length of the header of a bare message: its number of bytes.
HEADER = 8


class Lane(Line):
    """Puts over the lane to a server in a third process; gets in the shared memory of that one."""

    name = "lane"
    arrays = "torch"
    can = frozenset({"many"})

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._session = shm.Session.create()
        secret = os.urandom(32)
        self._server = _backend.LaneServer(self._session, "127.0.0.1", secret)
        self._where = (*self._server.address, secret)
        self._token = self._session.token

    def __getstate__(self) -> dict[str, Any]:
        return {"load": self.load, "_token": self._token, "_where": self._where}

    @cached_property
    def _far(self) -> Any:
        client = _backend.LaneClient(*self._where)
        return _backend.LaneQueue(client, canonical(KEY), self.load.depth)

    @cached_property
    def _near(self) -> Any:
        session = shm.Session.attach(self._token)
        return session.queue(KEY, maxsize=self.load.depth)

    def putter(self):
        return self._far.put

    def getter(self):
        return self._near.get

    def many_putter(self):
        return self._far.put_many

    def many_getter(self):
        return self._near.get_many

    def close(self):
        self._server.stop()
        self._session.close()


class LaneGets(Lane):
    """Puts in the shared memory of the third process; gets over the lane."""

    def putter(self):
        return self._near.put

    def getter(self):
        return self._far.get

    def many_putter(self):
        return self._near.put_many

    def many_getter(self):
        return self._far.get_many


class BareTcp(Line):
    """A connection between the two processes: each message, or batch of them, is acknowledged.

    It holds nothing, encodes nothing and receives arrays into the same buffer each time: a limit.
    """

    name = "bare TCP"
    can = frozenset({"many"})

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        # Both processes get it; the receiver accepts.
        self._listener = socket.create_server(("127.0.0.1", 0))

    def putter(self):
        stream = self._connected()

        def put(message: Any) -> None:
            body = memoryview(message).cast("B")
            head = body.nbytes.to_bytes(HEADER, "little")
            if body.nbytes < 1 << 16:
                stream.sendall(head + bytes(body))
            else:
                stream.sendall(head)
                stream.sendall(body)
            _read(stream, bytearray(1))

        return put

    def getter(self):
        stream, head, kept = self._accepted(), bytearray(HEADER), np.empty(self.load.size, "u1")
        small = self.load.kind == "bytes"

        def get() -> Any:
            size = int.from_bytes(_read(stream, head), "little")
            body = _read(stream, bytearray(size) if small else kept)
            stream.sendall(b"x")
            return bytes(body) if small else kept.view("f4")

        return get

    def many_putter(self):
        stream = self._connected()

        def put(messages: list[bytes]) -> None:
            body = b"".join(messages)
            stream.sendall(len(body).to_bytes(HEADER, "little") + body)
            _read(stream, bytearray(1))

        return put

    def many_getter(self):
        get, size = self.getter(), self.load.size

        def take(_most: int) -> list[bytes]:
            body = get()
            return [body[at : at + size] for at in range(0, len(body), size)]

        return take

    def _connected(self) -> socket.socket:
        return _prompt(socket.create_connection(self._listener.getsockname()))

    def _accepted(self) -> socket.socket:
        return _prompt(self._listener.accept()[0])

    def close(self):
        self._listener.close()


def _prompt(stream: socket.socket) -> socket.socket:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def _read(stream: socket.socket, into: Any) -> Any:
    view = memoryview(into)
    while view.nbytes:
        count = stream.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return into
