"""Roles that show what a line costs: processor time, the time after a pause, and fair shares."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.lines import Line
from harness.processes import Board, Round, breathe
from harness.roles import Role

__all__ = ["SIDES", "CpuTime", "SendAfterPause", "Share", "fairness", "time_of_shares"]

now = time.perf_counter_ns

# The state in /proc/net/tcp.
ESTABLISHED = "01"
# Names of the numbers of `fairness`.
SIDES = ("producers, most by fewest", "consumers, most by fewest")


@dataclass(frozen=True)
class CpuTime:
    """Plays another role; returns its answer and the processor time of the process in nanoseconds."""

    role: Role

    def __call__(self, board: Board, member: int) -> Round:
        work = self.role(board, member)

        def timed(count: int) -> tuple[Any, int]:
            start = time.process_time_ns()
            answer = work(count)
            return answer, time.process_time_ns() - start

        return timed


@dataclass(frozen=True)
class SendAfterPause:
    """Sends one message to a `ReceiveApart`, after a number of seconds without one.

    Returns the nanoseconds of the message, and the number of connections at the end of the pause.
    """

    line: Line
    pause: float

    def __call__(self, board: Board, member: int) -> Round:
        put, message = self.line.putter(), self.line.load.make(0, self.line.arrays)

        def work(_count: int) -> tuple[int, int]:
            board.came[0] = 0
            board.meet(member)
            time.sleep(self.pause)
            held = connections()
            start = now()
            put(message)
            while not board.came[0]:
                breathe()
            return board.came[0] - start, held

        return work


@dataclass(frozen=True)
class Share:
    """Puts or gets messages one by one, as the others of its side do at the same time.

    Returns when it began, when it ended, and how many times as many messages it had handled then as
    the slowest of its side.

    Attributes:
        line: The line of the messages.
        puts: Whether its side is that of the producers, which are the first members.
        of: Number of processes on each side.
    """

    line: Line
    puts: bool
    of: int

    def __call__(self, board: Board, member: int) -> Round:
        if self.puts:
            step = partial(self.line.putter(), self.line.load.make(0, self.line.arrays))
        else:
            step = self.line.getter()
        handled = (board.sent if self.puts else board.came)[: self.of]
        own = member % self.of

        def work(count: int) -> tuple[int, int, float]:
            handled[own] = 0
            board.meet(member)
            start = now()
            for number in range(1, count + 1):
                step()
                handled[own] = number
            end = now()
            return start, end, count / max(min(handled), 1)

        return work


def time_of_shares(answers: list[tuple[int, int, float]], count: int) -> list[float]:
    """Return the time of a message in nanoseconds from the results of all `Share`."""
    starts, ends, _ = zip(*answers, strict=True)
    return [(max(ends) - min(starts)) / (count * len(answers) // 2)]


def fairness(answers: list[tuple[int, int, float]]) -> dict[str, float]:
    """Return, for each side, the ratio of most to fewest messages when its first process ended."""
    half = len(answers) // 2
    firsts = [min(side, key=itemgetter(1)) for side in (answers[:half], answers[half:])]
    return {name: first[2] for name, first in zip(SIDES, firsts, strict=True)}


def connections() -> int:
    """Count the established TCP connections of this process."""
    own = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  (a path would be one more to close)
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            own.add(os.fstat(int(name)).st_ino)
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[3] == ESTABLISHED and int(line.split()[9]) in own for line in lines)
