"""Logs of ranks, code for the nodes, and the namespace: on Ray, and on two machines."""

import logging
import os
import sys
from pathlib import Path

import pytest
import ray

from shoal import Channel, Worker
from shoal.cluster import DistributedRayLogCollector, NodeProbe
from support.documents import blocks, page
from support.machines import RAY_PORT, connected
from support.processes import run_program, until

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(240)]

TEXT = page("docs/cluster.md")
PROGRAM, OUTPUT = blocks(TEXT, "python")[0], blocks(TEXT, "text")[0]

# What the document's program does not show, in the same job.
MORE = """
import os, signal, time
import ray
import shipped

class Dies(Worker):
    def die(self):
        print("last words of", self._rank, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def nest(self):
        inner = Inner.create_group().launch(Cluster(), NodePlacementStrategy([0]), "inner")
        inner.speak().wait()
        self.child = Cluster().allocate(Child, "dies:0:1", 0)
        ray.get(self.child.speak.remote(), timeout=60)

class Child:
    def speak(self):
        print("a child")

class Inner(Worker):
    def speak(self):
        print("code from", os.path.dirname(shipped.__file__))
        print("in", os.environ["CLUSTER_NAMESPACE"], Cluster.NAMESPACE)

if __name__ == "__main__":
    with Cluster(num_nodes=1, distributed_log_dir="more") as cluster:
        group = Dies.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "dies", wait=True)
        group.execute_on(0).nest().wait()
        Channel.create("spoken", disable_distributed_log=False)
        Channel.create("silent")
        actor = ray.get_actor("spoken:0", namespace=Cluster.NAMESPACE)
        ray.get(actor.__ray_call__.remote(lambda _: print("from the channel")))
        for result in [group.execute_on(rank).die() for rank in range(2)]:
            try:
                result.wait()
            except Exception as error:
                print(type(error).__name__)
    print("namespaces", cluster.namespace, Cluster.NAMESPACE)
"""


def contents(folder):
    """Return the lines of all logs, without those of shoal's own log, which come with the output."""
    return {
        str(path.relative_to(folder)): [
            line for line in path.read_text().splitlines() if not line.startswith("shoal: ")
        ]
        for path in sorted(Path(folder).rglob("*.log"))
    }


def test_ranks_of_a_job_have_log_files_and_the_code_that_was_sent(tmp_path, ray_tmpdir):
    (tmp_path / "repo" / "shipped").mkdir(parents=True)
    (tmp_path / "repo" / "shipped" / "__init__.py").touch()
    (tmp_path / "repo" / "pyproject.toml").touch()
    (tmp_path / "job.py").write_text(PROGRAM + MORE)
    paths = [str(tmp_path / "repo"), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "CLUSTER_NAMESPACE": "named",
        "SHOAL_CODE_WORKING_DIR": str(tmp_path / "repo"),
    }
    done = run_program("job.py", cwd=tmp_path, seconds=200, env=os.environ | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert OUTPUT in done.stdout
    assert done.stdout.count("PeerLostError") == 2, done.stdout
    assert "namespaces named named" in done.stdout
    assert f"code: {tmp_path}/repo/shipped is sent to the nodes" in done.stderr
    found = contents(tmp_path / "more")
    code, inner = found.pop("inner/rank_0.log")
    assert "/py_modules_files/" in code
    assert inner == "in named named"
    assert found == {
        "dies/rank_0.log": ["last words of 0"],
        "dies/rank_0_1.log": ["a child"],
        "dies/rank_1.log": ["last words of 1"],
        "spoken/rank_0.log": ["from the channel"],
    }
    assert list(ray_tmpdir.rglob("shoal-*.jsonl")) == []


class Speaker(Worker):
    def __init__(self):
        super().__init__()
        sys.stdout.write("constructed\n")

    def speak(self, text):
        sys.stdout.write(f"{text}\n")
        sys.stderr.write(f"{text.upper()}\n")


def test_registered_workers_are_collected_from_their_first_line(launch, tmp_path):
    group = launch(Speaker, ranks=2, name="speaker")
    collector = DistributedRayLogCollector(logging.getLogger("test"), str(tmp_path), "shoal", 0.1)
    collector.start()
    for worker in group.worker_info_list:
        # By its handle, or by its name.
        handle = worker.worker if worker.rank else None
        collector.register_worker(f"speaker:{worker.rank}", worker.rank, handle)
    group.speak("hello").wait()
    paths = [tmp_path / "speaker" / f"rank_{rank}.log" for rank in range(2)]
    until(lambda: all(path.exists() and "hello" in path.read_text() for path in paths), 60)
    group.speak("bye").wait()
    collector.stop()
    for path in paths:
        lines = path.read_text().splitlines()
        assert [line for line in lines if line.islower()] == ["constructed", "hello", "bye"]
        assert [line for line in lines if line.isupper()] == ["HELLO", "BYE"]


def test_the_nodes_of_a_ray_can_be_probed_without_a_job(cluster):
    actors = len(ray.util.list_named_actors(all_namespaces=True))
    probe = NodeProbe(1, {"num_nodes": 1, "component_placement": {}})
    assert [node.ray_id for node in probe.nodes] == [cluster.get_node_info(0).ray_id]
    assert probe.head_node is probe.nodes[0]
    assert list(probe.node_groups) == ["cluster", "node"]
    assert len(ray.util.list_named_actors(all_namespaces=True)) == actors


def test_channels_of_a_job_without_logs_ignore_the_request(cluster):
    channel = Channel.create("no logs", disable_distributed_log=False)
    channel.put(1)
    assert channel.get() == 1
    channel.delete()


TWO_NODES = """
import os, sys, time
from shoal import Cluster, NodePlacementStrategy, Worker

class Says(Worker):
    def say(self):
        import shipped
        print("on", os.uname().nodename, shipped.VERSION, os.environ.get("RLINF_COMM_NET_DEVICES"))

with Cluster(num_nodes=2, distributed_log_dir=sys.argv[1]) as cluster:
    group = Says.create_group().launch(cluster, NodePlacementStrategy([0, 1]), "says")
    group.say().wait()
    path = os.path.join(sys.argv[1], "says", "rank_1.log")
    end = time.monotonic() + 60
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.1)
    print("while it runs", os.path.exists(path))
    group.say().wait()
"""


def test_logs_come_from_all_nodes_and_code_goes_to_all_nodes(tmp_path):
    for name, version in (("repo", "new"), ("stale", "old")):
        (tmp_path / name / "shipped").mkdir(parents=True)
        (tmp_path / name / "shipped" / "__init__.py").write_text(f"VERSION = {version!r}\n")
        (tmp_path / name / "pyproject.toml").touch()
    script = tmp_path / "repo" / "driver.py"
    script.write_text(TWO_NODES)
    repo, logs = str(tmp_path / "repo"), tmp_path / "logs"
    paths = os.pathsep.join(filter(None, [repo, os.environ.get("PYTHONPATH", "")]))
    with connected("first", "second") as (first, second):
        # The second machine has older code at the same path.
        second.run(["mount", "--bind", str(tmp_path / "stale"), repo])
        first.start_ray(PYTHONPATH=paths)
        second.start_ray(first, PYTHONPATH=paths, RLINF_COMM_NET_DEVICES="eth0")
        log = first.run(
            [sys.executable, str(script), str(logs)],
            150,
            RAY_ADDRESS=f"{first.address}:{RAY_PORT}",
            SHOAL_CODE_WORKING_DIR="auto",
            PYTHONPATH=paths,
        )
    assert "while it runs True" in log, log
    assert contents(logs) == {
        "says/rank_0.log": ["on first new None"] * 2,
        "says/rank_1.log": ["on second new eth0"] * 2,
    }, log
