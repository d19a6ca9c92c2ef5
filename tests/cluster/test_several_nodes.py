"""A job on several machines, each with addresses, processes and shared memory of its own."""

import sys

import pytest

from machines import RAY_PORT, connected, read_until

pytestmark = [pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(300)]

JOB = """
import os, socket, sys
from shoal import Channel, Cluster, NodePlacementStrategy, Worker

class Pair(Worker):
    def where(self):
        return socket.gethostname(), os.environ["CLUSTER_NODE_RANK"]

    def swap(self, payload):
        other = 1 - self._rank
        sending = self.send((self._rank, payload), "pair", other, async_op=True)
        received = self.recv("pair", other)
        sending.wait()
        return received

    def put_all(self, name, count):
        channel = Channel.connect(name)
        for index in range(count):
            channel.put((self._rank, index), key=self._rank)

    def get_all(self, name, count):
        channel = Channel.connect(name)
        other = 1 - self._rank
        return [channel.get(key=other, timeout=60) for _ in range(count)]

with Cluster(num_nodes=2) as cluster:
    print("order", [cluster.get_node_ip(rank) for rank in range(2)], flush=True)
    pair = Pair.create_group().launch(
        cluster, NodePlacementStrategy([0, 1]), "pair", wait=True
    )
    print("where", pair.where().wait(), flush=True)
    print("swap", [(rank, len(got)) for rank, got in pair.swap(bytes(3_000_000)).wait()], flush=True)
    for distributed in (False, True):
        name = f"channel {distributed}"
        channel = Channel.create(name, distributed=distributed)
        pair.put_all(name, 20).wait()
        got = pair.get_all(name, 20).wait()
        print(name, got == [[(1, n) for n in range(20)], [(0, n) for n in range(20)]], flush=True)
sys.exit(4)
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
        running = first.start(
            driver(tmp_path, JOB), RAY_ADDRESS=address(first), PYTHONUNBUFFERED="1"
        )
        try:
            read_until(running, f"1 of 2 nodes are connected ({first.address})", 60)
            second.start_ray(first)
            log, _ = running.communicate(timeout=150)
        finally:
            running.kill()
    assert running.returncode == 4, log
    assert "2 of 2 nodes are connected" in log, log
    assert f"order ['{first.address}', '{second.address}']" in log, log
    assert "where [('first', '0'), ('second', '1')]" in log, log
    assert "swap [(1, 3000000), (0, 3000000)]" in log, log
    assert "channel False True" in log, log
    assert "channel True True" in log, log


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
