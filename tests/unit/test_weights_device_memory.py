"""Weights in the memory of a GPU, with a fake of the CUDA driver; `test_weights_gpu` has the real one."""

import gc
import multiprocessing
import os
import shutil
import signal
import sys
import time

import pytest

from shoal.deadline import Deadline
from shoal.errors import (
    DependencyError,
    PeerLostError,
    ShoalTimeoutError,
    ShoalValueError,
    WeightsError,
    WeightsMemoryError,
)
from shoal.weights import Version, cuda, device_memory, snapshot
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from support.processes import DEADLINE_S, in_a_child, until

torch = pytest.importorskip("torch")
FakeCuda = pytest.importorskip("support.fake_cuda").FakeCuda


@pytest.fixture
def fake(tmp_path, monkeypatch):
    made = FakeCuda(tmp_path, monkeypatch)
    yield made
    device_memory._forget()  # or buffers would be freed later, in the driver of the machine
    gc.collect()
    made.forget()


@pytest.fixture
def store(weights_folder, fake):
    return Store(str(weights_folder), "the weights")


def state_of(number):
    whole = torch.arange(12.0).reshape(3, 4) + number
    return {
        "gpu": whole,
        "gpu.tied": whole[1],
        "gpu.turned": torch.arange(6.0).reshape(2, 3).t() * number,
        "gpu.gaps": torch.arange(10)[::2] + number,
        "gpu.empty": torch.empty(0, 3),
        "cpu": torch.full((5,), float(number)),
        "number": number,
    }


def publish(store, number=1, dtype=None, **state):
    layout = StateLayout(state_of(number) | state, dtype)
    return store.publish(layout, None, Deadline(0), on_device=True)


def latest(store, least=1, timeout=0):
    return store.latest(least, "a version", Deadline(timeout))


class Publisher:
    """A child that publishes when it is told, until it is killed."""

    def __init__(self, store):
        context = multiprocessing.get_context("fork")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=self._run, args=(store, other), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @staticmethod
    def _run(store, pipe):
        while True:
            pipe.send(publish(store, pipe.recv()))

    def publish(self, number):
        self._pipe.send(number)
        assert self._pipe.poll(DEADLINE_S)
        return self._pipe.recv()

    def kill(self):
        self._process.kill()
        self._process.join()


@pytest.fixture
def publisher(store):
    made = Publisher(store)
    yield made
    made.kill()


def is_of(found, number):
    return all(
        torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        for name, value in state_of(number).items()
    )


def test_readers_map_one_buffer_of_a_version_and_let_go_of_it_after_the_last_tensor(
    store, publisher, fake
):
    publisher.publish(1)
    first = latest(store)
    assert is_of(first, 1)
    first["gpu"][1, 0] = -5
    assert first["gpu.tied"][0] == -5  # they share their memory
    assert fake.log(os.getpid()) == ["open"]
    for number in range(2, 6):
        publisher.publish(number)
        assert is_of(latest(store), number)
    kept = first["gpu.turned"]
    del first
    gc.collect()
    assert torch.equal(kept, state_of(1)["gpu.turned"])
    opened = fake.log(os.getpid())
    assert opened.count("close") == opened.count("open") - 1  # of the first
    assert len(fake.buffers()) == 3
    del kept
    gc.collect()
    assert fake.log(os.getpid())[-2:] == ["synchronize", "close"]
    publisher.publish(6)
    publisher.publish(7)
    assert len(fake.buffers()) == 2
    assert is_of(latest(store), 7)


def test_the_publisher_reads_its_own_buffers_and_uses_them_again(store, fake):
    publish(store, 1)
    held = latest(store)
    for number in range(2, 8):
        publish(store, number)
        assert is_of(latest(store), number)
    assert is_of(held, 1)
    assert held.load_into(state_of(3)).loaded
    assert held.diff(state_of(1)) == ()
    assert len(fake.buffers()) == 3
    assert {"open", "free"}.isdisjoint(fake.log(os.getpid()))


def test_a_reader_that_is_killed_holds_nothing(store, publisher, fake):
    publisher.publish(1)
    in_a_child(lambda: (latest(store), os.kill(os.getpid(), signal.SIGKILL)))
    for number in range(2, 5):
        publisher.publish(number)
    assert len(fake.buffers()) == 2


def test_dtypes_are_cast_on_the_way_to_the_buffer(store):
    publish(store, 2, torch.bfloat16)
    found = latest(store)
    for name in ("gpu", "gpu.tied", "gpu.turned", "cpu"):
        assert torch.equal(found[name], state_of(2)[name].bfloat16())
    assert torch.equal(found["gpu.gaps"], state_of(2)["gpu.gaps"])


def test_snapshots_refuse_to_be_read_once_their_publisher_has_died(store, publisher, monkeypatch):
    publisher.publish(1)
    newest = publisher.publish(2)
    found = latest(store)
    target = {name: torch.zeros_like(part) for name, part in found.items() if name != "number"}
    load = snapshot.load

    def die(*args, **options):
        report = load(*args, **options)
        publisher.kill()
        return report

    text = (
        rf"version 1\.2 of weights was in the memory of a GPU of driver .*\(pid {publisher.pid}\)"
    )
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "load", die)
        with pytest.raises(PeerLostError, match=text):
            found.load_into(target)
    for attempt in (
        lambda: found["gpu"],
        lambda: found.diff(target),
        lambda: latest(store),
        lambda: latest(Store(str(store.folder), "the weights")),
    ):
        with pytest.raises(PeerLostError, match=text):
            attempt()
    with pytest.raises(ShoalTimeoutError):
        latest(store, newest.packed() + 1)
    assert publish(store, 3) == Version(2, 1)
    assert is_of(latest(store), 3)


def test_buffers_live_until_the_last_reader_also_after_the_end_of_the_weights(store, fake, timing):
    timing("weights", look_s=0.01)
    publish(store, 1)
    held = latest(store)
    shutil.rmtree(store.folder)
    time.sleep(0.1)  # several looks
    assert is_of(held, 1)
    assert len(fake.buffers()) == 1
    del held
    gc.collect()
    until(lambda: not fake.buffers())
    store.folder.mkdir()  # for the end of the test


def test_too_little_room_is_an_error_and_the_version_before_stays(store, fake, monkeypatch):
    publish(store, 1)
    monkeypatch.setenv("FAKE_CUDA_ROOM", str(2**21))
    with pytest.raises(
        WeightsMemoryError, match=r"cuda:0: it needs 2,.* bytes, and 1,000 are free"
    ):
        publish(store, 2, gpu=torch.ones(2**19 + 1))
    assert is_of(latest(store), 1)
    assert len(fake.buffers()) == 1


def test_an_obstacle_to_sharing_is_named(store, fake, monkeypatch, tmp_path):
    reader = Store(str(store.folder), "the weights")
    publish(store, 1)
    pid = os.getpid()

    def refused(text):
        fake.forget()
        with pytest.raises(WeightsError, match=f"cannot share memory of its GPU: .*{text}"):
            publish(store, 2)

    def refused_to_read(text):
        fake.forget()
        with pytest.raises(
            WeightsError, match=rf"GPU of driver \(pid {pid}\), which this process .*{text}"
        ):
            latest(reader)
        refused(text)

    with monkeypatch.context() as patch:
        patch.setenv("FAKE_CUDA_EXPORTS_NOTHING", "1")
        refused(r"cuIpcGetMemHandle: operation not supported \(801\)")
        assert fake.buffers() == []
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        with pytest.raises(DependencyError, match="cannot read: torch is not installed here"):
            latest(reader)
    with monkeypatch.context() as patch:
        patch.setattr(device_memory, "key_of", lambda _: (1, 2, 3))
        with pytest.raises(WeightsError, match="the end of a process of another container"):
            latest(reader)
    fake.uuid = "GPU-other"
    fake.forget()
    with pytest.raises(WeightsError, match="which this process does not see; it sees GPU-other"):
        latest(reader)
    monkeypatch.setattr(cuda, "_LIBRARY", str(tmp_path / "none.so"))
    refused_to_read("the library of the CUDA driver is not there")
    fake.gpus = 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    refused_to_read(r"torch finds no GPU of NVIDIA \(CUDA_VISIBLE_DEVICES=''\)")
    monkeypatch.setattr(torch.version, "cuda", None)
    refused_to_read(rf"torch {torch.__version__.split('+')[0]}.* is built without CUDA")


def test_a_version_without_tensors_of_a_gpu_needs_none(weights_folder):
    store = Store(str(weights_folder), "the weights")
    layout = StateLayout({"cpu": torch.ones(3), "number": 1})
    store.publish(layout, None, Deadline(0), on_device=True)
    latest(store).verify()


def test_a_version_of_a_gpu_has_no_hashes(store):
    publish(store, 1)
    with pytest.raises(ShoalValueError, match=r"verify: version 1\.1 is in the memory of a GPU"):
        latest(store).verify()


def test_other_accelerators_are_refused_by_name(store):
    layout = StateLayout(state_of(1))
    layout.pieces[:] = [piece._replace(device="xpu:0") for piece in layout.pieces]
    with pytest.raises(
        ShoalValueError, match=r"publish: '\w+' is on xpu:0: weights with device_mem"
    ):
        store.publish(layout, None, Deadline(0), on_device=True)
