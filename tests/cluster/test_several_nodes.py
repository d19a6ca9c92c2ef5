"""A job on several machines, each with its own addresses, processes and shared memory."""

import sys

import pytest

from support.machines import RAY_PORT, connected, read_until

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(300)]

JOB = """
import asyncio, os, signal, socket, sys, time
import numpy as np
import ray
from shoal import Channel, Cluster, NodePlacementStrategy, Worker

class Pair(Worker):
    def where(self):
        return socket.gethostname(), os.environ["CLUSTER_NODE_RANK"]

    def put_all(self, name, count):
        channel = Channel.connect(name)
        for index in range(count):
            channel.put((self._rank, index), key=self._rank)

    def get_all(self, name, count):
        channel = Channel.connect(name)
        other = 1 - self._rank
        return [channel.get(key=other, timeout=60) for _ in range(count)]

    def way(self, name, *keys):
        channel = Channel.connect(name)
        return channel.transport, [type(channel._queues(key)).__name__ for key in keys]

    def exchange(self, name):
        # Small and large items, single, in batches and with asyncio, to and from the other worker.
        channel = Channel.connect(name)
        me, other = ("to", self._rank), ("to", 1 - self._rank)
        large = np.full(3_000_000, self._rank, np.uint8)
        channel.put(large, key=other)
        works = [channel.put((self._rank, n), n % 3, other, async_op=True) for n in range(50)]
        channel.put_many([large] * 4, [10] * 4, other)
        first = channel.get(me, timeout=60)
        first += 1
        async def several():
            return [await channel.get(me, async_op=True, timeout=60) for _ in range(30)]
        got = asyncio.run(several()) + [channel.get(me, timeout=60) for _ in range(20)]
        batches = [channel.get_batch(20, me, timeout=60) for _ in range(2)]
        for work in works:
            work.wait(timeout=60)
        theirs = 1 - self._rank
        return (
            got == [(theirs, n) for n in range(50)]
            and int(first[0]) == int(first[-1]) == theirs + 1
            and [len(batch) for batch in batches] == [2, 2]
            and all(int(item.sum()) == theirs * 3_000_000 for batch in batches for item in batch)
            and channel.empty(me)
        )

    def lease(self, name, key, settle):
        lease = Channel.connect(name).get(key, lease=True, timeout=60)
        self.held = lease
        if settle:
            getattr(lease, settle)()
        return int(lease.redelivered)

with Cluster(num_nodes=2) as cluster:
    print("order", [cluster.get_node_ip(rank) for rank in range(2)], flush=True)
    pair = Pair.create_group().launch(
        cluster, NodePlacementStrategy([0, 1]), "pair", wait=True
    )
    print("where", pair.where().wait(), flush=True)
    for distributed in (False, True):
        name = f"channel {distributed}"
        channel = Channel.create(name, distributed=distributed)
        pair.put_all(name, 20).wait()
        got = pair.get_all(name, 20).wait()
        print(name, got == [[(1, n) for n in range(20)], [(0, n) for n in range(20)]], flush=True)
        print(name, "exchange", pair.exchange(name).wait(), flush=True)
    # A key lives where it was used first.
    for rank in range(2):
        pair.execute_on(rank).put_all(name, 1).wait()
    print("ways", pair.way("channel False", 0, 1).wait(), flush=True)
    print("ways", pair.way(name, 0, 1).wait(), flush=True)
    host = ray.get_actor(f"{name}:0", namespace=Cluster.NAMESPACE)
    os.kill(ray.get(host.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
    print("still", pair.way(name, 0, 1).wait(), flush=True)
    home = Channel.create("leases", node_rank=0)
    home.put_many(["a", "b"])
    print("leases", pair.execute_on(1).lease("leases", "default_queue", "give_back").wait(), home.qsize(), flush=True)
    print("leases", pair.execute_on(1).lease("leases", "default_queue", "ack").wait(), home.drain(), flush=True)
    home.put("held")
    pair.execute_on(1).lease("leases", "default_queue", None).wait()
    time.sleep(4)  # longer than the renewal interval of leases
    print("held", home.qsize(), flush=True)
    start = time.monotonic()
    lease = home.get(lease=True, timeout=25)
    print("back", lease.value, lease.redelivered, time.monotonic() - start < 16, flush=True)
    lease.ack()
    os._exit(4)  # a node is gone
"""


def driver(tmp_path, body):
    script = tmp_path / "driver.py"
    script.write_text(body)
    return [sys.executable, str(script)]


def address(head):
    return f"{head.address}:{RAY_PORT}"


def test_a_job_waits_for_its_nodes_and_uses_both(tmp_path):
    with connected("first", "second") as (first, second):
        first.start_ray()
        with first.driver(tmp_path, JOB) as running:
            read_until(running, f"1 of 2 nodes are connected ({first.address})", 60)
            second.start_ray(first)
            log = read_until(running, "held", 200)
            second.kill()
            more, _ = running.communicate(timeout=60)
            log += more
    assert running.returncode == 4, log
    assert "2 of 2 nodes are connected" in log, log
    assert f"order ['{first.address}', '{second.address}']" in log, log
    assert "where [('first', '0'), ('second', '1')]" in log, log
    assert "channel False True" in log, log
    assert "channel True True" in log, log
    assert "channel False exchange [True, True]" in log, log
    assert "channel True exchange [True, True]" in log, log
    shared, remote = "SharedQueues", "RemoteQueues"
    # All keys are on the first node, or each key on the node of the worker that put there.
    assert f"ways [('shm', ['{shared}', '{shared}']), ('lane', ['{remote}', '{remote}'])]" in log, (
        log
    )
    assert f"['{shared}', '{remote}']), " in log, log
    assert f"['{remote}', '{shared}'])]" in log, log
    # A key stays on its node when the host that records the node dies.
    ways = [line.partition(" ")[2] for line in log.splitlines() if line.startswith("ways ")]
    assert f"still {ways[1]}" in log, log
    # Leases: given back to the end, delivered again, and held until the node's death.
    assert "leases [0] 2" in log, log
    assert "leases [0] ['a']" in log, log
    assert "held 0" in log, log
    assert "back held True True" in log, log


def test_nodes_that_never_come_end_the_wait_at_its_deadline(tmp_path):
    body = """
import sys
from shoal import Cluster
from shoal.errors import ShoalTimeoutError
try:
    Cluster(num_nodes=3)
except ShoalTimeoutError as error:
    print("timeout:", error)
"""
    with connected("only") as (only,):
        only.start_ray()
        log = only.run(driver(tmp_path, body), 90, RAY_ADDRESS=address(only), SHOAL_TIMEOUT="4")
    expected = f"timeout: 1 of 3 nodes connected within 4 s ({only.address}); check `ray start"
    assert expected in log, log


def test_node_ranks_that_are_set_decide_the_order(tmp_path):
    body = """
from shoal import Cluster
with Cluster(num_nodes=2) as cluster:
    print("order", [cluster.get_node_ip(rank) for rank in range(2)])
"""
    with connected("first", "second") as (first, second):
        first.start_ray(SHOAL_NODE_RANK="1")
        second.start_ray(first, RLINF_NODE_RANK="0")
        log = first.run(driver(tmp_path, body), 120, RAY_ADDRESS=address(first))
    assert f"order ['{second.address}', '{first.address}']" in log, log


def test_a_ray_that_has_died_or_is_stopped_is_an_error_in_time(tmp_path):
    body = """
import os, signal, time
from shoal import Cluster
from shoal.errors import ClusterError
def gcs():
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with open(f"/proc/{pid}/cmdline") as file:
            if "gcs_server" in file.read().partition(chr(0))[0]:
                return int(pid)
def start():
    begun = time.monotonic()
    try:
        Cluster(num_nodes=1, timeout=40)
    except ClusterError as error:
        print("error after", int(time.monotonic() - begun), error)
os.kill(gcs(), signal.SIGSTOP)
start()
os.kill(gcs(), signal.SIGKILL)
start()
os.environ["RAY_ADDRESS"] = "local"
with Cluster(num_nodes=1):
    print("started", flush=True)
"""
    with connected("only") as (only,):
        only.start_ray()
        log = only.run(driver(tmp_path, body), 200)
    stopped, dead = (line for line in log.splitlines() if line.startswith("error after"))
    for line in (stopped, dead):
        assert int(line.split()[2]) < 40
        assert (
            f"no Ray answers at {only.address}:6379, which the file that `ray start` left" in line
        )
    assert "does not answer" in stopped
    assert "connection refused" in dead
    assert "\nstarted\n" in log
