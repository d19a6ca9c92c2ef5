"""Weights of a job: found by name, read by the workers of the node, and gone with the job."""

import os
import pickle
import signal
from pathlib import Path

import pytest
import ray

from shoal import Weights, Worker
from shoal.errors import (
    WeightsClosed,
    WeightsNotFoundError,
)
from shoal.manager.base import required_namespace
from shoal.weights import Version
from support.processes import DEADLINE_S, until

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.ray


class Trainer(Worker):
    """Publishes."""

    def publish(self, weights, value):
        return weights.publish({"w": torch.full((1000,), float(value)), "step": value})


class Rollout(Worker):
    """Reads."""

    def read(self, name, newer_than=None):
        self.snapshot = Weights.connect(name).latest(newer_than, DEADLINE_S)
        return self.snapshot.version, self.snapshot["step"], float(self.snapshot["w"].sum())

    def wait(self, weights):
        weights.latest(weights.newest, DEADLINE_S)

    def held(self):
        return float(self.snapshot["w"].sum())


@pytest.fixture
def weights(cluster, request):
    made = Weights.create(request.node.name[:40])
    yield made
    made.close()


def test_a_version_reaches_all_workers_of_the_node(weights, launch):
    trainer, rollouts = launch(Trainer), launch(Rollout, ranks=2)
    assert trainer.publish(weights, 1).wait() == [Version(1, 1)]
    assert rollouts.read(weights.name).wait() == [(Version(1, 1), 1, 1000.0)] * 2
    waiting = rollouts.read(weights.name, Version(1, 3))
    for value in (2, 3, 4):
        trainer.publish(weights, value).wait()
    assert waiting.wait() == [(Version(1, 4), 4, 4000.0)] * 2
    assert pickle.loads(pickle.dumps(weights)).newest == weights.newest == Version(1, 4)


def test_close_ends_the_waits_of_workers_and_frees_the_memory(weights, launch):
    weights.publish({"w": torch.ones(1000), "step": 1})
    rollout = launch(Rollout)
    rollout.read(weights.name).wait()
    folder = Path(weights._settings.locations[0].token)
    waiting = rollout.wait(weights)
    weights.close("training has converged")
    with pytest.raises(WeightsClosed, match="were closed: training has converged"):
        waiting.wait()
    until(lambda: not folder.exists())
    assert rollout.held().wait() == [1000.0]
    with pytest.raises(WeightsClosed, match="converged"):
        weights.publish({"w": 1})
    with pytest.raises(WeightsNotFoundError, match=f"no weights '{weights.name}'"):
        Weights.connect(weights.name)
    again = Weights.create(weights.name)
    assert again.newest is None
    again.close()


def test_weights_go_on_when_their_actor_dies(weights):
    weights.publish({"a": 1})
    held = weights.latest()
    actor = ray.get_actor(f"weights/{weights.name}:0", required_namespace())
    pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=DEADLINE_S)
    os.kill(pid, signal.SIGKILL)
    assert weights.publish({"a": 2}) == Version(1, 2)
    assert held["a"] == 1
    assert Weights.connect(weights.name, DEADLINE_S).latest()["a"] == 2
