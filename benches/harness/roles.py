"""Roles of two processes in a round: senders and receivers, and what they time.

Roles are classes so that they can be pickled: made by the conductor with the lines, called in the
process, where they open their ends and return what to do in a round.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.lines import Line, Load
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

# So many messages a consumer keeps: each has memory of its own, and the process does not grow. To
# keep all of them would measure how fast the kernel gives memory: 100 ns and more for 64 bytes.
KEPT = 10_000

# Called once in a process of a crew, with its number.
Role = Callable[[Board, int], Round]


@dataclass(frozen=True)
class Ask:
    """Sends a message and waits for it to come back; returns halves of these times."""

    there: Line
    back: Line
    load: Load

    def __call__(self, board: Board, member: int) -> Round:
        put, get = self.there.putter(), self.back.getter()
        message = self.load.make(0, self.there.arrays)

        def work(count: int) -> list[int]:
            board.meet(member)
            # One look at the clock for each: it costs a tenth of what is measured.
            stamps = [now()]
            for _ in range(count):
                put(message)
                get()
                stamps.append(now())
            return [(after - before) // 2 for before, after in pairwise(stamps)]

        return work


@dataclass(frozen=True)
class Answer:
    """Sends back what comes."""

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
    """Sends each message a while after the one before arrived; returns how long each took.

    While it waits it lets other threads of its process run: some queues send in one.
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
    """Notes when each message is there, whole, and drops it."""

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
    """As `ReceiveApart`, in a loop of asyncio that has nothing else to do."""

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
    """Sends distinct messages as fast as it can, `batch` by one call; returns when it began."""

    line: Line
    load: Load
    batch: int = 1

    def __call__(self, board: Board, member: int) -> Round:
        put = self.line.putter() if self.batch == 1 else self.line.many_putter()

        def work(count: int) -> int:
            messages = [self.load.make(number, self.line.arrays) for number in range(count)]
            if self.batch > 1:
                starts = range(0, count, self.batch)
                messages = [messages[start : start + self.batch] for start in starts]
            board.meet(member)
            start = now()
            for message in messages:
                put(message)
            return start

        return work


@dataclass(frozen=True)
class Receive:
    """Receives messages as fast as it can; returns when it had the last.

    Args:
        line: The line that they come through.
        load: The messages.
        batch: The most messages of one call.
        alone: Whether it gets all that are sent, in their order, which it checks then.
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
        """Raise if these are not the last of so many messages, in their order."""
        for number, message in enumerate(kept, count - len(kept)):
            self.load.check(message, number)


@dataclass(frozen=True)
class Idle:
    """Waits `count` milliseconds for what does not come; returns the nanoseconds that it waited, and
    its use of a core in percent.
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
    """Read what `Send` and `Receive` returned: nanoseconds of a message, from the first start until
    the last end.
    """
    half = len(answers) // 2
    return [(max(answers[half:]) - min(answers[:half])) / (count * half)]
