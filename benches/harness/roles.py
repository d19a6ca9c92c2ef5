"""Roles of two processes in a round: senders and receivers, and the times that they measure.

Roles are classes so that they can be pickled. The conductor makes them with the lines. The process
calls its role once, which opens its ends of the lines and returns the function for a round.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.lines import Line, Load, in_a_loop
from harness.processes import STAMPS, Board, Round, breathe

__all__ = [
    "KEPT",
    "Answer",
    "Ask",
    "AwaitApart",
    "Idle",
    "Receive",
    "ReceiveApart",
    "Role",
    "Send",
    "SendApart",
    "time_of_all",
]

now = time.perf_counter_ns

# Number of messages that a consumer keeps, so that each has its own memory but the process does not
# grow. Keeping all would measure how fast the kernel gives memory: 100 ns and more for 64 bytes.
KEPT = 10_000

# Called once in each process of a crew, with the process's number.
Role = Callable[[Board, int], Round]


@dataclass(frozen=True)
class Ask:
    """Sends a message and waits until it comes back; returns half of each round trip's time."""

    there: Line
    back: Line
    load: Load

    def __call__(self, board: Board, member: int) -> Round:
        put, get = self.there.putter(), self.back.getter()
        message = self.load.make(0, self.there.arrays)

        def work(count: int) -> list[int]:
            board.meet(member)
            # The clock is read once for each round trip: a reading costs a tenth of the result.
            stamps = [now()]
            for _ in range(count):
                put(message)
                get()
                stamps.append(now())
            return [(after - before) // 2 for before, after in pairwise(stamps)]

        return work


@dataclass(frozen=True)
class Answer:
    """Sends each message back."""

    there: Line
    back: Line

    def __call__(self, board: Board, member: int) -> Round:
        get, put = self.there.getter(), self.back.putter()

        def work(count: int) -> None:
            board.meet(member)
            for _ in range(count):
                put(get())

        return work


@dataclass(frozen=True)
class SendApart:
    """Sends each message a while after the one before arrived; returns the time of each message.

    Waiting lets other threads of the process run, because some queues send in a thread.
    """

    line: Line
    load: Load
    pause: int

    def __call__(self, board: Board, member: int) -> Round:
        put = self.line.putter()
        message = self.load.make(0, self.line.arrays)

        def work(count: int) -> list[int]:
            sent, came, pause = board.sent, board.came, self.pause
            count = min(count, STAMPS)
            for number in range(count):
                came[number] = 0
            board.meet(member)
            for number in range(count):
                go = now() + pause
                while now() < go:
                    breathe()
                sent[number] = now()
                put(message)
                while not came[number]:
                    breathe()
            return [came[number] - sent[number] for number in range(count)]

        return work


@dataclass(frozen=True)
class ReceiveApart:
    """Records the time at which each whole message has arrived, and drops the message."""

    line: Line
    load: Load

    def __call__(self, board: Board, member: int) -> Round:
        get = self.line.getter()

        def work(count: int) -> None:
            came = board.came
            board.meet(member)
            for number in range(min(count, STAMPS)):
                message = get()
                stamp = now()
                self.load.check(message, 0)
                message = None
                came[number] = stamp

        return work


@dataclass(frozen=True)
class AwaitApart:
    """Same as `ReceiveApart`, in an event loop of asyncio that has nothing else to do."""

    line: Line
    load: Load

    def __call__(self, board: Board, member: int) -> Round:
        get = self.line.awaiter()

        async def receive(count: int) -> None:
            came = board.came
            for number in range(min(count, STAMPS)):
                message = await get()
                stamp = now()
                self.load.check(message, 0)
                came[number] = stamp

        def work(count: int) -> None:
            board.meet(member)
            asyncio.run(receive(count))

        return work


@dataclass(frozen=True)
class Send:
    """Sends distinct messages as fast as it can, `batch` in each call; returns the start time."""

    line: Line
    load: Load
    batch: int = 1

    def __call__(self, board: Board, member: int) -> Round:
        line = self.line
        put_all = line.streamer() if self.batch == 1 else in_a_loop(line.many_putter())

        def work(count: int) -> int:
            messages = [self.load.make(number, line.arrays) for number in range(count)]
            if self.batch > 1:
                starts = range(0, count, self.batch)
                messages = [messages[start : start + self.batch] for start in starts]
            board.meet(member)
            start = now()
            put_all(messages)
            return start

        return work


@dataclass(frozen=True)
class Receive:
    """Receives messages as fast as it can; returns the time at which it had the last.

    Args:
        line: The line of the messages.
        load: The messages.
        batch: Maximum number of messages in one call.
        alone: Whether it is the only receiver. If so, it checks that messages keep their order.
    """

    line: Line
    load: Load
    batch: int = 1
    alone: bool = True

    def __call__(self, board: Board, member: int) -> Round:
        get = self.line.getter() if self.batch == 1 else self.line.many_getter()

        def one_by_one(count: int) -> int:
            kept: deque[Any] = deque(maxlen=KEPT)
            board.meet(member)
            for _ in range(count):
                kept.append(get())
            end = now()
            if self.alone:
                self.check(kept, count)
            return end

        def dropping(count: int) -> int:
            board.meet(member)
            for _ in range(count):
                get()
            return now()

        def in_batches(count: int) -> int:
            kept: deque[Any] = deque(maxlen=KEPT)
            board.meet(member)
            left = count
            while left:
                batch = get(min(self.batch, left))
                kept += batch
                left -= len(batch)
            end = now()
            self.check(kept, count)
            return end

        if self.batch > 1:
            return in_batches
        return one_by_one if self.load.kept else dropping

    def check(self, kept: deque[Any], count: int) -> None:
        """Raise if `kept` are not the last of `count` messages, in order."""
        for number, message in enumerate(kept, count - len(kept)):
            self.load.check(message, number)


@dataclass(frozen=True)
class Idle:
    """Waits `count` milliseconds in vain.

    Returns the nanoseconds of the wait, and the use of a core in percent.
    """

    line: Line

    def __call__(self, board: Board, member: int) -> Round:
        wait = self.line.waiter()

        def work(count: int) -> tuple[int, float]:
            start, used = now(), time.process_time_ns()
            wait(count / 1000)
            used, waited = time.process_time_ns() - used, now() - start
            return waited, 100 * used / waited

        return work


def time_of_all(answers: list[int], count: int) -> list[float]:
    """Return the time of a message in nanoseconds from the results of `Send` and `Receive`.

    The total time is from the first start until the last end.
    """
    half = len(answers) // 2
    return [(max(answers[half:]) - min(answers[:half])) / (count * half)]
