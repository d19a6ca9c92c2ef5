"""A channel, and Ray's queue, as lines that both workers of a job find by their names."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from ray.util.queue import Empty, Full, Queue

from crew import Board, Round
from lines import Line, Load
from shoal import Channel, shm

__all__ = [
    "NAMES",
    "ByCalls",
    "ByChannel",
    "FillAndDrain",
    "RayQueue",
    "fresh_channel",
    "fresh_session",
    "make_channels",
]

# There and back.
NAMES = ("there", "back")
# The key of arrays, of which few have room; everything else goes through the default one.
ARRAYS = "arrays"
# A put or get of many that Ray's queue refuses is tried again that long.
PATIENCE = 60.0
# How long to wait for memory to be given back.
DRAINED_S = 5.0


def make_channels() -> None:
    """Make the channels of a job; those who use them find them by name."""
    for name in NAMES:
        Channel.create(name, maxsize=Load("bytes").depth).create_queue(ARRAYS, maxsize=4)


class Named(Line):
    """A line that the job has under one of `NAMES`."""

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(load)
        self.called = name


class ByChannel(Named):
    """A channel, in shared memory."""

    name = "shoal channel"
    arrays = "torch"
    can = frozenset({"many"})
    transport: ClassVar[str] = "shm"

    def _channel(self) -> Channel:
        before = os.environ.get("SHOAL_TRANSPORT")
        os.environ["SHOAL_TRANSPORT"] = self.transport
        try:
            found = Channel.connect(self.called)
            if found.transport != self.transport:  # this also settles it
                raise RuntimeError(f"the channel is reached by {found.transport}")
        finally:
            del os.environ["SHOAL_TRANSPORT"]
            if before is not None:
                os.environ["SHOAL_TRANSPORT"] = before
        return found

    def putter(self):
        put = self._channel().put
        return (lambda item: put(item, 0, ARRAYS)) if self.load.kind == "array" else put

    def getter(self):
        get = self._channel().get
        return partial(get, ARRAYS) if self.load.kind == "array" else get

    def many_putter(self):
        return self._channel().put_many

    def many_getter(self):
        return self._channel().get_many


class ByCalls(ByChannel):
    """A channel, by calls to its host, as from another node."""

    name = "channel, SHOAL_TRANSPORT=ray"
    transport = "ray"


@cache
def _ray_queue(name: str, depth: int) -> Queue:
    options = {"num_cpus": 0, "name": f"{name} {depth}", "get_if_exists": True}
    return Queue(depth, actor_options=options)


class RayQueue(Named):
    """Ray's queue: an actor."""

    name = "ray.util.queue"
    can = frozenset({"many"})

    def _queue(self) -> Queue:
        return _ray_queue(self.called, self.load.depth)

    def putter(self):
        return self._queue().put

    def getter(self):
        return self._queue().get

    def many_putter(self):
        put = self._queue().put_nowait_batch
        return lambda items: _insist(put, items, Full)

    def many_getter(self):
        get = self._queue().get_nowait_batch
        return lambda most: _insist(get, most, Empty)


def _insist(attempt: Callable[[Any], Any], argument: Any, refusal: type[Exception]) -> Any:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return attempt(argument)
        except refusal:
            if time.monotonic() > until:
                raise


Fresh = tuple[Callable[[Any], object], Callable[[], Any], str]


@contextmanager
def fresh_channel(depth: int) -> Iterator[Fresh]:
    """Make a channel that nobody has used, and remove it; yields put, get and its folder."""
    channel = Channel.create(f"fresh {depth}", maxsize=depth)
    try:
        yield channel.put, channel.get, channel._facts.places[0].token
    finally:
        channel.delete()


@contextmanager
def fresh_session(depth: int) -> Iterator[Fresh]:
    """As `fresh_channel`, without the channel."""
    with shm.Session.create() as session:
        queue = session.queue("fresh", maxsize=depth)
        yield queue.put, queue.get, session.token


@dataclass(frozen=True)
class FillAndDrain:
    """Fills a queue and takes everything out again; returns what memory it had in both states.

    Both as shares of the payload; the second a few seconds later at most, and without what the queue
    had before it was filled.
    """

    fresh: Callable[[int], Any]
    load: Load

    def __call__(self, board: Board, member: int) -> Round:
        message = self.load.make(0, "torch")

        def work(count: int) -> list[float]:
            with self.fresh(count) as (put, get, folder):
                put(None)  # the first use of a key makes its queue
                get()
                base, payload = on_disk(folder), count * self.load.size
                for _ in range(count):
                    put(message)
                full = on_disk(folder)
                for _ in range(count):
                    get()
                until = time.monotonic() + DRAINED_S
                while (drained := on_disk(folder) - base) > 0 and time.monotonic() < until:
                    time.sleep(0.1)  # a channel's host gives back what nothing is in for a while
                return [full / payload, drained / payload]

        return work


def on_disk(folder: str) -> int:
    """Return the bytes that a folder's files have allocated: memory, where it lies in that."""
    return sum(512 * path.stat().st_blocks for path in Path(folder).rglob("*"))
