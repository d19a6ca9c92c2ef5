"""Weights as lines, and the role that opens versions."""

import itertools
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.lines import Line, Load
from harness.processes import Board, Round
from shoal.deadline import Deadline, LongWait
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from shoal.weights.version import Version

__all__ = ["Notices", "Open", "Versions", "store_in"]

MIB = 2**20


def store_in(folder: str) -> Store:
    if not (Path(folder) / "weights").exists():
        Store.create(folder, 2, None)
    return Store(folder, "the weights")


class Versions(Line):
    """Weights as a line: each message is a version."""

    name = "Weights"

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        self._folder = tempfile.mkdtemp(prefix="shoal-bench-", dir="/dev/shm")
        store_in(self._folder)

    def putter(self):
        store = store_in(self._folder)
        return lambda message: store.publish(StateLayout({"a": message}), None, Deadline(60))

    def getter(self):
        store, least = store_in(self._folder), 1

        def get():
            nonlocal least
            snapshot = store.latest(least, "a version", Deadline(60))
            least = snapshot.version.packed() + 1
            return snapshot["a"]

        return get

    def close(self):
        shutil.rmtree(self._folder)


class Notices(Versions):
    """The control page of weights as a line: a message is the number of a version, without one."""

    def putter(self):
        control, numbers = store_in(self._folder).control, itertools.count(1)
        return lambda _: control.note(Version(1, next(numbers)))

    def getter(self):
        control, message = store_in(self._folder).control, self.load.make(0, "")
        seen = 0
        wait = LongWait(lambda: "the benchmark waits", Deadline(600))

        def get():
            nonlocal seen
            control.wait(seen, 0, wait, lambda: None)
            seen = control.packed
            return message

        return get


@dataclass(frozen=True)
class Open:
    """Opens a new version and makes its tensors; returns the time, and the MiB by which it grew.

    The first process publishes the versions.
    """

    folder: str
    size: int
    tensors: int

    def __call__(self, board: Board, member: int) -> Round:
        store = store_in(self.folder)
        least = 1

        def work(_count: int) -> tuple[float, float]:
            nonlocal least
            if member == 0:
                state = {
                    str(n): np.ones(self.size // self.tensors, np.uint8)
                    for n in range(self.tensors)
                }
                store.publish(StateLayout(state), None, Deadline(60))
                board.meet(member)
                return 0.0, 0.0
            board.meet(member)
            before, start = memory(), time.perf_counter_ns()
            snapshot = store.latest(least, "a version", Deadline(60))
            dict(snapshot)
            spent = time.perf_counter_ns() - start
            least = snapshot.version.packed() + 1
            return float(spent), (memory() - before) / MIB

        return work


def memory() -> int:
    """Return the bytes of memory that this process has touched."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
