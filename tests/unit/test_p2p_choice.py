"""The choice of the transport between two workers, and the reason given for it."""

import sys
from types import SimpleNamespace

import pytest

from shoal import WorkerAddress, WorkerInfo
from shoal.collective.tensors.devices import tensor_transport
from shoal.deadline import Deadline
from shoal.errors import (
    PeerLostError,
    ShoalTimeoutError,
    ShoalValueError,
    TransportError,
    TransportRefusedError,
)
from shoal.transport import choice
from shoal.transport.choice import OBJECTS, choose


def record(name, memory="m", node=0, accelerators=(), kind="NO_ACCEL"):
    address = WorkerAddress.from_name(name)
    held = {"available_accelerators": list(accelerators), "accelerator_type": kind}
    return WorkerInfo(address, address.rank, 1, node, memory=memory, **held)


HERE = record("a:0")
NEAR = record("b:0")
FAR = record("b:1", "other", 1)
GPU = "NV_GPU"
GPU_0 = record("a:2", accelerators=[0], kind=GPU)
GPU_0_TOO = record("b:2", accelerators=[0], kind=GPU)
GPU_01 = record("b:3", accelerators=[0, 1], kind=GPU)
GPU_1 = record("b:4", accelerators=[1], kind=GPU)
FAR_GPU = record("b:5", "other", 1, [8], GPU)


@pytest.fixture(autouse=True)
def _nothing_forced(monkeypatch):
    monkeypatch.delenv("SHOAL_TRANSPORT", raising=False)


@pytest.mark.parametrize(
    ("forced", "here", "there", "data", "name", "staged", "why"),
    [
        (None, HERE, NEAR, OBJECTS, "shm", False, "same shared memory"),
        (None, HERE, FAR, OBJECTS, "lane", False, "b:1 is on node 1, with other memory"),
        ("shm", HERE, NEAR, OBJECTS, "shm", False, "same shared memory"),
        ("ray", HERE, NEAR, OBJECTS, "lane", False, "SHOAL_TRANSPORT=lane"),
        ("lane", HERE, NEAR, OBJECTS, "lane", False, "SHOAL_TRANSPORT=lane"),
        ("torch", HERE, NEAR, OBJECTS, "lane", False, "SHOAL_TRANSPORT=torch"),
        ("torch", HERE, FAR, OBJECTS, "lane", False, "node 1"),
        (None, HERE, NEAR, "cpu", "shm", False, "same shared memory"),
        (None, HERE, FAR, "cpu", "torch", False, "b:1 is on node 1: gloo"),
        ("lane", HERE, FAR, "cpu", "lane", False, "SHOAL_TRANSPORT=lane"),
        ("lane", HERE, NEAR, "cpu", "lane", False, "SHOAL_TRANSPORT=lane"),
        ("torch", HERE, NEAR, "cpu", "torch", False, "SHOAL_TRANSPORT=torch: gloo"),
        (None, GPU_0, GPU_0_TOO, "cuda", "cuda_ipc", False, "both see accelerator 0"),
        (None, GPU_0, GPU_01, "cuda", "cuda_ipc", False, "both see accelerator 0"),
        (None, GPU_0, GPU_1, "cuda", "torch", False, "different NV_GPU devices"),
        (None, GPU_0, FAR_GPU, "cuda", "torch", False, "different NV_GPU devices"),
        ("torch", GPU_0, GPU_0_TOO, "cuda", "torch", True, "through the CPU's memory"),
        (None, GPU_0, NEAR, "cuda", "shm", True, "b:0 has NO_ACCEL, a:2 NV_GPU"),
        (None, GPU_0, FAR, "cuda", "torch", True, "through the CPU's memory"),
        ("ray", GPU_0, FAR_GPU, "cuda", "lane", True, "through the CPU's memory"),
        ("shm", GPU_0, GPU_1, "cuda", "shm", True, "through the CPU's memory"),
    ],
)
def test_the_choice_and_its_reason(monkeypatch, forced, here, there, data, name, staged, why):
    if forced:
        monkeypatch.setenv("SHOAL_TRANSPORT", forced)
    found = choose(here, there, data)
    assert (found.name, found.staged) == (name, staged)
    assert why in found.reason


def test_the_device_of_the_tensor_decides_between_workers_with_several():
    assert choose(GPU_01, GPU_1, "cuda", 1).name == "cuda_ipc"
    found = choose(GPU_01, GPU_1, "cuda", 0)
    assert (found.name, found.staged) == ("shm", True)
    assert "this tensor's is not one of them" in found.reason


def test_tensors_avoid_a_transport_that_refused_them_and_the_reason_says_so():
    found = choose(GPU_0, GPU_0_TOO, "cuda", refused={"cuda_ipc": "no handles in this sandbox"})
    assert (found.name, found.staged) == ("shm", True)
    assert found.reason == (
        "b:2 can use the same shared memory; through the CPU's memory: cuda_ipc is impossible: no "
        "handles in this sandbox"
    )


@pytest.mark.parametrize("data", [OBJECTS, "cpu", "cuda"])
def test_shared_memory_cannot_be_forced_between_nodes(monkeypatch, data):
    monkeypatch.setenv("SHOAL_TRANSPORT", "shm")
    with pytest.raises(TransportError, match=r"b:1, on node 1, cannot use the shared memory"):
        choose(HERE, FAR, data)


def test_workers_without_shared_memory_do_not_share_it():
    assert choose(record("a:0", ""), record("b:0", ""), OBJECTS).name == "lane"


def test_an_unknown_transport_is_refused(monkeypatch):
    monkeypatch.setenv("SHOAL_TRANSPORT", "nonsense")
    with pytest.raises(ShoalValueError, match=r"'nonsense': expected one of shm, lane, torch"):
        choose(HERE, NEAR, OBJECTS)


PIGEON = """
class Pigeon:
    name = {name!r}

    def reason(self, here, there, data):
        return "pigeons fly between nodes" if here.memory != there.memory else None
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package with a transport that has a name."""

    def install(name):
        (tmp_path / "pigeons.py").write_text(PIGEON.format(name=name) + "made = Pigeon()\n")
        meta = tmp_path / "pigeons-1.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1\n")
        (meta / "entry_points.txt").write_text("[shoal.transports]\nmine = pigeons:made\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        choice._registered.cache_clear()

    yield install
    monkeypatch.undo()
    choice._registered.cache_clear()
    sys.modules.pop("pigeons", None)


def test_a_registered_transport_carries_the_tensors_that_it_offers_to(monkeypatch, installed):
    installed("pigeon")
    assert choose(HERE, FAR, "cpu") == ("pigeon", "pigeons fly between nodes", False)
    assert choose(HERE, FAR, OBJECTS).name == "lane"
    assert choose(HERE, NEAR, "cpu").name == "shm"
    monkeypatch.setenv("SHOAL_TRANSPORT", "torch")
    assert choose(HERE, FAR, "cpu").name == "torch"
    monkeypatch.setenv("SHOAL_TRANSPORT", "pigeon")
    assert choose(HERE, FAR, "cpu").name == "pigeon"
    assert choose(HERE, NEAR, OBJECTS).name == "lane"
    with pytest.raises(TransportError, match="it does not carry tensors on cpu from a:0 to b:0"):
        choose(HERE, NEAR, "cpu")
    refused = {"pigeon": "it rains"}
    with pytest.raises(TransportRefusedError, match="from a:0 to b:1: it rains"):
        choose(HERE, FAR, "cpu", refused=refused)
    monkeypatch.delenv("SHOAL_TRANSPORT")
    assert choose(HERE, FAR, "cpu", refused=refused).name == "torch"


@pytest.mark.parametrize("name", ["shm", "lane", "ray", "torch", "cuda_ipc"])
def test_a_package_cannot_take_the_name_of_a_transport_of_shoal(installed, name):
    installed(name)
    with pytest.raises(TransportError, match=f"registers a transport named '{name}'"):
        choice.has_registered()


def test_the_carrier_of_version_0_1_0_has_its_name_too():
    assert choice.TensorLane is choice.TensorCarrier


@pytest.mark.parametrize("timeout", [0.05, 30.0])
def test_a_receiver_that_does_not_copy_is_named(session, timing, caplog, timeout):
    """The log says whom the sender waits for, until its time is over or the receiver has died."""
    torch = pytest.importorskip("torch")
    timing("deadline", first_logs_s=(0.01, 60.0))
    transport = tensor_transport("cuda_ipc", SimpleNamespace(session=lambda: session))
    carrier, _ = transport.sender(GPU_0, GPU_0_TOO)
    died = PeerLostError("b:2 is gone") if timeout > 1 else None
    with pytest.raises(PeerLostError if died else ShoalTimeoutError):
        carrier.send([torch.empty(0)], Deadline(timeout), lambda: died)
    assert caplog.messages[0].startswith("a:2: send to b:2: waits for b:2 to copy tensors")
