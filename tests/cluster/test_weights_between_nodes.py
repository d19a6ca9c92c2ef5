"""Weights on two machines: what is published on one is read on the other."""

import pytest

from support.machines import connected, read_until

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


PARTS = """
import os, signal, threading, time
import numpy as np
from shoal import Cluster, NodePlacementStrategy, Weights, Worker
from shoal.errors import ShoalError, ShoalValueError

class Trainer(Worker):
    def publish(self, weights, number, ranks=range(3), timeout=60):
        if self._rank not in ranks:
            return None
        state = {f"rank{self._rank}": np.full(4_000_000, float(number)), "n": number}
        try:
            return weights.publish(state, version=number, part=(self._rank, 3), timeout=timeout)
        except ShoalError as error:
            return f"{type(error).__name__}: {error}"

    def read(self, weights, version):
        snapshot = weights.wait_for(version, 60)
        snapshot.verify()
        return snapshot["n"], [float(snapshot[f"rank{rank}"].mean()) for rank in range(3)]

class Dying(Worker):
    def publish(self, weights, number):
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        weights.publish({"rank1": np.ones(4_000_000)}, version=number, part=(1, 3))

with Cluster(num_nodes=2) as cluster:
    weights = Weights.create("policy", node_rank=0)
    trainer = Trainer.create_group().launch(
        cluster, NodePlacementStrategy([0, 1, 1]), "trainer", wait=True
    )
    for number in range(1, 4):
        versions = trainer.publish(weights, number).wait()
        found = trainer.read(weights, versions[0]).wait()
        same = set(versions) == {(1, number)} and found == [(number, [float(number)] * 3)] * 3
        print("parts", number, same, flush=True)
    print("late", trainer.publish(weights, 3, [1]).wait()[1], flush=True)
    print("missing", trainer.publish(weights, 4, [2], timeout=1).wait()[2], flush=True)
    dying = Dying.create_group().launch(cluster, NodePlacementStrategy([1]), "dying", wait=True)
    try:
        dying.publish(weights, 4).wait()
    except Exception as error:
        print("died", type(error).__name__, flush=True)
    time.sleep(12)  # the home waits for 10 s before it takes a silent publisher for dead
    print("dead", trainer.publish(weights, 4, [0], timeout=1).wait()[0], flush=True)
    print("newest", weights.newest, flush=True)
    print("again", set(trainer.publish(weights, 4).wait()) == {(1, 4)}, flush=True)
    weights.close()
    print("closed", flush=True)
"""


def run_on_two_machines(tmp_path, job):
    """Return what a driver prints whose job has two machines."""
    with connected("first", "second") as (first, second):
        first.start_ray()
        second.start_ray(first)
        with first.driver(tmp_path, job) as running:
            log = read_until(running, "closed", 200)
            more, _ = running.communicate(timeout=60)
            log += more
    assert running.returncode == 0, log
    return log


def test_workers_of_another_node_read_each_version(tmp_path):
    log = run_on_two_machines(tmp_path, JOB)
    for number in range(1, 6):
        assert f"read {number} True" in log, log
    assert "killed True" in log, log
    assert "newest 6" in log, log
    assert "undecided None" in log, log
    assert "the weights 'policy' are published on node 1; to publish here" in log, log
    assert "decided 1" in log, log
    assert "closed 3" in log, log


def test_workers_of_two_nodes_publish_parts(tmp_path):
    log = run_on_two_machines(tmp_path, PARTS)
    for number in range(1, 4):
        assert f"parts {number} True" in log, log
    assert "late ShoalValueError: trainer:1: publish: version=3 after 1.3: expected" in log, log
    assert "died PeerLostError" in log, log
    text = "publish: part {0} of 3 of version 4 of the weights 'policy' waits for part {1}"
    zero, one = (
        "0 (published last by trainer:0 on node 0)",
        "1 (published last by trainer:1 on node 1)",
    )
    both = f"missing ShoalTimeoutError: trainer:2: {text.format(2, zero)}, part {one}: no end of it"
    assert both in log, log
    assert f"dead ShoalTimeoutError: trainer:0: {text.format(0, one)}, part 2" in log, log
    assert "newest 1.3" in log, log
    assert "again True" in log, log
