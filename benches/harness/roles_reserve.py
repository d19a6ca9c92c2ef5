"""The role that builds arrays and puts them into a channel, in place or not."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.processes import Board, Round
from shoal import Channel

__all__ = ["BuildAndPut"]


@dataclass(frozen=True)
class BuildAndPut:
    """Builds arrays as copies of a source, and puts them; returns the time of each, to the put.

    The process takes and drops each item before it builds the next; this is not timed.

    Attributes:
        where: Where an array is built: in a `new array`, in the `same array` each time, or in
            memory that the channel `reserves`.
        size: Bytes of an array.
    """

    where: str
    size: int

    def __call__(self, board: Board, member: int) -> Round:
        source = np.arange(self.size // 4, dtype=np.int32)

        def work(count: int) -> list[int]:
            channel = Channel.create(f"fill {self.where}", maxsize=2)
            build = self._builder(channel, source)
            try:
                build()
                channel.get()  # the first message makes the channel's memory
                times = []
                for _ in range(count):
                    start = time.perf_counter_ns()
                    build()
                    times.append(time.perf_counter_ns() - start)
                    if channel.get()[-1] != source[-1]:
                        raise RuntimeError("another array arrived")
                return times
            finally:
                channel.delete()

        return work

    def _builder(self, channel: Any, source: Any) -> Callable[[], None]:
        same = np.empty_like(source)

        def reserves() -> None:
            with channel.reserve(source.shape, source.dtype) as array:
                np.copyto(array, source)

        def fills() -> None:
            array = same if self.where == "same array" else np.empty_like(source)
            np.copyto(array, source)
            channel.put(array)

        return reserves if self.where == "reserves" else fills
