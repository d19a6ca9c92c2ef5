"""Weights on two machines: what is published on one is read on the other."""

import sys

import pytest

from support.machines import RAY_PORT, connected, read_until

pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(300)]

JOB = """
import os, signal
import numpy as np
import ray
from shoal import Cluster, NodePlacementStrategy, Weights, Worker
from shoal.errors import WeightsClosed, WeightsError
from shoal.manager.base import required_namespace

class Trainer(Worker):
    def publish(self, weights, number):
        state = {"large": np.full(8_000_000, float(number)), "same": np.ones(2_000_000), "n": number}
        return weights.publish(state, delta=True)

    def kill_actor(self, weights):
        actor = ray.get_actor(f"weights/{weights.name}:1", required_namespace())
        pid = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=30)
        os.kill(pid, signal.SIGKILL)

class Rollout(Worker):
    def read(self, weights, newer_than, timeout=60):
        snapshot = weights.latest(newer_than, timeout)
        snapshot.verify()
        return snapshot.version, snapshot["n"], float(snapshot["large"].mean())

    def wait(self, weights):
        try:
            weights.latest(weights.newest, 60)
        except WeightsClosed as error:
            return str(error)

    def publish(self, weights):
        try:
            weights.publish({"a": 1})
        except WeightsError as error:
            return str(error)

with Cluster(num_nodes=2) as cluster:
    weights = Weights.create("policy", push=True)
    print("undecided", weights.node_rank, flush=True)
    trainer = Trainer.create_group().launch(cluster, NodePlacementStrategy([1]), "trainer", wait=True)
    rollouts = Rollout.create_group().launch(
        cluster, NodePlacementStrategy([0, 0, 1]), "rollouts", wait=True
    )
    last = None
    for number in range(1, 6):
        waiting = rollouts.read(weights, last)
        (last,) = trainer.publish(weights, number).wait()
        found = waiting.wait()
        print("read", number, found == [(last, number, float(number))] * 3, flush=True)
    waiting = rollouts.read(weights, last, 20)  # less than a node waits for an answer
    trainer.kill_actor(weights).wait()
    (last,) = trainer.publish(weights, 6).wait()
    print("killed", waiting.wait() == [(last, 6, 6.0)] * 3, flush=True)
    print("newest", rollouts.read(weights, None).wait()[0][1], flush=True)
    print("refused", rollouts.execute_on(1).publish(weights).wait()[0], flush=True)
    print("decided", weights.node_rank, flush=True)
    waiting = rollouts.wait(weights)
    weights.close("training has converged")
    print("closed", sum("were closed: training has converged" in text for text in waiting.wait()), flush=True)
"""


def test_workers_of_another_node_read_each_version(tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(JOB)
    with connected("first", "second") as (first, second):
        first.start_ray()
        second.start_ray(first)
        running = first.start(
            [sys.executable, str(script)],
            RAY_ADDRESS=f"{first.address}:{RAY_PORT}",
            PYTHONUNBUFFERED="1",
        )
        try:
            log = read_until(running, "closed", 200)
            more, _ = running.communicate(timeout=60)
            log += more
        finally:
            running.kill()
    for number in range(1, 6):
        assert f"read {number} True" in log, log
    assert "killed True" in log, log
    assert "newest 6" in log, log
    assert "undecided None" in log, log
    assert "the weights 'policy' are published on node 1; to publish here" in log, log
    assert "decided 1" in log, log
    assert "closed 3" in log, log
    assert running.returncode == 0, log
