"""Emulated links of a job on Ray, and a job of the same process after it that has none."""

import os

import pytest

from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(240)]

PROGRAM = """
import os, time
import ray
from shoal import Channel, Cluster, NodePlacementStrategy, Worker

DELAY_S = 0.3

class Env(Worker):
    def step(self, channel):
        variable = os.environ.get("SHOAL_NET_EMULATION")
        for number in range(3):
            self.send((time.monotonic(), number, bytes(50_000)), "RolloutGroup", 0)
        begin = time.monotonic()
        channel.put("item")
        return variable, time.monotonic() - begin

class Rollout(Worker):
    def step(self):
        found = [self.recv("EnvGroup", 0, timeout=60) for _ in range(3)]
        arrived = time.monotonic()
        assert [number for _, number, _ in found] == [0, 1, 2]
        return arrived - found[0][0]

def job(section):
    with Cluster(cluster_cfg={"num_nodes": 1, "component_placement": {}, **section}) as cluster:
        place = NodePlacementStrategy([0])
        env = Env.create_group().launch(cluster, place, "EnvGroup")
        rollout = Rollout.create_group().launch(cluster, place, "RolloutGroup")
        channel = Channel.create("observations")
        received = rollout.step()
        ((variable, took),) = env.step(channel).wait(timeout=60)
        assert channel.get(timeout=60) == "item"
        return variable, took, received.wait(timeout=60)[0]

pair = {"src": "Env:0", "dst": ["Rollout:0", "channel/observations", "Rolout:1"]}
links = {
    "enabled": True,
    "crossdc_pairs": [{**pair, "delay_ms": 1000 * DELAY_S}],
    "bandwidth_groups": [{"members": "Env:0", "bandwidth_mbps": 8}],
}
variable, took, late = job({"net_emulation": links})
assert variable == "1", variable
assert took >= DELAY_S, took
assert late >= DELAY_S + 0.14, late  # three times 0.05 s
print("emulated")
assert "SHOAL_NET_EMULATION" not in os.environ
variable, _, _ = job({})
assert variable != "1", variable
print("usual")
os.environ["RLINF_NET_EMULATION"] = "1"
print("usual again", job({})[0])
"""


def test_links_of_a_job_on_ray(tmp_path, ray_tmpdir):
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "RLINF_NET_EMULATION": "0", "TMPDIR": str(ray_tmpdir)}
    ran = run_program(program, seconds=200, env=env)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[-4:] == ["emulated", "usual", "usual again 0", ""], ran.stdout
    assert "'Rolout:1' was no worker, channel or node of this job; did you mean" in ran.stderr
