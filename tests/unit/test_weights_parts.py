"""Versions that several processes publish together: plain parts, shards, and what goes wrong."""

import os
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError, ShoalValueError
from shoal.weights import Version
from shoal.weights.layout import StateLayout
from shoal.weights.part_names import VersionPart
from shoal.weights.parts import publish_part
from shoal.weights.store import Store
from support.in_thread import in_thread
from support.processes import DEADLINE_S, killed, programs, until

torch = pytest.importorskip("torch")
sharded = pytest.importorskip("support.fake_sharded_tensors")


@pytest.fixture
def store(weights_folder):
    return Store(str(weights_folder), "the weights 'policy'")


class Watched:
    """The blocks of a state; calls a function before it copies a block, or the shards."""

    def __init__(self, layout, before):
        def copy(source, target):
            before("block")
            target[:] = memoryview(source).cast("B")

        def write(shards, memory):
            before("shards")
            shards.write(memory)

        self.entries = layout.entries
        self.pieces = [one._replace(source=partial(copy, one.source)) for one in layout.pieces]
        self.shards = [
            SimpleNamespace(
                blocks=one.blocks,
                nbytes=one.nbytes,
                signature=one.signature,
                counts=one.counts,
                write=partial(write, one),
            )
            for one in layout.shards
        ]


def start(store, state, part, timeout=DEADLINE_S, before=lambda _: None):
    """Publish a part in a thread; return what waits for its end."""

    def begin():
        layout = Watched(StateLayout(state, is_part=True), before)
        return publish_part(store, layout, part, Deadline(timeout), checksum=True)

    return partial(in_thread(begin).result, DEADLINE_S)


def publish(*args, **options):
    """Publish a part."""
    return start(*args, **options)()


def latest(store):
    return store.latest(1, "a version", Deadline(DEADLINE_S))


def names(folder, kind):
    return sorted(path.name for path in folder.glob(f"{kind}*"))


def test_a_version_is_there_when_all_its_parts_are(weights_folder, store):
    first = start(store, {"a": torch.ones(3), "step": 1}, VersionPart(5, 0, 2))
    until(lambda: names(weights_folder, "s5"))
    assert store.control.newest is None
    second = start(store, {"b": np.zeros(2), "step": 1}, VersionPart(5, 1, 2))
    assert first() == second() == Version(1, 5)
    snapshot = latest(store)
    assert list(snapshot) == ["a", "step", "b"]
    assert (snapshot["a"].sum(), snapshot["step"], snapshot["b"].sum()) == (3, 1, 0)
    snapshot.verify()
    assert names(weights_folder, "s") + names(weights_folder, "u") == []


def test_versions_of_parts_follow_each_other_and_are_removed(weights_folder, store):
    held = None
    for number in range(1, 6):
        ends = [
            start(
                store, {str(rank): torch.full((1000,), float(number))}, VersionPart(number, rank, 3)
            )
            for rank in range(3)
        ]
        assert {end() for end in ends} == {Version(1, number)}
        held = latest(store) if number == 2 else held
    assert {file.version.number for file in store.files()} == {2, 4, 5}
    assert held["0"].sum() == 2000
    assert latest(store)["2"].sum() == 5000
    del held
    store.sweep()
    assert len(names(weights_folder, "r")) == 6  # three further files of each of the two versions


def test_a_part_that_does_not_come_is_named(store):
    for rank in range(2):
        end = start(store, {str(rank): 1}, VersionPart(1, rank, 2))
    end()
    text = (
        r"part 0 of 2 of version 2 .* waits for part 1 \(published last by .*pid \d+.* on node 0\)"
    )
    with pytest.raises(ShoalTimeoutError, match=text):
        publish(store, {"0": 2}, VersionPart(2, 0, 2), timeout=0.3)
    assert latest(store)["0"] == 1
    # The part was taken back, so that it can be published again.
    ends = [start(store, {str(rank): 3}, VersionPart(2, rank, 2)) for rank in range(2)]
    assert {end() for end in ends} == {Version(1, 2)}
    assert store._last().endswith("on node 0 and 1 other")
    # Nobody has published a part of a version that is whole.
    store.publish(StateLayout({"0": 4}), 3, Deadline(DEADLINE_S))
    with pytest.raises(ShoalTimeoutError, match="waits for part 0: no end of it"):
        publish(store, {"1": 5}, VersionPart(4, 1, 2), timeout=0.3)


def test_a_repeated_part_or_name_and_another_size_are_refused(weights_folder, store):
    first = start(store, {"a": 1}, VersionPart(1, 0, 2))
    until(lambda: names(weights_folder, "s1"))
    with pytest.raises(ShoalValueError, match="part 0 of 2 of version 1 is there already"):
        publish(store, {"a": 1}, VersionPart(1, 0, 2))
    with pytest.raises(ShoalValueError, match="all have to say the same number of parts"):
        publish(store, {"a": 1}, VersionPart(1, 1, 3))
    with pytest.raises(ShoalValueError, match="'a' is in the parts of"):
        publish(store, {"a": 2, "b": torch.ones(2)}, VersionPart(1, 1, 2))
    assert start(store, {"b": 1}, VersionPart(1, 1, 2))() == first() == Version(1, 1)
    with pytest.raises(ShoalValueError, match=r"version=1 after 1\.1"):
        publish(store, {"a": 1}, VersionPart(1, 0, 2))


def test_a_part_is_taken_back_also_while_another_process_keeps_the_lock(
    weights_folder, store, timing
):
    timing("weights", part_lock_s=0.1)
    wait = LongWait(lambda: "the test", Deadline(DEADLINE_S))
    end = start(store, {"a": 1}, VersionPart(1, 0, 2), timeout=0.5)
    until(lambda: names(weights_folder, "s1"))
    with store.publishing(wait):
        with pytest.raises(ShoalTimeoutError):
            end()
        assert names(weights_folder, "s1") == []


@pytest.fixture
def row(add_module):
    """Make distributed tensors of two rows of equal values, of which a process has one."""
    add_module("torch.distributed.tensor", DTensor=sharded.Sharded)
    return lambda rank, value: sharded.Sharded(
        torch.full((2, 4), float(value)), sharded.Shard(0), rank
    )


class Gate:
    """Holds up a thread until it is opened."""

    def __init__(self):
        self.is_reached, self._is_open = threading.Event(), threading.Event()
        self.open = self._is_open.set

    def wait(self, _):
        self.is_reached.set()
        self._is_open.wait(DEADLINE_S)


def test_of_two_writers_of_one_part_the_one_that_completes_it_later_is_refused(
    weights_folder, store
):
    gate = Gate()
    slow = start(store, {"a": torch.zeros(1)}, VersionPart(1, 0, 2), before=gate.wait)
    assert gate.is_reached.wait(DEADLINE_S)
    fast = start(store, {"a": torch.ones(1)}, VersionPart(1, 0, 2))
    until(lambda: names(weights_folder, "s1"))
    gate.open()
    text = (
        rf"part 0 of 2 of version 1 is there already, from driver \(pid {os.getpid()}\) on node 0"
    )
    with pytest.raises(ShoalValueError, match=text):
        slow()
    assert publish(store, {"b": 2}, VersionPart(1, 1, 2)) == fast() == Version(1, 1)
    assert dict(latest(store)) == {"a": 1, "b": 2}
    assert names(weights_folder, "s") == []


def test_a_second_writer_of_a_part_with_shards_is_refused_before_it_writes_any(
    weights_folder, store, row
):
    gate = Gate()
    first = start(store, {"whole": row(0, 1)}, VersionPart(1, 0, 2), before=gate.wait)
    assert gate.is_reached.wait(DEADLINE_S)
    text = rf"part 0 of 2 of version 1 is being written by process {os.getpid()}"
    with pytest.raises(ShoalValueError, match=text):
        publish(store, {"whole": row(0, 9)}, VersionPart(1, 0, 2))
    second = start(store, {"whole": row(1, 2)}, VersionPart(1, 1, 2))
    until(lambda: names(weights_folder, "s1"))
    gate.open()
    assert first() == second() == Version(1, 1)
    assert latest(store)["whole"].tolist() == [[1] * 4, [2] * 4]
    assert names(weights_folder, "s") + names(weights_folder, "u") == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("when", ["shards", "block", "link 1", "link 2"])
def test_a_part_that_is_interrupted_is_taken_back(
    weights_folder, store, row, monkeypatch, when, error
):
    link, links = os.link, []

    def reached(what):
        if what == when:
            raise error("on purpose")

    def linked(*args):
        link(*args)
        links.append(args)
        reached(f"link {len(links)}")

    state = {"own": torch.ones(10), "whole": row(0, 1)}
    layout, part = Watched(StateLayout(state, is_part=True), reached), VersionPart(1, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", linked)
        with pytest.raises(error, match="on purpose"):
            publish_part(store, layout, part, Deadline(DEADLINE_S), checksum=True)
    assert store.files() == []
    assert names(weights_folder, "s") + names(weights_folder, "u") == []
    ends = [
        start(store, {str(rank): rank, "whole": row(rank, rank)}, VersionPart(1, rank, 2))
        for rank in range(2)
    ]
    assert {end() for end in ends} == {Version(1, 1)}
    assert latest(store)["whole"].tolist() == [[0] * 4, [1] * 4]
    store.forget()
    assert [name for name in names(weights_folder, "p") if name != "publisher"] == []


def test_parts_of_dead_processes_are_removed(weights_folder, store):
    dying = subprocess.Popen([sys.executable, "-c", DYING, str(weights_folder)])
    until(lambda: names(weights_folder, "s1"))
    killed(dying)
    store.sweep()
    assert names(weights_folder, "s") + names(weights_folder, "p4") == []


def test_a_version_between_its_parts_makes_them_begin_an_epoch(weights_folder, store):
    for rank in range(2):
        end = start(store, {str(rank): 1}, VersionPart(1, rank, 2))
    end()
    first = start(store, {"0": 2}, VersionPart(2, 0, 2))
    until(lambda: names(weights_folder, "s2"))
    # The first part may hold the publisher's lock for a moment still.
    assert store.publish(StateLayout({"other": 1}), 5, Deadline(DEADLINE_S)) == Version(1, 5)
    # The second part is of a process that has not seen that.
    os.link(
        weights_folder / names(weights_folder, "s2")[0],
        weights_folder / names(weights_folder, "s2")[0].replace("s2-2-0", "s2-2-1"),
    )
    assert first() == Version(2, 2)
    assert latest(store)["0"] == 2


@pytest.mark.parametrize("seen", [1, 3])
def test_parts_begin_a_newer_epoch_once_a_follower_has_seen_a_later_version(store, seen):
    def publish_both(number):
        ends = [start(store, {str(rank): 1}, VersionPart(number, rank, 2)) for rank in range(2)]
        (version,) = {end() for end in ends}
        return version

    assert publish_both(5) == Version(1, 5)
    store.control.least_epoch = seen
    assert publish_both(2) == Version(seen + 1, 2)
    assert publish_both(3) == Version(seen + 1, 3)
    assert store.publish(StateLayout({"a": 1}), None, Deadline(DEADLINE_S)) == Version(seen + 1, 4)


DYING = """
import sys
from shoal.deadline import Deadline
from shoal.weights.layout import StateLayout
from shoal.weights.part_names import VersionPart
from shoal.weights.parts import publish_part
from shoal.weights.store import Store
store = Store(sys.argv[1], "the weights")
publish_part(store, StateLayout({"a": 0}), VersionPart(1, 0, 2), Deadline(60), checksum=True)
"""


@pytest.mark.process
def test_a_process_that_is_killed_takes_its_part_with_it(weights_folder, store):
    dying = subprocess.Popen([sys.executable, "-c", DYING, str(weights_folder)])
    until(lambda: names(weights_folder, "s1"))
    killed(dying)
    second = start(store, {"b": 2}, VersionPart(1, 1, 2))
    until(lambda: [name.split("-")[2] for name in names(weights_folder, "s1")] == ["1"])
    assert publish(store, {"a": 1}, VersionPart(1, 0, 2)) == second() == Version(1, 1)
    assert dict(latest(store)) == {"a": 1, "b": 2}


PROGRAM = """
import os, sys
from functools import partial
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from shoal.deadline import Deadline
from shoal.weights.layout import StateLayout
from shoal.weights.part_names import VersionPart
from shoal.weights.parts import publish_part
from shoal.weights.store import Store

folder, rendezvous = sys.argv[1:3]
rank, size = map(int, sys.argv[3:])
dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("data",))
grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "model"))
halves = [DeviceMesh("cpu", ranks) for ranks in ([0, 1], [2, 3])]
store = Store(folder, "the weights")

def both(whole):
    # Tensor parallelism divides its rows, and then FSDP2 does.
    made = torch.nn.Linear(7, 10, bias=False)
    with torch.no_grad():
        made.weight.copy_(whole)
    parallelize_module(made, grid["model"], ColwiseParallel())
    return fully_shard(made, mesh=grid["data"]).weight

split = partial(distribute_tensor, src_data_rank=None)

def state(number):
    whole = torch.arange(10 * 7.0).reshape(10, 7) * number
    return {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole, mesh, [Shard(1)]),
        "same": distribute_tensor(whole, mesh, [Replicate()]),
        "grid": distribute_tensor(whole, grid, [Shard(0), Shard(1)]),
        "both": both(whole),
        "strided": split(whole, grid, [_StridedShard(0, split_factor=3), Shard(1)]),
        "apart": split(whole, grid, [Replicate(), _StridedShard(1, split_factor=2)]),
        "none": distribute_tensor(whole[:0], mesh, [Shard(0)]),
        "few": distribute_tensor(whole[:2], mesh, [Shard(0)]),  # some have no row of it
        "half" + str(rank // 2): distribute_tensor(whole, halves[rank // 2], [Shard(0)]),
        f"own.{rank}": torch.full((3,), float(rank)),
    }

for number in (1, 2, 3):
    layout = StateLayout(state(number), torch.bfloat16 if number == 3 else None, is_part=True)
    print(publish_part(store, layout, VersionPart(number, rank, size), Deadline(60), checksum=True), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.nightly
@pytest.mark.process
def test_shards_of_distributed_tensors_become_whole_tensors(weights_folder, store, tmp_path):
    size = 4
    with programs() as begin:
        command = ["-c", PROGRAM, weights_folder, tmp_path / "rendezvous"]
        ranks = [begin(*command, rank, size) for rank in range(size)]
        printed = [rank.communicate(timeout=110)[0] for rank in ranks]
    assert [text.splitlines()[-3:] for text in printed] == [["1.1", "1.2", "1.3"]] * size, printed
    snapshot = latest(store)
    whole = torch.arange(10 * 7.0).reshape(10, 7) * 3
    assert snapshot["none"].shape == (0, 7)
    even = ("rows", "columns", "same", "grid", "half0", "half1")
    for name in (*even, "both", "strided", "apart"):
        assert torch.equal(snapshot[name], whole.to(torch.bfloat16)), name
    assert torch.equal(snapshot["few"], whole[:2].to(torch.bfloat16))
    assert [float(snapshot[f"own.{rank}"][0]) for rank in range(size)] == [0, 1, 2, 3]
    snapshot.verify()
    store.sweep()
    assert names(weights_folder, "s") + names(weights_folder, "u") == []
