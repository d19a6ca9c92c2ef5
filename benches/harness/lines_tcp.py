"""Lines over TCP between two nodes: the lane, bare connections in Python, and pyzmq."""

import ctypes
import os
import pickle
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from harness.lines import Line, Load, Rival
from shoal import _backend, shm
from shoal.shm.keys import canonical

__all__ = ["BareTcp", "Echo", "Lane", "LaneGets", "Network", "Zmq"]

KEY = "bench"
# Length of the header of a bare message: its number of bytes.
HEADER = 8
# The node of the queue, and the one of the process that uses it over the network.
OWNER, USER = 0, 1
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class Network:
    """The network between two nodes.

    Attributes:
        name: What it is, for the table.
        ip: The address of the queue's node.
        pids: For each node, a process in its network namespace; empty if there is one for all.
    """

    name: str = "loopback"
    ip: str = "127.0.0.1"
    pids: tuple[int, ...] = ()

    def enter(self, node: int) -> None:
        """Move the calling thread, with the threads that it will start, to a node."""
        if self.pids:
            with Path(f"/proc/{self.pids[node]}/ns/net").open() as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"cannot enter {namespace.name}")

    def at_owner(self, make: Callable[[], Any]) -> Any:
        """Return the result of a function that another thread calls at the queue's node."""
        with ThreadPoolExecutor(1, initializer=self.enter, initargs=(OWNER,)) as pool:
            return pool.submit(make).result()

    def listen(self) -> socket.socket:
        """Listen on a free port of the queue's node."""
        return self.at_owner(lambda: socket.create_server((self.ip, 0)))


class Lane(Line):
    """Puts over the lane to a server in a third process; gets in the shared memory of that one."""

    name = "lane"
    arrays = "torch"
    can = frozenset({"many"})

    def __init__(self, load: Load, network: Network) -> None:
        super().__init__(load)
        self._session, self._network = shm.Session.create(), network
        secret = os.urandom(32)
        self._server = network.at_owner(
            lambda: _backend.LaneServer(self._session, network.ip, secret)
        )
        self._where = (*self._server.address, secret)
        self._token = self._session.token

    def __getstate__(self) -> dict[str, Any]:
        sent = ("load", "_network", "_token", "_where")
        return {name: vars(self)[name] for name in sent}

    @cached_property
    def _far(self) -> Any:
        self._network.enter(USER)
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
    """A connection between the two processes: each message is acknowledged.

    It holds nothing, encodes nothing and receives arrays into the same buffer each time: a limit.
    """

    name = "bare TCP"

    def __init__(self, load: Load, network: Network) -> None:
        super().__init__(load)
        self._network = network
        # Both processes get it; the receiver accepts.
        self._listener = network.listen()

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

    def _connected(self) -> socket.socket:
        self._network.enter(USER)
        return _prompt(socket.create_connection(self._listener.getsockname()))

    def _accepted(self) -> socket.socket:
        return _prompt(self._listener.accept()[0])

    def close(self):
        self._listener.close()


class Echo(BareTcp):
    """A bare connection on which each message, or batch of them, comes back before the next one.

    Its messages have 64 bytes, whatever those of the row are, so that a batch of 64 has 4 KiB.
    """

    name = "bare TCP echo"
    can = frozenset({"many"})

    def __init__(self, load: Load, network: Network) -> None:
        super().__init__(Load("bytes", depth=load.depth), network)

    def putter(self):
        put = self.many_putter()
        return lambda message: put([message])

    def getter(self):
        take = self.many_getter()
        return lambda: take(1)[0]

    def many_putter(self):
        stream = self._connected()

        def put(messages: list[bytes]) -> None:
            body = b"".join(messages)
            stream.sendall(body)
            _read(stream, bytearray(len(body)))

        return put

    def many_getter(self):
        stream, size = self._accepted(), self.load.size

        def take(count: int) -> list[bytes]:
            body = bytes(_read(stream, bytearray(count * size)))
            stream.sendall(body)
            return [body[at : at + size] for at in range(0, len(body), size)]

        return take


class Zmq(Rival):
    """pyzmq without more: a socket that pushes, and one that pulls. No message is acknowledged."""

    name = "bare pyzmq"
    module = "zmq"
    can = frozenset({"many"})

    def __init__(self, load: Load, network: Network) -> None:
        super().__init__(load)
        self._network = network
        with network.listen() as free:
            self._address = f"tcp://{network.ip}:{free.getsockname()[1]}"

    def _open(self, kind: str, node: int) -> Any:
        self._network.enter(node)
        opened = self.package().Context().socket(getattr(self.package(), kind))
        opened.hwm, opened.linger = self.load.depth, 0
        if kind == "PULL":
            opened.bind(self._address)
        else:
            opened.connect(self._address)
        return opened

    def _encode(self, message: Any) -> Any:
        return pickle.dumps(message, protocol=5) if self.load.kind == "dict" else message

    def _decode(self, data: Any) -> Any:
        if self.load.kind == "array":
            return np.frombuffer(data.buffer, "f4")
        return pickle.loads(data) if self.load.kind == "dict" else data

    def putter(self):
        send, copy = self._open("PUSH", USER).send, self.load.kept
        return lambda message: send(self._encode(message), copy=copy)

    def getter(self):
        receive, copy = self._open("PULL", OWNER).recv, self.load.kept
        return lambda: self._decode(receive(copy=copy))

    def many_putter(self):
        send = self._open("PUSH", USER).send_multipart
        return lambda messages: send([self._encode(message) for message in messages])

    def many_getter(self):
        receive = self._open("PULL", OWNER).recv_multipart
        return lambda _most: [self._decode(part) for part in receive()]


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
