"""`shoal status` and `shoal doctor` for a job on two machines, all of whose processes are stopped."""

import json
import re
import sys
import zipfile

import pytest

from support.machines import connected, read_until
from support.processes import until

pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(300)]

JOB = """
import time
from shoal import Channel, Cluster, NodePlacementStrategy, Worker

class Pair(Worker):
    def work(self):
        if self._rank == 0:
            self.recv("pair", 1, timeout=1000)
        time.sleep(1000)

with Cluster(num_nodes=2) as cluster:
    channel = Channel.create("there", node_rank=1)
    pair = Pair.create_group().launch(cluster, NodePlacementStrategy([0, 1]), "pair", wait=True)
    calls = pair.work()
    print("both work", flush=True)
    calls.wait()
"""
ALL = {"driver", "NodeManager", "pair:0", "pair:1", "there:0"}
SHOAL = [sys.executable, "-m", "shoal"]


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    with connected("first", "second") as (first, second):
        first.start_ray()
        second.start_ray(first)
        with first.driver(tmp_path_factory.mktemp("job"), JOB) as driver:
            read_until(driver, "both work", 120)
            yield first, second


def processes(machine, *options):
    """The processes that `shoal status` shows on a machine, by address, and what it cannot see."""
    (job,) = json.loads(machine.run([*SHOAL, "status", "--json", *options]))
    return {found["address"]: found for found in job["processes"]}, job["unseen"]


def stop_processes(machine, rank):
    own, unseen = processes(machine, "--local")
    assert unseen == ["the other nodes were not asked"]
    assert {found["node_rank"] for found in own.values()} <= {rank, -1}
    machine.run(["kill", "-STOP", *(str(found["pid"]) for found in own.values())])


def doctor(machine, *options):
    """The exit code of `shoal doctor` on a machine, and what it prints."""
    told = machine.start([*SHOAL, "doctor", "--stacks", *options])
    text = told.communicate(timeout=200)[0]
    return told.returncode, text


def test_the_stacks_of_both_nodes_are_shown(machines, tmp_path):
    # Until the receiver waits for its message, which takes the start of an actor on each node.
    until(lambda: processes(machines[0], "--local")[0]["pair:0"]["activities"][0]["inside"], 100)
    sleeps = JOB[: JOB.index("time.sleep")].count("\n") + 1
    for machine in machines:
        path = tmp_path / f"{machine.address}.zip"
        _, text = doctor(machine, "--bundle", str(path), "--timeout", "100")
        frames = dict(re.findall(r"1 process: (pair:[01]), in `work`.*\n((?:    .*\n)+)", text))
        assert f"driver.py:{sleeps} work" in frames.get("pair:1", ""), text
        assert "not shown" not in text, text
        with zipfile.ZipFile(path) as bundle:
            stacks = {
                name.rpartition("/")[2].partition("-")[0]: bundle.read(name).decode()
                for name in bundle.namelist()
                if "/stacks/" in name
            }
        assert f"line {sleeps - 1} in work" in stacks["pair:0"], text
        assert f"line {sleeps} in work" in stacks["pair:1"], text


def test_both_nodes_are_shown_while_the_driver_and_all_workers_are_stopped(machines):
    first, second = machines
    stop_processes(first, 0)
    stop_processes(second, 1)
    for machine in machines:
        found, unseen = processes(machine, "--timeout", "100")
        assert unseen == []
        assert {name: found[name]["status"] for name in ALL} == dict.fromkeys(ALL, "stopped")
        assert [found[f"pair:{rank}"]["node_rank"] for rank in (0, 1)] == [0, 1]
        assert {one["node_rank"] for one in found.values()} == {0, 1}  # the channel's actor too
        (wait,) = found["pair:0"]["activities"][0]["inside"]
        assert (wait["operation"], wait["peers"]) == ("recv", ["pair:1"])
    table = first.run([*SHOAL, "status", "--timeout", "100"])
    assert f"Processes: {len(found)} on 2 nodes" in table
    code, text = doctor(first, "--timeout", "100")
    assert code == 1
    assert "waits for pair:1, which is stopped, in `work`" in text
    assert "pair:1 is stopped, so that it cannot write its stacks" in text


def test_a_node_that_is_frozen_and_then_dies_is_named(machines):
    first, second = machines
    second.run(["bash", "-c", "kill -STOP -1"])  # all processes of the machine
    found, unseen = processes(first, "--timeout", "5")
    assert unseen == ["node 1 (10.99.0.2) did not answer within 5 s"]
    assert {"driver", "pair:0"} <= found.keys()
    _, text = doctor(first, "--timeout", "5")
    assert text.endswith(
        "node 1 (10.99.0.2) did not answer within 5 s\n"
        "Run `shoal doctor --stacks` on the nodes that are not shown.\n"
    )
    second.kill()
    dead = ["Ray has declared node 1 (10.99.0.2) dead"]
    until(lambda: processes(first, "--timeout", "5")[1] == dead, 100)
