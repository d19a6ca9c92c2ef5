"""Publishing and reading weights, compared with one raw copy, a dict behind a lock, and a futex.

The raw copy writes the same tensors into shared memory that is mapped, with the same threads.
"""

import os
import shutil
import tempfile
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import ray

from harness.contenders import by_crew, by_function, by_job, by_limit
from harness.lines import Load
from harness.lines_p2p import GlooBroadcast
from harness.lines_tcp import BareTcp
from harness.lines_weights import Followed, Notices, Open, Versions, store_in
from harness.processes import STAMPS
from harness.roles import ReceiveApart, SendApart
from harness.roles_p2p import Broadcast, Spread, last_end
from harness.row import Goal, Limit, Row
from shoal.deadline import Deadline
from shoal.shm.shared_files.mapping import copy_into, map_shared
from shoal.weights.layout import StateLayout

MIB = 2**20
SIZE, TENSORS = 1024 * MIB, 64
READERS = 4
# Nanoseconds between the arrival of a version and the next: the reader falls asleep.
ASLEEP = 300_000
RAW, SHOAL, SAVE, LOCKED = "one raw copy", Versions.name, "torch.save", "dict behind a lock"
BARE, DELTA = f"{SHOAL}, without hashes", f"{SHOAL}, a delta of 1 %"
PUT = "ray.put of arrays"
COPIED, BROADCAST, GLOO = f"{SHOAL}, copied out", "Worker.broadcast, copied out", GlooBroadcast.name
FUTEX = Limit("raw futex", "futex")
SMALL = Load("bytes")


def folder_in(stack: ExitStack) -> str:
    """Make a folder in memory, which is removed at the end."""
    folder = tempfile.mkdtemp(prefix="shoal-bench-", dir="/dev/shm")
    stack.callback(shutil.rmtree, folder)
    return folder


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


def publish(stack: ExitStack, state, *, checksum=True):
    store = store_in(folder_in(stack))
    return lambda: store.publish(StateLayout(state), None, Deadline(60), checksum=checksum)


def publish_a_hundredth(stack: ExitStack, _state):
    """Return a function that publishes a state as a delta, once one tensor of 100 has changed."""
    import torch

    store = store_in(folder_in(stack))
    state = {str(number): torch.zeros(SIZE // 100 // 4) for number in range(100)}

    def publish() -> None:
        state["50"][0] += 1
        store.publish(StateLayout(state), None, Deadline(60), delta="counters")

    return publish


def put_in_ray(_stack: ExitStack, state):
    """Return a function that puts the arrays of a state into Ray's object store, and drops them."""
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    return lambda: ray.put(arrays)


def save(stack: ExitStack, state):
    import torch

    path = Path(folder_in(stack)) / "state.pt"
    return lambda: torch.save(state, path)


@pytest.mark.parametrize("contender", [RAW, SHOAL, BARE, DELTA, PUT, SAVE])
def test_publish(measure, state, cluster):
    row = Row(
        "a state of 1 GiB, warm",
        RAW,
        {
            SHOAL: [Goal(f"≤ 1.3 of {RAW}", times_reference=1.3)],
            BARE: [Goal(f"≤ 1.15 of {RAW}", times_reference=1.15)],
            # A third is the copy with its hashes; the rest is per tensor and per file.
            DELTA: [Goal(f"≤ 0.06 of {RAW}", times_reference=0.06)],
        },
        processes=1,
    )

    def warm(make):
        def open_(stack):
            function = make(stack, state)
            for _ in range(12):  # each of the files, until it has its huge pages
                function()
            return by_function(function)(stack)

        return open_

    makers = {
        RAW: raw_copy,
        SHOAL: publish,
        BARE: partial(publish, checksum=False),
        DELTA: publish_a_hundredth,
        PUT: put_in_ray,
        SAVE: save,
    }
    measure(row, {name: warm(make) for name, make in makers.items()})


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


@pytest.mark.parametrize("contender", [SHOAL, COPIED, BROADCAST, GLOO])
def test_readers_of_a_node(measure, start_job):
    """Publish a version until the last reader has it, in place or in a tensor of its own."""
    load, workers = Load("array", 256 * MIB), 1 + READERS
    row = Row(
        f"256 MiB from the publish to {READERS} readers of a node", COPIED,
        load=load, most=20, processes=workers, read=last_end, optional=(GLOO,),
    )  # fmt: skip
    job = start_job((0,) * workers, channels=False)

    def by_line(name, kind, **options):
        def roles(line):
            return [Spread(line, **options)] * workers

        return by_job(row, name, job, lambda _number: kind(load), roles)

    together = [Broadcast(load, workers)] * workers
    openers = {
        SHOAL: by_line(SHOAL, Versions),
        COPIED: by_line(COPIED, Versions, copied=True),
        BROADCAST: by_job(row, BROADCAST, job, roles=lambda: together),
        GLOO: by_line(GLOO, partial(GlooBroadcast, size=workers)),
    }
    measure(row, openers)
    job.close()


@pytest.mark.parametrize("contender", [BareTcp.name, Followed.name])
def test_another_node(measure, network):
    """Publish a version and have it on another node: a copy, the way, and another copy."""
    load = Load("array", 256 * MIB, depth=4)
    row = Row(
        f"256 MiB from the publish to a reader over {network.name}", BareTcp.name,
        {Followed.name: [Goal(f"≤ 1.25 of {BareTcp.name}", times=1.25)]}, limit=BareTcp.name,
        load=load, roles=lambda line: [SendApart(line, load, ASLEEP), ReceiveApart(line, load)],
        least=3, most=20,
    )  # fmt: skip
    measure(row, {kind.name: by_crew(row, kind, network=network) for kind in (BareTcp, Followed)})


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
            roles=lambda: [Open(folder, SIZE, TENSORS) for _ in range(1 + READERS)],
            read=lambda answers, _count: [spent for spent, _ in answers[1:]],
            extra=lambda answers: {grown: max(grew for _, grew in answers)},
            lines=0,
            anywhere=True,
        )
        measure(row, {SHOAL: by_crew(row, Versions)})
