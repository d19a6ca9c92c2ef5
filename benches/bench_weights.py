"""Publishing and reading weights, compared with one raw copy, a dict behind a lock, and a futex.

The raw copy writes the same tensors into shared memory that is mapped, with the same threads.
"""

import itertools
import os
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from harness.contenders import by_crew, by_function, by_limit
from harness.lines import Line, Load
from harness.processes import STAMPS, Board, Round
from harness.roles import ReceiveApart, SendApart
from harness.row import Goal, Limit, Row
from shoal.deadline import Deadline, LongWait
from shoal.shm.shared_files.mapping import copy_into, map_shared
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from shoal.weights.version import Version

MIB = 2**20
SIZE, TENSORS = 1024 * MIB, 64
READERS = 4
# Nanoseconds between the arrival of a version and the next: the reader falls asleep.
ASLEEP = 300_000
RAW, SHOAL, SAVE, LOCKED = "one raw copy", "Weights", "torch.save", "dict behind a lock"
FUTEX = Limit("raw futex", "futex")
SMALL = Load("bytes")


def folder_in(stack: ExitStack) -> str:
    """Make a folder in memory, which is removed at the end."""
    folder = tempfile.mkdtemp(prefix="shoal-bench-", dir="/dev/shm")
    stack.callback(shutil.rmtree, folder)
    return folder


def store_in(folder: str) -> Store:
    if not (Path(folder) / "weights").exists():
        Store.create(folder, 2, None)
    return Store(folder, "the weights")


@pytest.fixture(scope="module")
def state():
    import torch

    each = SIZE // TENSORS // 4
    return {f"layer.{number}": torch.full((each,), float(number)) for number in range(TENSORS)}


def raw_copy(stack: ExitStack, state):
    """Return a function that copies a state into two mapped files in turn, as `keep=2` does."""
    folder, views = Path(folder_in(stack)), []
    for number in range(2):
        with (folder / str(number)).open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, SIZE)
            views.append(map_shared(file.fileno(), SIZE))
    each = SIZE // TENSORS
    parts = [(number * each, tensor.numpy()) for number, tensor in enumerate(state.values())]

    def copy() -> None:
        views.reverse()
        copy_into(views[0], parts)

    return copy


def publish(stack: ExitStack, state):
    store = store_in(folder_in(stack))
    return lambda: store.publish(StateLayout(state), None, Deadline(60))


def save(stack: ExitStack, state):
    import torch

    path = Path(folder_in(stack)) / "state.pt"
    return lambda: torch.save(state, path)


@pytest.mark.parametrize("contender", [RAW, SHOAL, SAVE])
def test_publish(measure, state):
    row = Row(
        "a state of 1 GiB, warm",
        RAW,
        {SHOAL: [Goal(f"≤ 1.15 of {RAW}", times_reference=1.15)]},
        processes=1,
    )

    def warm(make):
        def open_(stack):
            function = make(stack, state)
            for _ in range(4):  # each of the files, until it has its huge pages
                function()
            return by_function(function)(stack)

        return open_

    measure(row, {RAW: warm(raw_copy), SHOAL: warm(publish), SAVE: warm(save)})


@pytest.mark.parametrize("contender", [LOCKED, SHOAL])
def test_unchanged(measure):
    lock, found, calls = threading.Lock(), {"policy": object()}, 1000

    def locked() -> None:
        for _ in range(calls):
            with lock:
                found["policy"]

    def unchanged(stack):
        store = store_in(folder_in(stack))
        store.publish(StateLayout({"a": 1}), None, Deadline(0))
        held, deadline = store.latest(1, "a version", Deadline(0)), Deadline(0)

        def look() -> None:
            for _ in range(calls):
                store.latest(1, "a version", deadline)

        stack.callback(lambda: held)
        return by_function(look)(stack)

    row = Row(
        "1,000 times the newest version, unchanged",
        LOCKED,
        {SHOAL: [Goal(f"≤ 10 of {LOCKED}", times_reference=10)]},
        most=100,
        processes=1,
    )
    measure(row, {LOCKED: by_function(locked), SHOAL: unchanged})


class Versions(Line):
    """Weights as a line: each message is a version."""

    name = SHOAL

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


@pytest.mark.parametrize("kind", [Notices, Versions])
@pytest.mark.parametrize("contender", [FUTEX.name, SHOAL])
def test_one_way(measure, kind):
    goals = [Goal(f"≤ 1.3 of {FUTEX.name}", times=1.3)] if kind is Notices else []
    row = Row(
        f"{'notice of a version' if kind is Notices else 'a version of 64 B'}, reader asleep",
        FUTEX.name,
        {SHOAL: goals},
        limit=FUTEX.name,
        load=SMALL,
        roles=lambda line: [SendApart(line, SMALL, ASLEEP), ReceiveApart(line, SMALL)],
        least=10,
        most=STAMPS,
    )
    measure(row, {FUTEX.name: by_limit(FUTEX), SHOAL: by_crew(row, kind)})


@dataclass(frozen=True)
class Open:
    """Opens a new version of 1 GiB and makes its tensors; returns the time, and by what it grew."""

    folder: str

    def __call__(self, board: Board, member: int) -> Round:
        store = store_in(self.folder)
        least = 1

        def work(_count: int) -> tuple[float, float]:
            nonlocal least
            if member == 0:
                state = {str(n): np.ones(SIZE // TENSORS, np.uint8) for n in range(TENSORS)}
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


@pytest.mark.parametrize("contender", [SHOAL])
def test_open(measure):
    with ExitStack() as stack:
        folder = folder_in(stack)
        store_in(folder)
        grown = "grown, MiB"
        row = Row(
            f"{READERS} readers open a version of 1 GiB",
            SHOAL,
            {SHOAL: [Goal("grows < 1 MiB", cost=1.0, of=grown)]},
            roles=lambda: [Open(folder) for _ in range(1 + READERS)],
            read=lambda answers, _count: [spent for spent, _ in answers[1:]],
            extra=lambda answers: {grown: max(grew for _, grew in answers)},
            lines=0,
            anywhere=True,
        )
        measure(row, {SHOAL: by_crew(row, Versions)})
