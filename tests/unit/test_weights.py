"""Versions of weights in one folder: what readers see, what stays, and what is refused."""

import errno
import math
import os
import signal
import time

import numpy as np
import pytest

from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ShoalTimeoutError,
    ShoalValueError,
    WeightsClosed,
    WeightsCorruptError,
    WeightsMemoryError,
    WeightsNotFoundError,
)
from shoal.weights import Version
from shoal.weights.control import publisher_lock
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from support.in_thread import in_thread
from support.processes import DEADLINE_S, in_a_child, programs, until

torch = pytest.importorskip("torch")

MIB = 2**20


class Shared:
    """Weights in a folder, with the arguments that tests do not care about."""

    def __init__(self, folder):
        self.folder = folder
        self.store = Store(str(folder), "the weights 'policy'")

    def publish(self, state, version=None, timeout=DEADLINE_S, **options):
        return self.store.publish(StateLayout(state), version, Deadline(timeout), **options)

    def latest(self, newer_than=None, timeout=DEADLINE_S):
        least = 1 if newer_than is None else newer_than.packed() + 1
        return self.store.latest(least, f"a version after {newer_than}", Deadline(timeout))

    @property
    def versions(self):
        """The versions that are in memory; the retired ones in brackets."""
        files = sorted(self.store.files(), key=lambda file: file.version)
        return [f"({file.version})" if file.retired else str(file.version) for file in files]


@pytest.fixture
def make(make_weights_folder):
    """Make weights in a folder of their own."""
    return lambda *args, **options: Shared(make_weights_folder(*args, **options))


@pytest.fixture
def weights(make):
    return make()


# Values.

DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)


def same_bytes(one, other):
    return torch.equal(
        one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_each_dtype_arrive(weights, dtype):
    whole = torch.arange(24).reshape(4, 6).to(dtype)
    state = {
        "whole": whole,
        "scattered": torch.arange(100).reshape(10, 10).to(dtype)[::3, ::2],
        "transposed": torch.arange(6).reshape(2, 3).to(dtype).t(),
        "expanded": torch.ones(1).to(dtype).expand(5),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 3, dtype=dtype),
    }
    weights.publish(state)
    snapshot = weights.latest()
    assert list(snapshot) == list(state)
    for name, sent in state.items():
        got = snapshot[name]
        assert (got.dtype, got.shape) == (dtype, sent.shape)
        assert same_bytes(got, sent)


def test_arrays_and_small_values_arrive(weights):
    state = {
        "reversed": np.arange(6).reshape(2, 3)[:, ::-1],
        "record": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        "column": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "scalar": np.array(3.5),
        "empty": np.empty((0, 2), np.float32),
        "objects": np.array([None, "text"], dtype=object),
        "step": 7,
        "settings": {"rate": 0.1, "names": ["a", "b"]},
    }
    weights.publish(state)
    snapshot = weights.latest()
    for name in ("reversed", "record", "column", "scalar", "empty"):
        np.testing.assert_array_equal(snapshot[name], state[name])
        assert snapshot[name].dtype == state[name].dtype
    assert list(snapshot["objects"]) == [None, "text"]
    assert snapshot["step"] == 7
    assert snapshot["settings.rate"] == 0.1
    assert snapshot["settings"] == state["settings"]
    assert "settings.names" in snapshot
    assert (snapshot.get("step", 0), snapshot.get("sclar"), snapshot.get("s", 1)) == (7, None, 1)
    text = r"version 1\.1 of the weights 'policy' has no name 'sclar' \(names: \d+\); did you mean 'scalar'\?$"
    with pytest.raises(KeyError, match=text):
        snapshot["sclar"]


def test_tensors_that_share_memory_share_it_in_a_snapshot(weights):
    tied = torch.arange(12.0).reshape(3, 4)
    weights.publish({"embed": tied, "head": tied.t(), "row": tied[1], "apart": torch.ones(4)})
    snapshot = weights.latest()
    snapshot["embed"][1, 0] = 99
    assert snapshot["head"][0, 1] == snapshot["row"][0] == 99
    storages = [snapshot[name].untyped_storage().data_ptr() for name in snapshot]
    assert len(set(storages)) == 2
    assert snapshot["apart"].untyped_storage().nbytes() == 16  # so that it can be saved alone


def test_a_module_loads_a_snapshot(weights):
    trained, fresh = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    weights.publish(trained.state_dict())
    fresh.load_state_dict(weights.latest())
    assert torch.equal(fresh.weight, trained.weight)


def test_a_tensor_whose_storage_was_freed_is_refused(weights):
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ShoalValueError, match="'a' is a tensor whose storage was freed"):
        weights.publish({"a": freed})


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ([1], "a state of type list: expected a dict"),
        ({"a": {1: 2}}, "the part 'a' has the name 1: expected a text"),
        ({"a.b": 1, "a": {"b": 2}}, "two parts of the state have the name 'a.b'"),
        ({"a": torch.ones(2, device="meta")}, "'a' is a tensor without data, on the device meta"),
        ({"a": torch.eye(2).to_sparse()}, "'a' is a tensor of layout torch.sparse_coo"),
        ({"a": [torch.ones(MIB)]}, "'a' of type list has .* bytes as a pickle: expected at most"),
    ],
)
def test_a_state_that_cannot_be_published_is_refused_by_name(weights, state, text):
    with pytest.raises(ShoalValueError, match=text):
        weights.publish(state)
    assert weights.versions == []


# Versions.


def test_versions_increase_and_a_new_publisher_begins_an_epoch(weights):
    assert weights.publish({"a": 1}) == Version(1, 1)
    assert weights.publish({"a": 2}) == Version(1, 2)
    assert weights.publish({"a": 3}, version=50) == Version(1, 50)
    with pytest.raises(ShoalValueError, match=r"version=50 after 1.50: .* at least 51"):
        weights.publish({"a": 4}, version=50)
    again = Shared(weights.folder)  # as a trainer that starts again from a checkpoint
    assert again.publish({"a": 5}, version=20) == Version(2, 20)
    assert again.latest()["a"] == 5
    assert weights.publish({"a": 6}) == Version(3, 1)


def test_a_store_whose_page_was_made_anew_publishes_no_more_and_is_replaced(weights):
    folder = str(weights.folder)
    store = Store.of(folder, "the weights", lambda: None)
    assert store.publish(StateLayout({"a": 1}), None, Deadline(0)) == Version(1, 1)
    for path in weights.folder.glob("[vw]*"):
        path.unlink()
    Store.create(folder, 2, None, least_epoch=7)
    with pytest.raises(WeightsClosed, match="are gone"):
        store.publish(StateLayout({"a": 2}), None, Deadline(0))
    again = Store.of(folder, "the weights", lambda: None)
    assert again.control.newest is None
    assert again.publish(StateLayout({"a": 3}), None, Deadline(0)) == Version(8, 1)
    again.forget()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_as_many_versions_stay_as_asked_for_and_those_that_are_held(make, keep):
    weights = make(keep)
    weights.publish({"a": torch.zeros(1000)})
    held = weights.latest()
    for number in range(2, 8):
        weights.publish({"a": torch.full((1000,), float(number))})
    newest = [f"1.{number}" for number in range(8 - keep, 8)]
    assert weights.versions == ["(1.1)", *newest]
    assert held["a"].sum() == 0
    kept = held["a"]
    del held
    weights.publish({"a": 0})
    assert kept.sum() == 0  # a tensor holds its version as well
    del kept
    weights.publish({"a": 0})
    assert len(weights.versions) == keep


def test_a_version_that_nobody_holds_gives_its_memory_to_the_next(weights):
    for number in range(10):
        weights.publish({"a": torch.full((MIB,), float(number))})
    assert sum(path.stat().st_nlink == 1 for path in weights.folder.iterdir()) == 2
    files = {entry.inode() for entry in os.scandir(weights.folder)}
    weights.publish({"a": torch.zeros(MIB)})
    assert {entry.inode() for entry in os.scandir(weights.folder)} == files


def test_an_unchanged_version_is_the_same_snapshot(weights):
    weights.publish({"a": 1})
    first = weights.latest()
    assert weights.latest() is first
    weights.publish({"a": 2})
    assert weights.latest()["a"] == 2


def test_a_write_of_a_reader_stays_its_own(weights):
    weights.publish({"t": torch.zeros(4), "n": np.zeros(4)})
    one, other = weights.latest(), Shared(weights.folder).latest()
    one["t"][0] = 1
    assert other["t"].sum() == 0
    with pytest.raises(ValueError, match="read-only"):
        one["n"][0] = 1
    assert Shared(weights.folder).latest()["t"].sum() == 0


def test_a_forked_child_reads_and_publishes(weights):
    weights.publish({"a": torch.ones(3)})
    snapshot = weights.latest()

    def work():
        total = float(snapshot["a"].sum() + weights.latest()["a"].sum())
        return total, str(weights.publish({"a": torch.zeros(3)}))

    assert in_a_child(work) == "(6.0, '2.1')"
    assert weights.publish({"a": 0}) == Version(3, 1)


# Waits.


def test_latest_waits_for_a_version_that_is_new_enough(weights):
    with pytest.raises(ShoalTimeoutError, match=r"did not come within 0 s: none was published"):
        weights.latest(timeout=0)
    first = weights.publish({"a": 1})
    text = (
        r"a version after 1\.1 of the weights 'policy' did not come within 0 s: the newest is 1\.1"
    )
    with pytest.raises(ShoalTimeoutError, match=text):
        weights.latest(first, timeout=0)
    with pytest.raises(ShoalTimeoutError, match=r"is 1\.1, published by \S.* on node 0$"):
        weights.latest(first, timeout=1)
    reading = in_thread(weights.latest, first)
    Shared(weights.folder).publish({"a": 2})
    assert reading.result(DEADLINE_S).version == Version(2, 1)


def test_who_published_the_newest_version_is_read_once_and_ends_no_wait(weights, monkeypatch):
    weights.publish({"a": 1})
    described = weights.store.described
    results = iter([OSError(errno.EMFILE, "too many open files"), described])

    def next_result(version):
        result = next(results)
        if isinstance(result, OSError):
            raise result
        return result(version)

    monkeypatch.setattr(weights.store, "described", next_result)
    texts = [weights.store._last() for _ in range(3)]
    assert ["published by" in text for text in texts] == [False, True, True]


def test_close_ends_waits_with_its_reason_and_leaves_the_last_version(weights):
    reading = in_thread(weights.latest, weights.publish({"a": 1}))
    Shared(weights.folder).store.close("training has converged")
    weights.store.close("too late")
    text = "the weights 'policy' were closed: training has converged"
    with pytest.raises(WeightsClosed, match=text):
        reading.result(DEADLINE_S)
    with pytest.raises(WeightsClosed, match="converged"):
        weights.publish({"a": 2})
    assert weights.latest()["a"] == 1


def test_a_folder_that_is_removed_ends_waits(weights):
    waiting = in_thread(weights.latest)
    (weights.folder / "weights").unlink()
    with pytest.raises(WeightsClosed, match="the weights 'policy' are gone: their job has ended"):
        waiting.result(DEADLINE_S)


def test_publish_waits_for_another_publisher(weights):
    wait = LongWait(lambda: "the test waits", Deadline(DEADLINE_S))
    text = "waits for another publisher of the weights 'policy'"
    with publisher_lock(weights.folder, wait), pytest.raises(ShoalTimeoutError, match=text):
        weights.publish({"a": 1}, timeout=0)
    assert weights.publish({"a": 1}) == Version(1, 1)


READER = """
import sys
from shoal.deadline import Deadline
from shoal.weights.store import Store
store = Store(sys.argv[1], "the weights")
snapshot = store.latest(1, "a version", Deadline(60))
print("holds", snapshot.version, flush=True)
sys.stdin.readline()
"""


def test_publishing_waits_for_no_reader(weights):
    weights.publish({"a": torch.ones(1000)})
    with programs() as start:
        readers = [start("-c", READER, weights.folder) for _ in range(2)]
        for reader in readers:
            assert reader.stdout.readline() == "holds 1.1\n"
            reader.send_signal(signal.SIGSTOP)
        for number in range(2, 12):
            assert weights.publish({"a": torch.ones(1000)}) == Version(1, number)
        assert weights.versions == ["(1.1)", "1.10", "1.11"]
        held = weights.store.stats().versions[0].holders
        assert {holder.pid for holder in held} == {reader.pid for reader in readers}
    until(lambda: weights.store.sweep() or weights.versions == ["1.10", "1.11"])


# Memory.


def test_the_bound_of_bytes_is_an_error_that_names_the_versions_in_use(make):
    weights = make(max_bytes=3 * MIB)
    weights.publish({"a": torch.zeros(MIB, dtype=torch.uint8)})
    held = weights.latest()
    text = r"max_bytes=3,145,728; .* version 1\.1 \(2,097,152 bytes, held by driver \(pid \d+\) for 0 s"
    with pytest.raises(WeightsMemoryError, match=text):
        weights.publish({"a": torch.zeros(2 * MIB, dtype=torch.uint8)})
    assert weights.latest() is held
    assert weights.publish({"a": 1}) == Version(1, 2)


def test_stats_say_which_process_holds_which_version(weights):
    began = time.time()
    weights.publish({"a": torch.ones(1000)})
    tensor = weights.latest()["a"]
    for _ in range(3):
        weights.publish({"a": torch.ones(1000)})
    stats = weights.store.stats()
    first, third, fourth = stats.versions
    assert (str(first.version), first.retired, third.retired, fourth.retired) == (
        "1.1", True, False, False,
    )  # fmt: skip
    (holder,) = first.holders
    assert holder.pid == os.getpid()
    assert f"pid {os.getpid()}" in holder.name
    assert began - 1 <= holder.since <= time.time()
    assert third.holders == fourth.holders == ()
    assert stats.nbytes == sum(version.nbytes for version in stats.versions) > 12_000
    assert stats.free > 0
    assert tensor.sum() == 1000
    del tensor
    weights.store.sweep()
    assert [version.holders for version in weights.store.stats().versions] == [(), ()]


def test_a_process_that_holds_a_version_by_several_snapshots_is_named_once(weights):
    state = {"same": np.ones(1000)}
    weights.publish(state)
    first = weights.latest()
    weights.publish(state, delta=True)
    second = weights.latest()
    assert (first["same"] == second["same"]).all()
    stats = weights.store.stats()
    assert [[held.pid for held in version.holders] for version in stats.versions] == [
        [os.getpid()]
    ] * 2


def test_too_little_memory_is_an_error_before_any_write(weights, monkeypatch):
    weights.publish({"a": 1})

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        text = r"it needs 4,19\d,\d+ bytes, .* free .* in use: version 1.1 .* smaller keep="
        with pytest.raises(WeightsMemoryError, match=text):
            weights.publish({"a": torch.zeros(MIB)})
    assert weights.latest()["a"] == 1
    assert weights.publish({"a": torch.zeros(MIB)}) == Version(1, 2)


# Deltas and hashes.


def test_a_delta_copies_only_changed_tensors(weights):
    state = {name: torch.full((MIB,), 1.0) for name in "abc"} | {"n": np.ones(MIB), "step": 1}
    state["record"] = np.zeros(3, [("a", "i4")])
    weights.publish(state)
    state["b"][5] = 2
    state["step"] = 2
    version = weights.publish(state, delta=True)
    first, second = weights.store.stats().versions
    assert first.nbytes > 20 * MIB
    assert 4 * MIB < second.nbytes < 7 * MIB
    assert first.shared_by == (version,)
    snapshot = weights.latest()
    assert (snapshot["b"][5], snapshot["step"], snapshot["a"].sum()) == (2, 2, MIB)
    assert list(snapshot) == list(state)
    snapshot.verify()
    weights.publish(state, delta=True)
    assert weights.store.stats().versions[-1].nbytes < MIB  # nothing but its description


def test_the_files_of_a_delta_stay_as_long_as_it_needs_them(weights):
    state = {"a": torch.zeros(MIB), "b": torch.zeros(10)}
    for number in range(6):
        state["b"][0] = number
        weights.publish(state, delta=True)
    assert weights.versions == ["(1.1)", "1.5", "1.6"]
    held = weights.latest()
    for _ in range(3):
        weights.publish({"a": torch.ones(MIB)})
    assert weights.versions == ["(1.1)", "(1.6)", "1.8", "1.9"]
    assert (held["a"].sum(), held["b"][0]) == (0, 5)
    held.verify()
    kept = held["a"]
    del held
    weights.publish({"a": 1})
    assert weights.versions == ["(1.1)", "1.9", "1.10"]
    assert kept.sum() == 0


def test_deltas_on_files_that_are_mostly_not_used_any_more_become_whole(weights):
    state = {str(number): torch.zeros(MIB // 4) for number in range(40)}
    weights.publish(state)
    for number in range(200):
        state[str(number % 40)][0] = number
        weights.publish(state, delta=True)
        assert weights.store.stats().nbytes < 4 * 40 * MIB
    weights.latest().verify()


def test_a_delta_by_counters_sees_writes_but_not_those_through_data(weights):
    module = torch.nn.Linear(1000, 1000)
    weights.publish(module.state_dict())
    weights.publish(module.state_dict(), delta="counters")
    assert weights.store.stats().versions[-1].nbytes < MIB
    with torch.no_grad():
        module.weight.add_(1)
    weights.publish(module.state_dict(), delta="counters")
    assert weights.latest().diff(module) == ()
    module.weight.data.add_(1)
    weights.publish(module.state_dict(), delta="counters")
    assert weights.latest().diff(module) == ("weight",)
    weights.publish(module.state_dict(), delta=True)
    assert weights.latest().diff(module) == ()
    fresh = torch.nn.Linear(1000, 1000)  # other tensors with as many writes
    weights.publish(fresh.state_dict(), delta="counters")
    assert weights.latest().diff(fresh) == ()
    # Another publisher came in between.
    Shared(weights.folder).publish({"other": 1})
    weights.publish(fresh.state_dict(), delta="counters")
    assert weights.latest().diff(fresh) == ()


def test_a_delta_on_another_version_than_the_newest_is_refused(weights):
    first = weights.publish({"a": torch.ones(3)})
    second = weights.publish({"a": torch.ones(3)})
    with pytest.raises(ShoalValueError, match=r"delta=1\.1: the newest version .* is 1\.2"):
        weights.publish({"a": torch.ones(3)}, delta=first)
    assert weights.publish({"a": torch.ones(3)}, delta=second) == Version(1, 3)


def test_a_delta_takes_blocks_of_the_same_layout_only(weights):
    weights.publish({"a": torch.zeros(6), "b": torch.zeros(6)})
    state = {"a": torch.zeros(2, 3), "b": torch.zeros(6, dtype=torch.int32), "c": torch.zeros(6)}
    weights.publish(state, delta=True)
    snapshot = weights.latest()
    for name, tensor in state.items():
        assert snapshot[name].dtype == tensor.dtype
        assert torch.equal(snapshot[name], tensor)


def test_verify_finds_one_flipped_bit_and_names_the_tensor(weights):
    tied = torch.arange(3 * MIB, dtype=torch.float32)
    weights.publish({"a": torch.ones(10), "b": tied, "c": tied[5:], "d": torch.ones(10)})
    snapshot = weights.latest()
    snapshot.verify()
    snapshot["a"][0] = 2  # a write of this process counts
    with pytest.raises(WeightsCorruptError, match=r"version 1\.1: the bytes of 'a' are not those"):
        snapshot.verify()
    with (weights.folder / "v1-1").open("r+b") as file:
        file.seek(9 * MIB)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    with pytest.raises(WeightsCorruptError, match="the bytes of 'b', 'c' are not those that were"):
        Shared(weights.folder).latest().verify()
    weights.publish({"a": torch.ones(10)}, checksum=False)
    with pytest.raises(ShoalValueError, match="was published with checksum=False"):
        weights.latest().verify()


def test_diff_names_tensors_that_differ_or_exist_on_one_side(weights):
    module = torch.nn.Linear(2, 2)
    weights.publish(module.state_dict() | {"extra": torch.ones(1), "step": 1})
    assert weights.latest().diff(module) == ("extra",)
    with torch.no_grad():
        module.bias[0] += 1
    assert weights.latest().diff(module) == ("bias", "extra")
    assert weights.latest().diff({"weight": module.weight}) == ("bias", "extra")


def test_a_version_whose_publisher_died_before_it_was_noted_is_not_lost(weights):
    weights.publish({"a": 1})
    os.link(weights.folder / "v1-1", weights.folder / "v4-7")
    assert weights.latest().version == Version(1, 1)
    assert weights.publish({"a": 2}) == Version(5, 1)


# Arguments.


@pytest.mark.parametrize(
    ("keep", "max_bytes", "text"),
    [
        (0, None, "keep=0: expected an integer, at least 1"),
        (True, None, "keep=True: expected"),
        (2, 0, "max_bytes=0: expected an integer"),
        (2, math.inf, "max_bytes=inf: expected"),
    ],
)
def test_bounds_are_checked(place, keep, max_bytes, text):
    with pytest.raises(ShoalValueError, match=text):
        Store.create(place, keep, max_bytes)


def test_a_folder_without_weights_or_with_others_is_refused(weights, place):
    with pytest.raises(WeightsNotFoundError, match="no weights in"):
        Store(place, "x")
    with pytest.raises(FileExistsError):
        Store.create(str(weights.folder), 2, None)
    with (weights.folder / "weights").open("r+b") as page:
        page.write(b"otherwise")
    with pytest.raises(WeightsCorruptError, match="another version of shoal made these weights"):
        Store(str(weights.folder), "x")


def test_a_damaged_version_is_an_error(weights):
    weights.publish({"a": 1})
    with (weights.folder / "v1-1").open("r+b") as file:
        file.write(b"\xff" * 24)
    with pytest.raises(WeightsCorruptError, match="the header of a version"):
        weights.latest()
