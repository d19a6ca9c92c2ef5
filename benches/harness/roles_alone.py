"""Roles for rows of `shoal.shm` that one process measures alone."""

import time
from collections import deque
from dataclasses import dataclass

from harness.lines import Shoal
from harness.processes import Board, Round
from harness.roles import KEPT
from shoal import shm

__all__ = ["Attach", "Calls", "GetQueued", "MakeAndKeep", "MakeKeys", "PutGet"]

now = time.perf_counter_ns


@dataclass(frozen=True)
class Calls:
    """Calls two methods that do nothing; returns the average time of the two."""

    line: Shoal

    def __call__(self, board: Board, member: int) -> Round:
        put = get = b"".__len__

        def work(count: int) -> list[float]:
            start = now()
            for _ in range(count):
                put()
                get()
            return [(now() - start) / count]

        return work


@dataclass(frozen=True)
class MakeAndKeep:
    """Makes messages from other bytes, as a get does, and keeps them, as a receiver does."""

    line: Shoal

    def __call__(self, board: Board, member: int) -> Round:
        size = self.line.load.size
        source = bytes(range(256)) * size

        def work(count: int) -> list[float]:
            kept: deque[bytes] = deque(maxlen=KEPT)
            start = now()
            for at in range(count):
                kept.append(source[at & 255 : (at & 255) + size])
            return [(now() - start) / count]

        return work


@dataclass(frozen=True)
class MakeKeys:
    """Makes new queues; returns the time of each."""

    line: Shoal

    def __call__(self, board: Board, member: int) -> Round:
        session = shm.Session.attach(self.line.token)
        made = []

        def make() -> int:
            key = ("key", len(made))
            start = now()
            made.append(session.queue(key, maxsize=8))
            return now() - start

        return lambda count: [make() for _ in range(count)]


@dataclass(frozen=True)
class Attach:
    """Joins a session of another process and leaves it; returns the time of each joining."""

    line: Shoal

    def __call__(self, board: Board, member: int) -> Round:
        def attach() -> int:
            start = now()
            session = shm.Session.attach(self.line.token)
            spent = now() - start
            session.close()
            return spent

        return lambda count: [attach() for _ in range(count)]


@dataclass(frozen=True)
class PutGet:
    """Puts a message and gets it; returns the average time of the two."""

    line: Shoal

    def __call__(self, board: Board, member: int) -> Round:
        queue = self.line.queue()
        put, get = queue.put, queue.get
        message = self.line.load.make(0, self.line.arrays)

        def work(count: int) -> list[float]:
            start = now()
            for _ in range(count):
                put(message)
                get()
            return [(now() - start) / count]

        return work


@dataclass(frozen=True)
class GetQueued:
    """Gets messages that are already in the queue; returns the time of each get."""

    line: Shoal

    def __call__(self, board: Board, member: int) -> Round:
        queue = self.line.queue()
        load = self.line.load
        message = load.make(0, self.line.arrays)

        def get() -> int:
            queue.put(message)
            start = now()
            got = queue.get()
            spent = now() - start
            load.check(got, 0)
            return spent

        return lambda count: [get() for _ in range(count)]
