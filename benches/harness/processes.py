"""Crews: processes that work together on one row of the table, in rounds that a conductor starts.

Each process has a core, and opens its ends of the lines once. In a round all processes meet, so
that they begin together, and then handle `count` messages. Times are from the monotonic clock that
all processes of a machine share.
"""

import ctypes
import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

__all__ = ["CONTEXT", "LIFE", "Board", "Crew", "Round", "breathe", "cores"]

# Lets other threads run, including those of this process because ctypes releases the GIL. It takes
# 1 µs; `time.sleep(0)` takes 80.
breathe = ctypes.CDLL(None).sched_yield

# Seconds before a process ends itself, because a process that it waits for may have died.
LIFE = 900
# Seconds within which every process has to finish a round.
ANSWER = 300
# Maximum number of messages in a round that are timed one by one.
STAMPS = 20_000

# Processes are forked from a server that has done the slow imports: they start fast, and without
# the threads of pytest or Ray.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["numpy", "pytest", "torch", "shoal.shm"])

# Works through a round of the given number of messages; called in all processes of a crew at once.
Round = Callable[[int], Any]


def cores() -> tuple[int, int]:
    """Return the two cores to measure on; they are the same if there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


class Board:
    """Shared words of a crew: which processes are ready, and when messages were sent and received.

    Args:
        members: Number of processes that share the words.
        path: A file for the words; None if the processes inherit them.
    """

    def __init__(self, members: int, path: str | None = None) -> None:
        self._members = members
        # 64 words are 512 bytes, so that no two polled words share a cache line.
        self._count = 64 * members + 2 * STAMPS
        self._path = path
        self._words = CONTEXT.RawArray("q", self._count) if path is None else None
        self._round = 0

    def open(self) -> None:
        """Make fast views of the words, in the process that uses them."""
        words = memoryview(self._words or self._mapped()).cast("B").cast("q")
        self._ready = words[: 64 * self._members : 64]
        self.sent = words[64 * self._members : -STAMPS]
        self.came = words[-STAMPS:]

    def _mapped(self) -> mmap.mmap:
        with Path(self._path).open("r+b") as file:
            os.truncate(file.fileno(), 8 * self._count)
            return mmap.mmap(file.fileno(), 8 * self._count)

    def meet(self, member: int) -> None:
        """Wait until all members have called this."""
        self._round += 1
        self._ready[member] = self._round
        while min(self._ready) < self._round:
            breathe()


class Crew:
    """Starts processes, runs rounds, and ends the processes.

    Args:
        roles: One for each process, sent as a pickle. The process calls it once, with the board and
            its number, to get the function that works through a round.
        on: The cores of each process.
    """

    def __init__(self, roles: Sequence[Callable[[Board, int], Round]], on: Sequence[set[int]]):
        board = Board(len(roles))
        self._processes = []
        self._ends: list[Connection] = []
        for member, (role, own) in enumerate(zip(roles, on, strict=True)):
            ours, theirs = CONTEXT.Pipe()
            arguments = (role, board, member, own, theirs)
            process = CONTEXT.Process(target=_live, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._ends.append(ours)
        try:
            self._answers()
        except BaseException:
            self.close()
            raise

    def round(self, count: int) -> list[Any]:
        """Let all processes work through `count` messages; return their results."""
        for end in self._ends:
            end.send(count)
        return self._answers()

    def _answers(self) -> list[Any]:
        answers: dict[Connection, Any] = {}
        until = time.monotonic() + ANSWER
        while missing := [end for end in self._ends if end not in answers]:
            came = wait(missing, until - time.monotonic())
            if not came:
                raise TimeoutError(f"{len(missing)} processes did not answer within {ANSWER} s")
            for end in came:
                answers[end] = end.recv()
                # Raise at once: the others may wait for this process.
                if isinstance(answers[end], Exception):
                    raise answers[end]
        return [answers[end] for end in self._ends]

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()


def _live(
    role: Callable[[Board, int], Round], board: Board, member: int, own: set[int], end: Connection
) -> None:
    signal.alarm(LIFE)
    os.sched_setaffinity(0, own)
    try:
        board.open()
        work = role(board, member)
        end.send(None)
        while True:
            try:
                count = end.recv()
            except EOFError:
                return
            end.send(work(count))
    except Exception as error:  # noqa: BLE001  (the conductor raises it)
        end.send(RuntimeError(f"{type(error).__name__}: {error}"))
