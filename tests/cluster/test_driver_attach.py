"""Several drivers and clusters: drivers that join a job, jobs in sequence, and misplaced calls."""

import re

import pytest

from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(240)]


def run(tmp_path, body):
    """Run a driver program to its end; returns its exit code and its output."""
    script = tmp_path / "driver.py"
    script.write_text(body)
    done = run_program(script, seconds=120)
    return done.returncode, done.stdout + done.stderr


SECOND = """
import sys
from shoal import Cluster, Worker, WorkerGroup

class Shared(Worker):
    def rank(self): ...
    def add(self, value): ...

cluster = Cluster()
print("nodes", cluster.num_nodes, cluster.namespace, cluster.master_addr, cluster.master_port)
group = WorkerGroup.from_group_name(Shared, "shared")
print("ranks", group.rank().wait(), group.execute_on(1).add(4).wait())
cluster.shutdown()
cluster = Cluster()  # joins the same job again
print("joined twice", WorkerGroup.from_group_name(Shared, "shared").rank().wait())
own = Shared.create_group().launch(cluster, name="own", wait=True)
sys.exit(6)
"""

FIRST = """
import os, subprocess, sys, time
import ray
from shoal import Channel, Cluster, NodePlacementStrategy, Worker, WorkerGroup
from shoal.errors import ClusterError

class Shared(Worker):
    def __init__(self):
        super().__init__()
        self.total = 0
    def rank(self):
        return self._rank
    def add(self, value):
        self.total += value
        return self.total

with Cluster(num_nodes=1) as cluster:
    group = Shared.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "shared", wait=True)
    # Selects this Ray among those on the machine.
    here = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(
        [sys.executable, sys.argv[1]], capture_output=True, text=True, timeout=90, env=here,
    )
    print(done.stdout, done.stderr)
    expected = f"nodes 1 shoal {cluster.master_addr} {cluster.master_port}"
    print("second:", done.returncode, expected in done.stdout)
    # The job is alive, with the state that the other driver changed; that driver's group is gone.
    print("state:", group.add(1).wait())
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            ray.get_actor("own:0", namespace="shoal")
        except ValueError:
            print("its group is gone")
            break
        time.sleep(0.1)
    # A job in another namespace of the same Ray, with a channel of the same name.
    channel = Channel.create("numbers")
    channel.put("of the first job")
    done = subprocess.run(
        [sys.executable, sys.argv[2]], capture_output=True, text=True, timeout=90, env=here,
    )
    print("third:", done.returncode, done.stdout, done.stderr)
    print("alive:", group.rank().wait())
    print("still there:", channel.qsize(), channel.get(timeout=10))

# A second cluster in the same process, after a shutdown and after ray.shutdown().
for end in (lambda: ray.shutdown(), lambda: cluster.shutdown()):
    cluster = Cluster(num_nodes=1)
    group = Shared.create_group().launch(cluster, name="shared")
    print("again:", group.rank().wait())
    late = group.rank()
    end()
    try:
        late.wait()
    except ClusterError as error:
        print("late:", error)
    group.close()
    print("Ray runs:", ray.is_initialized())
"""

THIRD = """
import ray
from shoal import Channel, Cluster
print("namespace", Cluster(num_nodes=1).namespace)
channel = Channel.create("numbers")
channel.put("of the third job")
print("holds", channel.qsize(), channel.get(timeout=10))
"""


def test_drivers_share_a_ray_and_a_process_can_start_again(tmp_path):
    (tmp_path / "second.py").write_text(SECOND)
    (tmp_path / "third.py").write_text(THIRD)
    script = FIRST.replace("sys.argv[1]", repr(str(tmp_path / "second.py")))
    script = script.replace("sys.argv[2]", repr(str(tmp_path / "third.py")))
    code, log = run(tmp_path, script)
    assert code == 0, log
    assert "second: 6 True" in log, log
    assert "ranks [0, 1] [4]" in log
    assert "joined twice [0, 1]" in log, log
    assert "joined the job 'shoal' on 1 nodes" in log
    assert "state: [1, 5]" in log
    assert "its group is gone" in log
    assert "third: 0 namespace shoal_1" in log, log
    assert "holds 1 of the third job" in log, log
    assert "alive: [0, 1]" in log
    assert "still there: 1 of the first job" in log, log
    assert log.count("again: [0]") == 2, log
    assert log.count("late: shared.rank: the cluster was shut down") == 2, log
    assert log.count("Ray runs: False") == 2, log


def test_handles_and_waits_of_a_job_end_with_it(tmp_path):
    code, log = run(
        tmp_path,
        """
import threading
from shoal import Channel, Cluster, Worker
from shoal.errors import ChannelClosed, ClusterError

class Counter(Worker):
    def count(self):
        return 1

def told(name, call, *args, **kwargs):
    try:
        print(name, "returned", call(*args, **kwargs))
    except (ChannelClosed, ClusterError) as error:
        print(name, "said:", error)

cluster = Cluster(num_nodes=1)
group = Counter.create_group().launch(cluster, name="counter", wait=True)
channel, full = Channel.create("numbers"), Channel.create("full", maxsize=1)
channel.put(1)
full.put(1)
pending = channel.get("other", async_op=True)
waits = [
    threading.Thread(target=told, args=("get", channel.get, "empty")),
    threading.Thread(target=told, args=("put", full.put, 2)),
    threading.Thread(target=told, args=("work", pending.wait)),
]
for thread in waits:
    thread.start()
while not (channel.stats("empty").waiting_consumers and full.stats().waiting_producers):
    pass
cluster.shutdown()
for thread in waits:
    thread.join(60)
with Cluster(num_nodes=1):
    told("late put", channel.put, 2)
    told("late get", channel.get)
    told("late call", group.count)
    told("late ready", group.ready)
    again = Channel.create("numbers")
    again.put("of the second job")
    print("holds", again.get())
""",
    )
    assert code == 0, log
    for name in ("get", "put", "work", "late put", "late get"):
        assert re.search(
            rf"^{name} said: .*its job has ended in this process", log, re.MULTILINE
        ), log
    assert "late call said: counter.count: the cluster was shut down" in log
    assert "late ready said: counter.launch: the cluster was shut down" in log
    assert "holds of the second job" in log


def test_a_driver_without_a_cluster_gets_an_error_with_the_reason(tmp_path):
    code, log = run(
        tmp_path,
        """
import time
import ray
from shoal import Cluster
from shoal.errors import ClusterError, ClusterNotFoundError, NamespaceConflictError

start = time.monotonic()
try:
    Cluster(num_nodes=2)
except ClusterError as error:
    print("two nodes:", error)
print("connected after that:", ray.is_initialized(), Cluster.has_initialized())

ray.init(include_dashboard=False, namespace="mine")
try:
    Cluster(num_nodes=1)
except NamespaceConflictError as error:
    print("conflict:", error)
print("still mine:", ray.get_runtime_context().namespace)
ray.shutdown()

ray.init(include_dashboard=False, namespace="shoal")
with Cluster(num_nodes=1) as cluster:
    print("in its namespace:", cluster.num_nodes)
print("not ours to end:", ray.is_initialized())

import os
os.environ["CLUSTER_NAMESPACE"] = "shoal_7"
try:
    Cluster()
except ClusterNotFoundError as error:
    print("dead job:", error)
""",
    )
    assert code == 0, log
    assert "two nodes: the job wants 2 nodes, but no Ray cluster runs and a local one has 1" in log
    assert "connected after that: False False" in log
    assert "conflict: Ray is already initialised in the namespace 'mine'" in log
    assert 'namespace="shoal")' in log
    assert "still mine: mine" in log
    assert "in its namespace: 1" in log
    assert "not ours to end: True" in log
    assert "dead job: no job runs in the namespace 'shoal_7': it has ended" in log
