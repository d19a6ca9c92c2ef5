"""Weights as lines, and the role that opens versions."""

import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.lines import Line, Load
from harness.lines_tcp import USER, Lane, Network
from harness.processes import Board, Round
from shoal import shm
from shoal.channel.remote import RemoteQueues
from shoal.deadline import Deadline, LongWait
from shoal.queues.lane import LaneAddress
from shoal.queues.shared import SessionQueues
from shoal.weights.actor import OwnQueues, WeightsSettings
from shoal.weights.following import follow, serve
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from shoal.weights.version import Version

__all__ = ["Followed", "Notices", "Open", "Versions", "store_in"]

MIB = 2**20
SETTINGS = WeightsSettings("weights/bench", maxsize=4)


def store_in(folder: str) -> Store:
    if not (Path(folder) / "weights").exists():
        Store.create(folder, 2, None)
    return Store(folder, "the weights")


def following_versions(store: Store) -> Callable[[], Any]:
    """Return a function that waits for the next version, and returns its tensor or bytes."""
    least = 1

    def get() -> Any:
        nonlocal least
        snapshot = store.latest(least, "a version", Deadline(60))
        least = snapshot.version.packed() + 1
        return snapshot["a"]

    return get


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
        return following_versions(store_in(self._folder))

    def close(self):
        shutil.rmtree(self._folder)


class FarQueues(RemoteQueues):
    """The queues of the sender's node, as the actor of another node uses them, but for the question
    to Ray where they are.
    """

    def __init__(self, address: LaneAddress) -> None:
        super().__init__(SETTINGS, "")
        self._address = address

    def _find_lane(self, deadline: Deadline | None) -> LaneAddress:
        del deadline
        return self._address


class Followed(Lane):
    """Weights of another node as a line: the receiver's process follows that of the sender."""

    name = "Weights of another node"

    def __init__(self, load: Load, network: Network) -> None:
        super().__init__(load, network)
        self._folders = [tempfile.mkdtemp(prefix="shoal-bench-", dir="/dev/shm") for _ in "ab"]
        for folder in self._folders:
            store_in(folder)

    def __getstate__(self):
        return super().__getstate__() | {"_folders": self._folders}

    def putter(self):
        session, store = shm.Session.attach(self._token), store_in(self._folders[0])
        own = OwnQueues(SessionQueues(SETTINGS, session))
        threading.Thread(target=serve, args=(store, own), daemon=True).start()

        def put(message) -> None:
            # The hashes are compared on arrival; bare TCP has none.
            store.publish(StateLayout({"a": message}), None, Deadline(60), checksum=False)

        return put

    def getter(self):
        store = store_in(self._folders[1])
        store.follows = True
        self._network.enter(USER)
        queues = FarQueues(LaneAddress(*self._where))
        threading.Thread(target=follow, args=(store, [queues], "bench"), daemon=True).start()
        return following_versions(store)

    def close(self):
        super().close()
        for folder in self._folders:
            shutil.rmtree(folder)


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
