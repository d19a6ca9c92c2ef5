"""Locks of workers on Ray: deaths of holders and waiting workers, their ports and liveness.

`tests/unit/test_locks.py` and `tests/unit/test_testing_locks.py` show the order, the counting, the
deadlines and the cancellation.

The workers need accelerators, which a module registers before Ray starts. So a separate driver
program runs every step and prints its observations.
"""

import json
import os

import pytest

from support.fake_accelerators import add_acme_devices
from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(200)]

DRIVER = """
import json, os, signal, sys, time
from shoal import Cluster, FlexiblePlacementStrategy, Worker, WorkerAddress
from shoal.errors import ShoalError, ShoalTimeoutError
from shoal.manager import Caller, DeviceLockManager, WorkerManager
from shoal.worker import PortLock

SEEN = {}

class Locks(Worker):
    def take(self, timeout=None):
        self.device_lock.acquire(timeout=timeout)

    def give(self):
        self.device_lock.release()

    def try_to_take(self, timeout):
        try:
            self.device_lock.acquire(timeout=timeout)
        except ShoalError as error:
            return type(error).__name__, str(error)

    def pid(self):
        return os.getpid()

    def reserve(self, port):
        return PortLock(self).acquire(port)

    def is_alive(self, name):
        return self.check_worker_alive(name)

class AsyncLocks(Worker):
    async def take(self, timeout=None):
        await self.device_lock.async_acquire(timeout=timeout)

    async def give(self):
        await self.device_lock.async_release()

def on(group, rank):
    return group.execute_on(rank)

def await_request(name):
    # Wait until a worker's request for its devices waits at the manager.
    address, manager = WorkerAddress.from_name(name), DeviceLockManager.get_proxy()
    info = WorkerManager.get_proxy().get_worker_info(address)
    caller, end = Caller(info.process, info.cluster_node_rank), time.monotonic() + 60
    # The number of its take is one of the first.
    while not any(manager.explain_wait(address, n, caller=caller)[0] for n in range(20)):
        assert time.monotonic() < end, f"{name} does not wait for its devices"
        time.sleep(0.02)

def launch(cls, name, ranks=1):
    placement = FlexiblePlacementStrategy([[0]] * ranks)
    return cls.create_group().launch(cluster, placement, name, wait=True)

cluster = Cluster(num_nodes=1)
SEEN["accelerators"] = cluster.num_accelerators
group, other = launch(Locks, "locks", 3), launch(AsyncLocks, "other")
SEEN["pids"] = group.pid().wait(60)

# Ports and liveness.
SEEN["reserved"] = [on(group, rank).reserve(5000).wait(60)[0] for rank in (0, 1)]
SEEN["alive"] = [on(group, 0).is_alive(n).wait(60)[0] for n in ("other:0", "other:1", "nobody:0")]

# The holder is killed: the one that waits gets the devices.
on(group, 0).take().wait(60)
waiting = other.take()
await_request("other:0")
os.kill(SEEN["pids"][0], signal.SIGKILL)
waiting.wait(60)
SEEN["killed holder"] = "taken"
SEEN["alive"].append(Worker.check_worker_alive("locks:0"))
SEEN["port of the dead"] = on(group, 1).reserve(5000).wait(60)[0]

# A waiting worker is killed: the one behind it gets the devices. The group is started again.
on(group, 1).take()
await_request("locks:1")
behind = on(group, 2).take()
await_request("locks:2")
os.kill(SEEN["pids"][1], signal.SIGKILL)
other.give().wait(60)
behind.wait(60)
group.close()
again = launch(Locks, "locks", 2)
on(again, 0).take(timeout=60).wait(60)
SEEN["again"] = on(again, 1).try_to_take(0).wait(60)[0]
cluster.shutdown()
with open(sys.argv[1], "w") as file:
    json.dump(SEEN, file)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory, ray_tmpdir):
    folder = tmp_path_factory.mktemp("locks")
    (folder / "driver.py").write_text(DRIVER)
    env = os.environ | add_acme_devices(folder, 2)
    done = run_program(folder / "driver.py", folder / "seen.json", seconds=180, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "seen.json").read_text()) | {"output": done.stdout + done.stderr}


def test_the_death_of_the_holder_releases_the_devices(seen):
    assert seen["killed holder"] == "taken"
    killed = f"locks:0 (process {seen['pids'][0]} on node 0) ended while it held device 0"
    assert killed in seen["output"]


def test_a_group_that_is_started_again_gets_the_devices(seen):
    name, text = seen["again"]
    assert name == "ShoalTimeoutError"
    assert "device 0 is held by locks:0 (process " in text
    assert f"process {seen['pids'][0]} " not in text


def test_ports_end_with_their_process(seen):
    assert seen["reserved"] == [True, False]
    assert seen["port of the dead"] is True


def test_workers_are_alive_until_they_are_killed(seen):
    assert seen["alive"] == [True, False, False, False]
