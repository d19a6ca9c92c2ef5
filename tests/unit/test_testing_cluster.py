"""`shoal.testing`: groups within one process behave like groups on Ray."""

import asyncio
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray

from shoal import (
    Channel,
    Cluster,
    ComponentPlacement,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Worker,
    WorkerGroupFuncResult,
    plan,
)
from shoal.context import current
from shoal.errors import (
    ChannelClosed,
    ClusterConfigError,
    ClusterError,
    LaunchError,
    NameTakenError,
    NotLaunchedError,
    PeerLostError,
    PlacementError,
    ShoalTimeoutError,
    ShoalValueError,
    WorkerGroupError,
)
from shoal.testing import local_cluster
from shoal.worker import WorkerGroup

THREE = NodePlacementStrategy([0] * 3)
TWO = NodePlacementStrategy([0] * 2)


class Forgetful(Worker):
    """Does not call the constructor of `Worker`."""

    def __init__(self):
        self.value = 7

    def early(self):
        return self._rank, self.value

    def send_early(self):
        self.send(1, "forgetful", 0)

    def misspelt(self):
        return self.valeu


class Counter(Worker):
    """Counts, and says what it sees of itself."""

    def __init__(self, start=0, fails_on=()):
        super().__init__()
        if self._rank in fails_on:
            raise KeyError(f"rank {self._rank}")
        self.value = start
        self.seen = []

    def add(self, number, by=1):
        self.value += number * by + self._rank
        return self.value

    def identity(self):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "NODE_RANK")
        return {
            "name": self.get_name(),
            "context": current().name,
            "rank": self._rank,
            "size": self._world_size,
            "variables": [os.environ[name] for name in names],
            "port": os.environ["MASTER_PORT"],
        }

    def devices(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES"), self.global_accelerator_ids

    def robot_ips(self):
        return [info.config.robot_ip for info in self.hardware_infos]

    def set_variable(self, value):
        os.environ["TEST_OF_A_RANK"] = f"{value}-{self._rank}"

    def variable(self):
        return os.environ.get("TEST_OF_A_RANK")

    def keep(self, item):
        self.seen.append(item)
        return item

    def kept(self):
        return self.seen

    def mark(self, item, seconds=0.0):
        time.sleep(seconds)
        self.seen.append(item)

    def fail(self, rank=None):
        if rank in (None, self._rank):
            raise ValueError(f"on {self._rank}")

    def lock(self):
        return threading.Lock()

    def ask(self, group, method):
        return WorkerGroup.from_group_name(Counter, group).call_ranks([0], method).wait()

    def size_of_cluster(self):
        return Cluster().num_nodes

    def timed(self):
        with self.worker_timer("work"):
            time.sleep(0.01)
        with self.worker_timer():
            pass

    def sleep(self, seconds):
        time.sleep(seconds)


class Asynchronous(Worker):
    def __init__(self):
        super().__init__()
        self._event = asyncio.Event()

    async def wait_for_event(self):
        await self._event.wait()
        return current().name

    async def set_event(self):
        self._event.set()

    def plain(self):
        return self._rank


@pytest.fixture
def counters(cluster):
    """A group of two ranks."""
    return Counter.create_group().launch(cluster, TWO, name="counters")


@pytest.fixture
def counter(cluster):
    """A group of one rank."""
    return Counter.create_group().launch(cluster, name="counters")


def test_an_attribute_missing_without_the_base_constructor_names_it():
    with local_cluster() as cluster:
        group = Forgetful.create_group().launch(cluster, TWO, "forgetful")
        assert group.early().wait() == [(0, 7), (1, 7)]
        text = r"Forgetful has no '_collective' yet: .* Call super\(\)\.__init__\(\) first in"
        with pytest.raises(AttributeError, match=text):
            group.execute_on(0).send_early().wait()
        with pytest.raises(AttributeError, match="'Forgetful' object has no attribute 'valeu'"):
            group.execute_on(0).misspelt().wait()


def test_the_import_loads_neither_ray_nor_pytest(run_python):
    program = "import sys, shoal.testing; print([n for n in ('ray', 'pytest') if n in sys.modules])"
    assert run_python("-c", program) == "[]\n"


def test_ray_is_never_started(cluster):
    Counter.create_group().launch(cluster, wait=True)
    assert not ray.is_initialized()


def test_a_call_returns_the_values_in_rank_order(cluster):
    group = Counter.create_group(10).launch(cluster, THREE, name="counters")
    assert group.add(1).wait() == [11, 12, 13]
    assert group.add(1, by=2).wait() == [13, 15, 17]
    result = group.execute_on(2, 0).add(0)
    assert isinstance(result, WorkerGroupFuncResult)
    assert result.wait() == [19, 13]
    assert repr(group) == "<WorkerGroup counters of Counter, 3 ranks>"


def test_each_rank_sees_itself(counters):
    found = counters.identity().wait()
    assert [one["name"] for one in found] == ["counters:0", "counters:1"]
    assert [one["context"] for one in found] == ["counters:0", "counters:1"]
    assert [one["variables"] for one in found] == [
        [str(rank), "2", "0", "127.0.0.1", "0"] for rank in range(2)
    ]
    assert len({one["port"] for one in found}) == 1
    assert current().name == "driver"


def test_each_rank_has_its_own_variables(cluster, monkeypatch):
    monkeypatch.setenv("TEST_OF_A_RANK", "before")
    with_older = Counter.create_group().launch(cluster, TWO, name="older")
    assert with_older.variable().wait() == [None, None]  # set after the cluster began
    with_older.set_variable("x").wait()
    assert with_older.variable().wait() == ["x-0", "x-1"]
    assert os.environ["TEST_OF_A_RANK"] == "before"


def test_calls_of_a_rank_run_in_their_order(counter):
    calls = [counter.mark(number, 0.01 if number == 0 else 0.0) for number in range(5)]
    for call in calls:
        call.wait()
    assert counter.kept().wait() == [[0, 1, 2, 3, 4]]


def test_arguments_and_results_are_copied(counters):
    item = {"numbers": [1]}
    returned = counters.keep(item).wait()
    item["numbers"].append(2)
    returned[0]["numbers"].append(3)
    assert counters.kept().wait() == [[{"numbers": [1]}], [{"numbers": [1]}]]


def test_objects_that_cannot_be_pickled_are_an_error_in_both_directions(cluster):
    with pytest.raises(LaunchError, match="Counter or an argument of its constructor cannot be"):
        Counter.create_group(threading.Lock()).launch(cluster)
    group = Counter.create_group().launch(cluster)
    refused = r"the arguments \(lock\) of worker_group_Counter\.keep cannot be sent: cannot pickle"
    with pytest.raises(ShoalValueError, match=refused):
        group.keep(threading.Lock())
    refused = r"what Counter\.lock returned \(lock\) cannot be sent: cannot pickle"
    with pytest.raises(ShoalValueError, match=refused) as caught:
        group.lock().wait()
    assert "what it returned cannot be pickled" in caught.value.__notes__[0]


def test_an_error_of_one_rank_names_it(cluster):
    group = Counter.create_group().launch(cluster, THREE, name="counters")
    text = "failed on 1 of 3 ranks .* first on rank 1"
    with pytest.raises(WorkerGroupError, match=text) as caught:
        group.fail(1).wait()
    assert caught.value.ranks == (1,)
    (error,) = caught.value.exceptions
    assert isinstance(error, ValueError)
    assert "raised on rank 1 (counters:1)" in error.__notes__[0]
    assert error.__notes__[0].count("File ") == 1  # the traceback begins in the user's code
    with pytest.raises(ValueError, match="on 2"):
        group.execute_on(2).fail().wait()


def test_the_failure_of_a_constructor_is_that_of_every_call(cluster):
    group = Counter.create_group(fails_on=[1]).launch(cluster, TWO)
    text = (
        "^constructing .*_Counter failed on 1 of 2 ranks after .* first on rank 1: KeyError: 'ran"
    )
    with pytest.raises(WorkerGroupError, match=text):
        group.ready()
    with pytest.raises(WorkerGroupError, match=r"^\w+\.kept: constructing \w+ failed on 1 of"):
        group.kept().wait()
    with pytest.raises(KeyError, match="rank 1"):
        group.execute_on(1).kept().wait()
    assert group.execute_on(0).kept().wait() == [[]]


def test_a_wait_ends_at_its_deadline(counter):
    call = counter.sleep(0.5)
    with pytest.raises(ShoalTimeoutError, match=r"counters\.sleep: no answer from counters rank 0"):
        call.wait(timeout=0.1)
    assert not call.done()
    assert call.wait() == [None]
    assert call.done()


def test_coroutine_methods_run_side_by_side_and_are_awaited_in_an_event_loop(cluster):
    group = Asynchronous.create_group().launch(cluster, TWO, name="async")

    async def run():
        waiting = asyncio.ensure_future(group.wait_for_event().async_wait())
        with pytest.raises(ShoalTimeoutError, match="no answer from async ranks 0, 1"):
            await group.wait_for_event().async_wait(timeout=0.05)
        assert await group.plain() == [0, 1]
        await group.set_event()
        return await waiting

    assert asyncio.run(run()) == ["async:0", "async:1"]


def test_a_worker_with_several_threads_runs_calls_side_by_side(cluster):
    class Gate(Worker):
        def __init__(self):
            super().__init__()
            self._gate = threading.Event()

        def enter(self):
            return self._gate.wait(30)

        def open(self):
            self._gate.set()

    group = Gate.create_group().launch(cluster, max_concurrency=2)
    entered = group.enter()
    group.open().wait()
    assert entered.wait() == [True]


def test_durations_are_those_of_the_timers(counters):
    times, per_rank = counters.timed().consume_durations("min", return_per_rank=True)
    assert set(times) == {"work", "timed"}
    assert 0.01 <= times["work"] == min(timers["work"] for timers in per_rank)
    assert counters.kept().consume_durations() == {}
    assert counters.sleep(0.01).consume_duration() >= 0.01  # the call, if no timer has its name
    counters.timed().consume_duration()
    assert [[*timers] for timers in counters.pop_execution_times().wait()] == [["work"]] * 2
    with pytest.raises(ShoalValueError, match="reduction_type='longest'"):
        counters.timed().consume_duration("longest")


def test_without_isolation_the_local_rank_is_the_accelerator(cluster):
    def local_ranks(cluster, strategy):
        group = Counter.create_group().launch(cluster, strategy, isolate_gpu=False)
        found = [one["variables"][2] for one in group.identity().wait()]
        group.close()
        return found

    assert local_ranks(cluster, TWO) == ["-1", "-1"]
    cluster.shutdown()
    with local_cluster(accelerators=2) as with_devices:
        assert local_ranks(with_devices, PackedPlacementStrategy(0, 1)) == ["0", "0"]


def test_a_worker_finds_another_group_and_the_cluster(cluster):
    Counter.create_group(5).launch(cluster, name="one")
    other = Counter.create_group().launch(cluster, name="two")
    assert other.ask("one", "kept").wait() == [[[]]]
    assert other.size_of_cluster().wait() == [1]
    assert Cluster() is cluster
    with pytest.raises(ShoalValueError, match="no group 'three'"):
        WorkerGroup.from_group_name(Counter, "three")


def test_a_name_is_free_after_close(cluster):
    group = Counter.create_group(1).launch(cluster, name="counters")
    with pytest.raises(NameTakenError, match="counters:0"):
        Counter.create_group().launch(cluster, name="counters")
    group.close()
    with pytest.raises(LaunchError, match="is not launched, or is closed"):
        group.kept()
    assert Counter.create_group(2).launch(cluster, name="counters").add(0).wait() == [2]


def test_a_call_of_a_closed_group_ends(counter):
    running, queued = counter.sleep(0.3), counter.add(1)
    counter.close(timeout=0)
    for call in (running, queued):
        with pytest.raises(PeerLostError, match="counters:0 died before counters"):
            call.wait()


def test_a_reference_arrives_as_its_value(cluster):
    group = Counter.create_group(7).launch(cluster)
    (first,) = group.worker_info_list
    assert group.keep(first.worker.add.remote(1)).wait() == [8]


def test_a_direct_call_on_the_handle_raises(counter):
    reference = counter.worker_info_list[0].worker.fail.remote()
    with pytest.raises(Exception, match="on 0"):
        reference.future().result()


# Placement.


def test_placement_is_the_real_one():
    with local_cluster(num_nodes=2, accelerators=4) as cluster:
        strategy = PackedPlacementStrategy(0, 7, num_hardware_per_process=2)
        group = Counter.create_group().launch(cluster, strategy, name="packed")
        visible, ids = zip(*group.devices().wait(), strict=True)
        assert visible == ("0,1", "2,3", "0,1", "2,3")
        assert ids == ([0, 1], [2, 3], [4, 5], [6, 7])
        with pytest.raises(PlacementError):
            Counter.create_group().launch(cluster, PackedPlacementStrategy(0, 8), name="more")


def test_the_default_is_one_rank_for_each_accelerator():
    with local_cluster(accelerators=[1, 2]) as cluster:
        assert cluster.accelerator_ranks == [[0], [1, 2]]
        assert len(Counter.create_group().launch(cluster).kept().wait()) == 3


def test_nodes_are_described_by_an_inventory():
    with local_cluster(inventory="2x8:H100/64cpu") as cluster:
        assert cluster.num_accelerators == 16
        assert cluster.get_node_info(1).num_cpus == 64


TWO_NODES = {"cluster": {"num_nodes": 2, "component_placement": {"sim": "0-15"}}}


def test_a_configuration_uses_the_nodes_of_an_inventory():
    with local_cluster(cluster_cfg=TWO_NODES, inventory="3x8") as cluster:
        assert (cluster.num_nodes, cluster.num_accelerators) == (2, 16)


def test_a_node_has_the_robots_that_a_configuration_lists():
    robot = {"type": "Franka", "configs": [{"node_rank": 1, "robot_ip": "10.0.0.1"}]}
    arms = {"label": "arms", "node_ranks": 1, "hardware": robot}
    placement = {"env": {"node_group": "arms", "placement": "0"}}
    document = {"num_nodes": 2, "node_groups": [arms], "component_placement": placement}
    with local_cluster(cluster_cfg=document) as cluster:
        strategy = ComponentPlacement(document, cluster).get_strategy("env")
        group = Counter.create_group().launch(cluster, strategy, name="env")
        assert group.robot_ips().wait() == [["10.0.0.1"]]
    inventory = [{"count": 2, "hardware": {"Franka": 2}}]
    text = "node 1: the configuration lists 1 Franka, and the inventory .* has 2"
    with pytest.raises(ClusterConfigError, match=text):
        plan(document, inventory)
    with (
        pytest.raises(ClusterConfigError, match=text),
        local_cluster(cluster_cfg=document, inventory=inventory),
    ):
        pytest.fail("the cluster has another number of robots than its inventory")


def test_a_configuration_places_components():
    placement = {"sim": {"node_group": "node", "placement": "0-1"}}
    document = {"cluster": {"num_nodes": 2, "component_placement": placement}}
    with local_cluster(cluster_cfg=document) as cluster:
        placement = ComponentPlacement(document, cluster)
        group = Counter.create_group().launch(cluster, placement.get_strategy("sim"), name="sim")
        assert [one["variables"][-1] for one in group.identity().wait()] == ["0", "1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"num_nodes": 2, "accelerators": [1]}, "has 1 numbers for 2 nodes"),
        ({"num_nodes": 0}, "at least one node"),
        ({"num_nodes": "2"}, "num_nodes='2': expected a whole number"),
        ({"accelerators": 1.5}, "accelerators=1.5: expected a number"),
        ({"accelerators": [8, "8"]}, "accelerators=.* a list with one for each node"),
        ({"cluster_cfg": TWO_NODES, "inventory": "1x8"}, "has num_nodes: 2, and the inventory 1x8"),
        ({"num_nodes": 1, "inventory": "1x8"}, "either an inventory"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, says):
    with pytest.raises(ShoalValueError, match=says), local_cluster(**arguments):
        pass


# The end.


def test_a_closed_cluster_leaves_nothing_behind():
    environ, handler, descriptors = os.environ, Worker.logger, []
    before = {thread.ident for thread in threading.enumerate() if "shoal" not in thread.name}
    for _ in range(2):
        with local_cluster() as cluster:
            group = Counter.create_group().launch(cluster, THREE, name="counters")
            assert group.add(np.int64(1)).wait() == [1, 2, 3]
            assert os.environ is not environ
        assert os.environ is environ
        assert not Cluster.has_initialized()
        assert current().namespace == ""
        assert Worker.logger is handler
        assert Worker.current_worker is None
        left = [t for t in threading.enumerate() if "shoal" not in t.name and t.ident not in before]
        assert left == []
        descriptors.append(len(list(Path("/proc/self/fd").iterdir())))
    assert descriptors[1] <= descriptors[0]  # among them those of ports


def test_a_call_after_the_end_is_refused():
    with local_cluster() as cluster:
        group = Counter.create_group().launch(cluster, name="counters")
        call = group.sleep(0.2)
    with pytest.raises(ClusterError, match=r"counters\.sleep: the cluster was shut down"):
        call.wait()
    with pytest.raises(NotLaunchedError):
        Counter()


def test_a_channel_says_after_the_end_that_its_job_has_ended():
    with local_cluster():
        channel = Channel.create("items")
        waiting = channel.get(key="none", async_op=True)
        channel.put(1)
    uses = [channel.get, channel.qsize, lambda: channel.put(1), waiting.wait]
    for use in uses:
        with pytest.raises(ChannelClosed, match="'items' is gone: its job has ended"):
            use()


def test_two_clusters_at_once_are_refused(cluster):
    with pytest.raises(ClusterError, match="has a cluster already"), local_cluster():
        pass


def test_another_number_of_nodes_in_a_running_job_is_warned_of(cluster, caplog):
    assert Cluster(num_nodes=1) is Cluster(num_nodes=0) is Cluster() is cluster
    assert caplog.messages == []
    assert Cluster(num_nodes=4) is cluster
    (warning,) = caplog.messages
    assert warning.startswith("Cluster(num_nodes=4) has no effect: this process has a cluster of 1")
