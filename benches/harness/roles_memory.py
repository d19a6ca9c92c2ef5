"""The role that fills a queue and measures the memory of its files."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.lines import Load
from harness.processes import Board, Round
from shoal import Channel, shm

__all__ = ["FillAndDrain", "fresh_channel", "fresh_session"]

# Maximum number of seconds to wait until memory is given back.
DRAINED_S = 5.0

Fresh = tuple[Callable[[Any], object], Callable[[], Any], str]


@contextmanager
def fresh_channel(depth: int) -> Iterator[Fresh]:
    """Make a new channel, and remove it at the end; yield put, get and its folder."""
    channel = Channel.create(f"fresh {depth}", maxsize=depth)
    try:
        yield channel.put, channel.get, channel._settings.locations[0].token
    finally:
        channel.delete()


@contextmanager
def fresh_session(depth: int) -> Iterator[Fresh]:
    """Same as `fresh_channel` for a queue without a channel."""
    with shm.Session.create() as session:
        queue = session.queue("fresh", maxsize=depth)
        yield queue.put, queue.get, session.token


@dataclass(frozen=True)
class FillAndDrain:
    """Fills a queue with `count` messages and takes all of them out.

    Returns the average nanoseconds of a put and its get, and the memory of the queue's files as
    percentages of the payload: when the queue is full, and when it has been empty for at most
    `DRAINED_S`. The latter excludes the memory that the files had before.
    """

    fresh: Callable[[int], Any]
    load: Load
    count: int

    def __call__(self, board: Board, member: int) -> Round:
        message, count = self.load.make(0, "torch"), self.count

        def work(_rounds: int) -> tuple[float, float, float]:
            with self.fresh(count) as (put, get, folder):
                put(None)  # the first use of a key makes its queue
                get()
                base, payload = on_disk(folder), count * self.load.size
                start = time.perf_counter_ns()
                for _ in range(count):
                    put(message)
                filled = time.perf_counter_ns()
                full = on_disk(folder)
                draining = time.perf_counter_ns()
                for _ in range(count):
                    get()
                spent = time.perf_counter_ns() - draining + filled - start
                until = time.monotonic() + DRAINED_S
                while (drained := on_disk(folder) - base) > 0 and time.monotonic() < until:
                    time.sleep(0.1)  # a channel gives it back after a while
                return spent / count, 100 * full / payload, 100 * drained / payload

        return work


def on_disk(folder: str) -> int:
    """Return the bytes that the files of a folder have allocated; in /dev/shm these are memory."""
    return sum(512 * path.stat().st_blocks for path in Path(folder).rglob("*"))
