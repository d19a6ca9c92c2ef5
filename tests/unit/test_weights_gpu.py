"""Weights of a GPU: staged through pinned memory, cast on the way, and loaded back.

On a machine without a GPU, `SHOAL_GPU_TESTS_ON=cpu` runs the same on the CPU, to try the test itself.
"""

import os
from pathlib import Path

import pytest

from shoal.deadline import Deadline
from shoal.weights.layout import StateLayout
from shoal.weights.store import Store

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


@pytest.fixture
def round_trip(weights_folder):
    """Publish a state and return its snapshot."""
    store = Store(str(weights_folder), "the weights")

    def publish(state, dtype=None):
        store.publish(StateLayout(state, dtype), None, Deadline(0))
        return store.latest(1, "a version", Deadline(0))

    return publish


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["as they are", "cast"])
def test_tensors_of_a_gpu_are_published_as_they_are_or_cast(round_trip, dtype):
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
    snapshot = round_trip(state, dtype)
    for name, sent in state.items():
        assert snapshot[name].device.type == "cpu"
        assert torch.equal(snapshot[name], sent.cpu().to(dtype or sent.dtype)), name
    snapshot["large"][0] = 9
    assert snapshot["tied"][0] == 9


def test_a_module_of_a_gpu_is_loaded(round_trip):
    trained, fresh = (torch.nn.Linear(300, 200, device=DEVICE) for _ in range(2))
    with torch.no_grad():
        trained.weight.mul_(2)  # on the current stream, just before the publish
    snapshot = round_trip(trained.state_dict())
    report = snapshot.load_into(fresh)
    assert report.loaded == ("weight", "bias")
    assert torch.equal(fresh.weight, trained.weight)
    assert snapshot.load_into(fresh).unchanged == ("weight", "bias")
