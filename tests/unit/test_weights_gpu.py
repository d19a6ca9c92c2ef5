"""Weights of a GPU: staged through pinned memory or left there, cast on the way, and loaded back.

On a machine without a GPU, `SHOAL_GPU_TESTS_ON=cpu` runs the same on the CPU, to try the test itself.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from shoal.deadline import Deadline
from shoal.errors import PeerLostError
from shoal.weights import Version
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store
from support.processes import start_program

DEVICE = os.environ.get("SHOAL_GPU_TESTS_ON", "cuda")
MIB = 2**20

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.nightly,
    pytest.mark.skipif(
        DEVICE == "cuda" and not Path("/proc/driver/nvidia/version").exists(),
        reason="there is no NVIDIA driver here",
    ),
]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["as they are", "cast"])
def test_tensors_of_a_gpu_are_published_as_they_are_or_cast(snapshot_of, dtype):
    # More than one piece of the staging, and one that is not a multiple of it.
    large = torch.randn(40 * MIB + 17, device=DEVICE)
    whole = torch.arange(12.0, device=DEVICE).reshape(3, 4)
    state = {
        "large": large,
        "tied": large[:1000],
        "turned": whole.t(),
        "gaps": whole[:, ::2],
        "empty": torch.empty(0, device=DEVICE),
        "cpu": torch.ones(3),
    }
    snapshot = snapshot_of(state, dtype)
    for name, sent in state.items():
        assert snapshot[name].device.type == "cpu"
        assert torch.equal(snapshot[name], sent.cpu().to(dtype or sent.dtype)), name
    snapshot["large"][0] = 9
    assert snapshot["tied"][0] == 9


def test_a_module_of_a_gpu_is_loaded(snapshot_of):
    trained, fresh = (torch.nn.Linear(300, 200, device=DEVICE) for _ in range(2))
    with torch.no_grad():
        trained.weight.mul_(2)  # on the current stream, just before the publish
    snapshot = snapshot_of(trained.state_dict())
    report = snapshot.load_into(fresh)
    assert report.loaded == ("weight", "bias")
    assert torch.equal(fresh.weight, trained.weight)
    assert snapshot.load_into(fresh).unchanged == ("weight", "bias")


CHILD = """
import sys
import torch
from shoal.deadline import Deadline
from shoal.weights import Version
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store

folder, role, device = sys.argv[1:]
store = Store(folder, "the weights")
if role == "publish":
    state = {"large": torch.ones(2**20, device=device)}
    store.publish(StateLayout(state), None, Deadline(0), on_device=True)
    print("published", flush=True)
else:
    first = store.latest(1, "a version", Deadline(60))
    print(first["large"].device.type, float(first["large"].sum()), flush=True)
    newest = store.latest(Version(1, 6).packed(), "version 1.6", Deadline(60))
    target = torch.zeros(2**20, device=device)
    newest.load_into({"large": target})
    print(float(first["large"].sum()), float(target.sum()), newest.diff({"large": target}), flush=True)
sys.stdin.readline()
"""


def start(folder, role):
    return start_program("-c", CHILD, folder, role, DEVICE)


def test_another_process_reads_what_stays_in_the_memory_of_the_gpu(weights_folder):
    store = Store(str(weights_folder), "the weights")
    large = torch.empty(MIB, device=DEVICE)

    def publish(number):
        store.publish(
            StateLayout({"large": large.fill_(number)}), None, Deadline(0), on_device=True
        )

    publish(1)
    with start(weights_folder, "read") as reader:
        assert reader.stdout.readline().split() == [DEVICE, f"{MIB}.0"]
        for number in range(2, 7):
            publish(number)
        assert reader.stdout.readline().split() == [f"{MIB}.0", f"{6 * MIB}.0", "()"]
        own = store.latest(Version(1, 6).packed(), "version 1.6", Deadline(0))
        assert own["large"].device.type == DEVICE
        assert torch.equal(own["large"], large)
        array = np.zeros(MIB, np.float32)
        assert own.load_into({"large": array}).loaded == ("large",)
        assert (array == 6).all()
        reader.kill()


@pytest.mark.skipif(DEVICE == "cpu", reason="a version in the memory of the CPU stays")
def test_a_version_in_the_memory_of_the_gpu_ends_with_its_publisher(weights_folder):
    store = Store(str(weights_folder), "the weights")
    with start(weights_folder, "publish") as publisher:
        assert publisher.stdout.readline() == "published\n"
        found = store.latest(1, "a version", Deadline(0))
        assert found["large"].sum() == MIB
        publisher.kill()
    with pytest.raises(PeerLostError, match="was in the memory of a GPU of driver"):
        found.load_into({"large": torch.empty(MIB, device=DEVICE)})
    with pytest.raises(PeerLostError):
        store.latest(1, "a version", Deadline(0))
