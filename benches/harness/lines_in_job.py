"""Channels and Ray's queue as lines, which both workers of a job find by name."""

import os
import time
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar

from ray.util.queue import Empty, Full, Queue

from harness.lines import Line, Load
from shoal import Channel

__all__ = [
    "GROUP",
    "NAMES",
    "AsyncOverLane",
    "ByChannel",
    "OverLane",
    "RayQueue",
    "make_channels",
]

# The group of the workers.
GROUP = "pair"
# Names of the lines, by their numbers.
NAMES = ("there", "back")
# The key of arrays, with room for a few; all other messages use the default key.
ARRAYS = "arrays"
# Number of works that a producer of asynchronous puts keeps.
PENDING = 1_000
# Seconds for which a batch call that Ray's queue refuses is repeated.
PATIENCE = 60.0


def make_channels() -> None:
    """Make the channels of a job; its workers find them by name."""
    for name in NAMES:
        Channel.create(name, maxsize=Load("bytes").depth).create_queue(ARRAYS, maxsize=4)


class Named(Line):
    """A line that the workers of the job find under one of `NAMES`.

    Args:
        load: The messages.
        number: 0 for the line from rank 0 to rank 1, 1 for the way back.
    """

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(load)
        self.called = NAMES[number]


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
            if found.transport != self.transport:  # this also makes the channel choose it
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


class OverLane(ByChannel):
    """A channel used over a lane to its actor, as from another node."""

    name = "channel, SHOAL_TRANSPORT=lane"
    transport = "lane"


class AsyncOverLane(OverLane):
    """Same, with puts that the producer does not wait for; it keeps the newest of their works."""

    name = "the same, async_op=True"

    def putter(self):
        put, works = self._channel().put, deque(maxlen=PENDING)
        return lambda item: works.append(put(item, async_op=True))


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
