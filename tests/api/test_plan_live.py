"""`shoal plan --live`: uses the running cluster as the inventory and does not change it."""

import os

import pytest

from shoal.errors import ClusterNotFoundError
from shoal.planner import from_ray
from support.processes import run_program

JOB = "cluster: {num_nodes: 1, component_placement: {agent: {node_group: node, placement: '0:0-1'}}}\n"

DRIVER = """
import json, os, subprocess, sys
import ray, shoal
from shoal import Cluster, Worker

class Counter(Worker):
    def rank(self):
        return self._rank

cluster = Cluster(num_nodes=1)
group = Counter.create_group().launch(cluster, name="counter")
node = cluster.nodes[0]
made = shoal.plan("job.yaml", cluster)
assert [made.nodes[0].ip, made.nodes[0].cpus] == [node.node_ip, node.num_cpus], made.nodes
environment = made.components[0].environment_of(made.components[0].processes[1])
done = subprocess.run(
    [sys.executable, "-m", "shoal", "plan", "job.yaml", "--live", "--json"],
    capture_output=True,
    text=True,
    timeout=100,
    env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
)
assert done.returncode == 0, done.stderr
read = json.loads(done.stdout)
(found,) = read["nodes"]
assert [found["ip"], found["cpus"]] == [node.node_ip, node.num_cpus], found
assert read["inventory"] == "the running cluster"
assert environment["MASTER_ADDR"] == node.node_ip
# The job goes on, and the plan left no actor behind.
assert group.rank().wait() == [0]
print("alive", sorted({a["name"] for a in ray.util.list_named_actors(all_namespaces=True)}))
cluster.shutdown()
"""


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.process
@pytest.mark.timeout(240)
def test_the_running_cluster_is_an_inventory_and_stays_as_it_was(ray_tmpdir, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "driver.py").write_text(DRIVER)
    done = run_program("driver.py", seconds=200, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("alive")]
    assert "counter:0" in line


def test_without_a_ray_the_error_says_what_to_do(monkeypatch):
    def connect(*_):
        raise ConnectionError("none")

    monkeypatch.setattr(from_ray.ray, "is_initialized", lambda: False)  # other tests may have
    monkeypatch.setattr(from_ray, "connect", connect)
    with pytest.raises(ClusterNotFoundError, match=r"ray start.*RAY_ADDRESS.*--nodes"):
        from_ray.read_live()
