"""A worker's identity and placement: its variables, its attributes and its record."""

import os
import sys

import pytest

from shoal import Worker, WorkerAddress
from shoal.errors import NotLaunchedError
from shoal.manager import WorkerManager

pytestmark = pytest.mark.ray


class Place(Worker):
    def variables(self):
        return dict(os.environ)

    def attributes(self, *names):
        return {name: getattr(self, name) for name in names}

    def info(self):
        return self.worker_info

    def modules(self):
        return sorted(sys.modules)

    def current(self):
        return Worker.current_worker is self, os.getpid() == Worker.PID

    def name(self):
        return self.get_name(), self.get_parent_rank(), repr(self)


@pytest.fixture(scope="module")
def pair(cluster):
    from shoal import NodePlacementStrategy  # noqa: PLC0415  (for the fixture alone)

    group = Place.create_group().launch(cluster, NodePlacementStrategy([0, 0]), "place")
    yield group.ready()
    group.close()


def test_its_variables_reach_a_worker(pair, cluster):
    seen = pair.variables().wait()
    common = {
        "GROUP_NAME": "place",
        "MASTER_ADDR": cluster.get_node_ip(0),
        "WORLD_SIZE": "2",
        "CLUSTER_NAMESPACE": cluster.namespace,
        "CATCH_SYSTEM_FAILURE": "0",
        "ACCELERATOR_TYPE": "NO_ACCEL",
        "ISOLATE_ACCELERATOR": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    for rank, env in enumerate(seen):
        own = {"WORKER_NAME": f"place:{rank}", "RANK": str(rank), "NODE_LOCAL_RANK": str(rank)}
        expected = common | own
        assert {name: env.get(name) for name in expected} == expected
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"]
    assert 0 < int(seen[0]["MASTER_PORT"]) < 65536


def test_our_defaults_are_not_exported(pair):
    # These would hide variables that a node sets under the older names.
    (env,) = pair.execute_on(1).variables().wait()
    ours = {n for n in env if n.startswith(("SHOAL_", "RLINF_")) and "TEST" not in n}
    set_by_tests = {"SHOAL_PRELOAD_TORCH", "SHOAL_SHM_DIR"}
    assert ours <= {"SHOAL_BACKEND", "SHOAL_WORKER_PROCESS", *set_by_tests}


def test_the_attributes_that_existing_code_reads(pair):
    names = (
        "_rank", "_world_size", "_worker_name", "_group_name", "_cluster_node_rank",
        "_node_local_rank", "_node_local_world_size", "_local_accelerator_rank", "_local_rank",
        "_local_world_size", "_accelerator_type", "_local_hardware_ranks", "_node_group",
        "_isolate_gpu", "has_accelerator", "global_accelerator_ids", "torch_device_type",
        "_worker_address", "_timer_metrics",
    )  # fmt: skip
    for rank, values in enumerate(pair.attributes(*names).wait()):
        assert values == {
            "_rank": rank,
            "_world_size": 2,
            "_worker_name": f"place:{rank}",
            "_group_name": "place",
            "_cluster_node_rank": 0,
            "_node_local_rank": rank,
            "_node_local_world_size": 2,
            "_local_accelerator_rank": -1,
            "_local_rank": 0,
            "_local_world_size": 1,
            "_accelerator_type": "NO_ACCEL",
            "_local_hardware_ranks": [],
            "_node_group": "cluster",
            "_isolate_gpu": True,
            "has_accelerator": False,
            "global_accelerator_ids": [],
            "torch_device_type": None,
            "_worker_address": WorkerAddress("place", [rank]),
            "_timer_metrics": {},
        }
    assert pair.execute_on(1).name().wait() == [("place:1", 0, "place(rank=1)")]
    assert pair.current().wait() == [(True, True)] * 2


def test_workers_register(pair, cluster):
    infos = pair.info().wait()
    assert WorkerManager.get_proxy().get_group("place") == infos
    assert [i.address.get_name() for i in infos] == ["place:0", "place:1"]
    assert {i.node_ip for i in infos} == {cluster.master_addr}
    assert len({i.pid for i in infos}) == 2
    (env,) = pair.execute_on(1).variables().wait()
    assert env["MASTER_PORT"] == str(infos[0].node_port)


def test_a_worker_imports_only_what_its_class_needs(pair):
    for modules in pair.modules().wait():
        # (pydantic is loaded: Ray imports it for the first call that a worker makes.)
        assert not {"torch", "numpy", "rich", "typer"} & set(modules)


def test_a_bool_where_older_code_has_the_isolation(launch, cluster):
    from shoal import NodePlacementStrategy  # noqa: PLC0415  (as above)

    group = Place.create_group().launch(cluster, NodePlacementStrategy([0]), "older_bool", False)
    assert group.variables().wait()[0]["ISOLATE_ACCELERATOR"] == "0"
    group.close()


def test_variables_are_there_before_the_users_constructor(launch):
    class Early(Worker):
        def __init__(self):
            self.before = self._rank, self._worker_name, os.environ["RANK"], self._logger.name
            super().__init__()
            self.after = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]

        def both(self):
            return self.before, self.after

    (before, after), _ = launch(Early, ranks=2, name="early").both().wait()
    assert before == (0, "early:0", "0", "shoal.worker.early:0")
    assert all(after)


@pytest.mark.nightly
def test_torch_distributed_meets_by_the_variables(launch):
    class Torch(Worker):
        def total(self):
            import torch.distributed as dist
            from torch import tensor

            dist.init_process_group("gloo")
            value = tensor([self._rank + 1.0])
            dist.all_reduce(value)
            dist.destroy_process_group()
            return value.item()

    assert launch(Torch, ranks=2).total().wait(60) == [3.0, 3.0]


def test_variables_set_by_the_driver_after_ray_started_reach_workers(launch, monkeypatch):
    monkeypatch.setenv("SET_BY_THE_DRIVER", "late")
    monkeypatch.setenv("SHOAL_LOG_LEVEL", "ERROR")
    (env,) = launch(Place).variables().wait()
    assert (env["SET_BY_THE_DRIVER"], env["SHOAL_LOG_LEVEL"]) == ("late", "ERROR")


def test_a_worker_outside_launch_is_refused_with_the_way_to_do_it():
    with pytest.raises(NotLaunchedError, match=r"create_group\(\.\.\.\)\.launch.*parent_address"):
        Place()


def test_a_plain_process_becomes_a_worker_by_its_arguments(launch):
    class Child(Worker):
        def __init__(self, **kwargs):
            self._rank = -1
            super().__init__(**kwargs)

    class Parent(Worker):
        def child(self):
            made = Child(parent_address=self.worker_address, world_size=1, rank=0)
            return made.worker_address, made.worker_info.address, made._is_ray_actor

    (found,) = launch(Parent, name="parent").child().wait()
    address = WorkerAddress("parent", [0, 0])
    assert found == (address, address, False)
    assert WorkerManager.get_proxy().get_worker_info(address).rank == 0
