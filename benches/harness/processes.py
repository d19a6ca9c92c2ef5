"""Processes that work together on one row of the table, in rounds that a conductor calls.

Each process has a core, and opens its ends of the lines once. In a round all meet, so that they
begin together, and work through `count` messages. Times are of the one monotonic clock that all
processes of a machine share.
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

# Lets other threads run, of this process too because ctypes gives up the GIL: a microsecond, where
# a sleep of no length takes 80.
breathe = ctypes.CDLL(None).sched_yield

# Seconds after which a process ends, whatever it waits for: another may have died.
LIFE = 900
# Seconds in which every process has to finish a round.
ANSWER = 300
# Maximum number of messages in a round that are timed one by one.
STAMPS = 20_000

# A server that has imported what is slow to import forks the processes: none starts from nothing,
# and none has the threads of pytest or Ray.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["numpy", "pytest", "torch", "shoal.shm"])

# Called with the number of messages, in every process of the crew at once.
Round = Callable[[int], Any]


def cores() -> tuple[int, int]:
    """Return the two cores that are measured on, which are one where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


class Board:
    """Words that the processes of a crew share: which are ready, and when messages went and came.

    Args:
        members: How many processes share them.
        path: A file for the words; None where the processes inherit them.
    """

    def __init__(self, members: int, path: str | None = None) -> None:
        self._members = members
        # 64 words are 512 bytes, so that no two words that are polled share a line.
        self._count = 64 * members + 2 * STAMPS
        self._path = path
        self._words = CONTEXT.RawArray("q", self._count) if path is None else None
        self._round = 0

    def open(self) -> None:
        """Make the words quick to read and write, in the process that uses them."""
        words = memoryview(self._words or self._mapped()).cast("B").cast("q")
        self._ready = words[: 64 * self._members : 64]
        self.sent = words[64 * self._members : -STAMPS]
        self.came = words[-STAMPS:]

    def _mapped(self) -> mmap.mmap:
        with Path(self._path).open("r+b") as file:
            os.truncate(file.fileno(), 8 * self._count)
            return mmap.mmap(file.fileno(), 8 * self._count)

    def meet(self, member: int) -> None:
        """Wait until all members are here."""
        self._round += 1
        self._ready[member] = self._round
        while min(self._ready) < self._round:
            breathe()


class Crew:
    """Starts processes, calls rounds, and ends them.

    Args:
        roles: One for each process: called once there, with the board and the process's number,
            for the function that works through a round. They are pickled.
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
        """Let all work through `count` messages; returns what each of them returned."""
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
                # At once: the others may wait for this one.
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
