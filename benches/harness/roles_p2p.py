"""Roles of the workers of a job in point to point rows: broadcasts, first contacts, use of gloo."""

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from harness.lines import Line, Load
from harness.lines_in_job import GROUP
from harness.processes import Board, Round, breathe
from shoal import Worker

__all__ = ["Broadcast", "Contact", "CopyFromMapping", "CountGlooSends", "Spread", "last_end"]

now = time.perf_counter_ns


def last_end(answers: list[list[int]], _count: int) -> list[int]:
    """Return the time of each broadcast: from the source's start until the last receiver's end."""
    starts, *ends = answers
    return [max(each) - start for start, *each in zip(starts, *ends, strict=True)]


def _in_step(board: Board, member: int, give: Callable[[], object], take: Callable[[], object]):
    """Make a round in which all members meet before each message; member 0 gives, the others take.

    For each message the round returns the time at which the giver began, or the taker had it.
    """

    def work(count: int) -> list[int]:
        stamps = []
        for _ in range(count):
            board.meet(member)
            stamps.append(now())
            if member == 0:
                give()
            else:
                take()
                stamps[-1] = now()
        return stamps

    return work


@dataclass(frozen=True)
class Broadcast:
    """Takes part in broadcasts from rank 0 to all `workers` by `Worker.broadcast`.

    Each receiver copies the whole object into its own memory, as in the limit: mapping it costs
    little, reading it is what counts.
    """

    load: Load
    workers: int

    def __call__(self, board: Board, member: int) -> Round:
        broadcast = Worker.current_worker.broadcast
        message = self.load.make(0, "torch") if member == 0 else None
        groups = [(GROUP, list(range(self.workers)))]

        own = np.zeros(self.load.size // 4, dtype=np.float32)

        def take() -> None:
            np.copyto(own, broadcast(groups=groups).numpy().reshape(-1))
            self.load.check(own, 0)

        return _in_step(board, member, lambda: broadcast(message, groups), take)


@dataclass(frozen=True)
class Spread:
    """Rank 0 puts each message once, into a line from which all others get it.

    Attributes:
        line: The line.
        copied: Whether each receiver then copies the message into its own memory, as above.
    """

    line: Line
    copied: bool = False

    def __call__(self, board: Board, member: int) -> Round:
        load = self.line.load
        if member == 0:
            put, message = self.line.putter(), load.make(0, "torch")
            return _in_step(board, member, lambda: put(message), lambda: None)
        get, own = self.line.getter(), np.zeros(load.size // 4, dtype=np.float32)

        def take() -> None:
            message = get()
            if self.copied:
                np.copyto(own, message.numpy())
                message = own
            load.check(message, 0)

        return _in_step(board, member, lambda: None, take)


@dataclass(frozen=True)
class CopyFromMapping:
    """The limit of a broadcast: rank 0 writes once into a shared mapping, the others copy it.

    Attributes:
        load: The message.
        path: The mapping's file.
    """

    load: Load
    path: str

    def __call__(self, board: Board, member: int) -> Round:
        with Path(self.path).open("a+b") as file:
            os.truncate(file.fileno(), self.load.size)
            mapped = mmap.mmap(file.fileno(), self.load.size)
        shared = np.frombuffer(mapped, dtype=np.float32)
        # Written now, so that the timed copies have warm memory on both sides.
        own = np.zeros_like(shared)
        if member == 0:
            own[:] = self.load.make(0, "numpy")
            shared[:] = own
        written = board.sent[0:1]
        seen = written[0]
        board.meet(member)

        def give() -> None:
            np.copyto(shared, own)
            written[0] += 1

        def take() -> None:
            nonlocal seen
            seen += 1
            while written[0] < seen:
                breathe()
            np.copyto(own, shared)
            self.load.check(own, 0)

        return _in_step(board, member, give, take)


@dataclass(frozen=True)
class Contact:
    """Rank 0 exchanges a first message with each of the others, one after the other.

    It returns the nanoseconds for each peer, and the numbers of additional threads and descriptors.
    """

    peers: int

    def __call__(self, board: Board, member: int) -> Round:
        worker = Worker.current_worker

        def ask(_count: int) -> tuple[float, int, int]:
            threads, descriptors = held("task"), held("fd")
            start = now()
            for peer in range(1, self.peers + 1):
                worker.send(peer, GROUP, peer)
                if worker.recv(GROUP, peer) != peer:
                    raise ValueError(f"rank {peer} answered with another message")
            spent = (now() - start) / self.peers
            return spent, held("task") - threads, held("fd") - descriptors

        def answer(_count: int) -> None:
            worker.send(worker.recv(GROUP, 0), GROUP, 0)

        return ask if member == 0 else answer


def held(what: str) -> int:
    """Count the threads (`task`) or descriptors (`fd`) of this process."""
    return sum(1 for _ in Path(f"/proc/self/{what}").iterdir())


@dataclass(frozen=True)
class CountGlooSends:
    """Sends a tensor from rank 0 to rank 1; returns the number of sends by gloo meanwhile."""

    line: Line

    def __call__(self, board: Board, member: int) -> Round:
        if member:
            get = self.line.getter()
            return lambda _count: self.line.load.check(get(), 0)
        put, message = self.line.putter(), self.line.load.make(0, "torch")
        kind = import_module("torch.distributed").ProcessGroupGloo
        send, calls = kind.send, []

        def counted(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return send(*args, **kwargs)

        def work(_count: int) -> int:
            kind.send = counted
            try:
                put(message)
                # A buffered send returns before another thread begins with it.
                until = time.monotonic() + 2
                while not calls and time.monotonic() < until:
                    time.sleep(0.01)
            finally:
                del kind.send  # uncovers the inherited method
            return len(calls)

        return work
