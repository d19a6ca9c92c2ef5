"""The managers without Ray: registration, waiting by one pending call, groups, nodes."""

import asyncio
from dataclasses import replace

import pytest

from shoal import NodeInfo, WorkerAddress
from shoal.errors import ClusterError, ShoalValueError
from shoal.hardware import ACCELERATOR_HW_TYPE, HardwareInfo, HardwareResource
from shoal.manager import (
    CollectiveGroupInfo,
    CollectiveManager,
    NodeManager,
    WorkerInfo,
    WorkerManager,
    too_high,
    unknown_group,
)


def info(name, **kwargs):
    address = WorkerAddress.from_name(name)
    return WorkerInfo(address, address.rank, 2, 0, **kwargs)


def register(manager, *names, **kwargs):
    for name in names:
        manager.register_worker(WorkerAddress.from_name(name), info(name, **kwargs))


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


# --- workers ---


def test_a_worker_that_registers_again_replaces_its_record():
    manager = WorkerManager()
    register(manager, "g:0", pid=1)
    register(manager, "g:0", pid=2)
    assert manager.get_worker_info(WorkerAddress.from_name("g:0")).pid == 2
    assert len(manager.get_group("g")) == 1


def test_the_order_of_registration_does_not_matter():
    # A root, a child without its parent, then the parent.
    manager = WorkerManager()
    register(manager, "root", "g:0:1", "g:1", "g:0")
    for name in ("root", "g:0:1", "g:0"):
        assert manager.get_worker_info(WorkerAddress.from_name(name)) == info(name)
    assert manager.get_worker_info(WorkerAddress.from_name("g:7")) is None
    assert [i.rank for i in manager.get_group("g")] == [0, 1]


def test_waiting_for_a_worker_ends_when_it_registers():
    async def scenario():
        manager = WorkerManager()
        address = WorkerAddress.from_name("g:0")
        waiting = [asyncio.ensure_future(manager.wait_worker_info(address)) for _ in range(3)]
        await asyncio.sleep(0)
        register(manager, "g:1")
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        register(manager, "g:0", pid=7)
        return await asyncio.gather(*waiting)

    assert [found.pid for found in run(scenario())] == [7, 7, 7]


def test_a_wait_sleeps_until_it_is_woken():
    # A polling loop would run many steps while nothing happens.
    steps = 0

    async def scenario():
        nonlocal steps
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(
            WorkerManager().wait_worker_info(WorkerAddress.from_name("g:0"), timeout=0.3)
        )
        once = loop._run_once

        def counted():
            nonlocal steps
            steps += 1
            once()

        loop._run_once = counted
        return await task

    assert run(scenario()) is None
    assert steps < 20


def test_a_wait_returns_none_at_its_timeout():
    async def scenario():
        manager = WorkerManager()
        address = WorkerAddress.from_name("g:0")
        assert await manager.wait_worker_info(address, timeout=0.01) is None
        register(manager, "g:0")
        return await manager.wait_worker_info(address, timeout=0)

    assert run(scenario()) == info("g:0")


def test_a_wait_for_a_rank_that_the_group_does_not_have_ends_when_the_group_is_known():
    async def scenario():
        manager = WorkerManager()
        names = ("g:1", "g:2", "g:2:0", "h:2")
        waiting = [
            asyncio.ensure_future(manager.wait_worker_info(WorkerAddress.from_name(name)))
            for name in names
        ]
        await asyncio.sleep(0)
        manager.announce_group("g", 2, "driver")
        assert await waiting[1] is None
        assert await manager.wait_worker_info(WorkerAddress.from_name("g:3")) is None
        assert [task.done() for task in waiting] == [False, True, False, False]
        # Closed, and launched again with more ranks.
        manager.unregister_group("g")
        waiting[1] = asyncio.ensure_future(
            manager.wait_worker_info(WorkerAddress.from_name("g:2"), timeout=9)
        )
        await asyncio.sleep(0)
        manager.announce_group("g", 3, "driver")
        register(manager, *names)
        return await asyncio.gather(*waiting)

    assert [found.address.get_name() for found in run(scenario())] == ["g:1", "g:2", "g:2:0", "h:2"]


def test_groups_have_sizes_if_they_were_launched():
    manager = WorkerManager()
    register(manager, "g:0", "own:0", "own:0:1")
    manager.announce_group("g", 2, "driver")
    sizes = manager.get_group_sizes()
    assert sizes == {"g": 2, "own": None}
    found = [too_high(WorkerAddress.from_name(n), sizes) for n in ("g:1", "g:2:0", "own:9", "x:9")]
    assert found == [""] * 4
    assert too_high(WorkerAddress.from_name("g:2"), sizes) == "the group g has ranks 0-1"
    assert too_high(WorkerAddress.from_name("g:1"), {"g": 1}) == "the group g has rank 0 only"


def test_an_unknown_group_is_an_error_with_those_there_are():
    assert unknown_group("players", {}) == unknown_group("w", {"w": None}) == ""
    says = "no group plaeyrs was launched; there are players, w; did you mean 'players'?"
    assert unknown_group("plaeyrs", {"w": None, "players": 2}) == says
    assert unknown_group("x", {"actor": 1}) == "no group x was launched; there is actor"
    many = unknown_group("x", {f"actor{number:02}": 1 for number in range(20)})
    assert many.endswith("actor06, actor07 and 12 more")


def test_a_record_accepts_its_older_names():
    record = info("g:0", accelerator_rank=2, available_accelerators=[2, 3])
    assert (record.node_id, record.gpu_id, record.available_gpus) == (0, 2, [2, 3])
    assert hash(record) == hash(record.address)


# --- collective groups ---


def group(name="c", members=("g:0", "g:1")):
    return CollectiveGroupInfo(name, [info(m) for m in members], "10.0.0.1")


def test_a_collective_group_is_registered_once_and_found():
    manager = CollectiveManager()
    assert manager.get_collective_group("c") is None
    manager.register_collective_group(group())
    manager.register_collective_group(group())
    assert manager.get_collective_group("c").world_size == 2
    manager.remove_collective_group("c")
    manager.remove_collective_group("c")
    assert manager.get_collective_group("c") is None


@pytest.mark.parametrize(
    "other",
    [
        group(members=("g:0", "h:0")),
        group(members=("g:1", "g:0")),
        group(members=("g:0", "g:1", "g:2")),
        CollectiveGroupInfo("c", [info("g:0"), info("g:1")], "10.0.0.2"),
        CollectiveGroupInfo("c", [info("g:0"), replace(info("g:1"), node_port=7)], "10.0.0.1"),
    ],
    ids=["members", "order", "size", "address", "port of a member"],
)
def test_another_group_of_a_name_is_refused(other):
    manager = CollectiveManager()
    manager.register_collective_group(group())
    text = (
        "Collective group c already exists but tried to register a different group: known is of g"
    )
    with pytest.raises(ShoalValueError, match=text):
        manager.register_collective_group(other)
    assert manager.get_collective_group("c") == group()


def test_a_former_group_is_replaced_by_a_group_that_names_it():
    manager, other = CollectiveManager(), group(members=("g:0", "h:0"))
    manager.register_collective_group(group())
    with pytest.raises(ShoalValueError):
        manager.register_collective_group(other, instead_of=group(members=("x:0", "x:1")))
    manager.register_collective_group(other, instead_of=group())
    assert manager.get_collective_group("c") == other
    # A late request from the closing members of the former group does not affect this one.
    manager.remove_collective_group("c", group())
    assert manager.get_collective_group("c") == other
    manager.remove_collective_group("c", other)
    assert manager.get_collective_group("c") is None


def test_the_groups_of_a_closed_worker_group_are_forgotten():
    manager = CollectiveManager()
    manager.register_collective_group(group("one"))
    manager.register_collective_group(group("two", members=("h:0", "g:1")))
    manager.register_collective_group(group("three", members=("h:0", "h:1")))
    manager.unregister_group("g")
    known = [manager.get_collective_group(name) for name in ("one", "two", "three")]
    assert known == [None, None, group("three", members=("h:0", "h:1"))]


def test_ports_of_collective_groups():
    manager = CollectiveManager()
    assert manager.get_master_port_info("c") is None
    unknown = "^Collective group c does not exist\\. Known groups: none$"
    with pytest.raises(ShoalValueError, match=unknown):
        manager.set_master_port_info("c", 1)
    with pytest.raises(ShoalValueError, match=unknown):
        manager.reset_master_port_info("c")
    manager.register_collective_group(group())
    assert manager.get_master_port_info("c") is None
    manager.set_master_port_info("c", 5000)
    assert manager.get_master_port_info("c") == 5000
    assert manager.get_collective_group("c") == group()
    manager.reset_master_port_info("c")
    assert manager.get_master_port_info("c") is None
    manager.set_master_port_info("c", 5000)
    manager.register_collective_group(group())
    assert manager.get_master_port_info("c") is None
    with pytest.raises(ShoalValueError, match="Known groups: c"):
        manager.reset_master_port_info("d")


def test_a_group_has_no_member_twice_and_no_hash():
    with pytest.raises(AssertionError, match=r"must be unique.*g:0 is a member twice"):
        group(members=("g:0", "g:1", "g:0"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(group())


# --- nodes ---


def node(rank, accelerators):
    infos = [HardwareInfo(ACCELERATOR_HW_TYPE, "NV_GPU:X")] * accelerators
    hardware = [HardwareResource(ACCELERATOR_HW_TYPE, infos)]
    return NodeInfo([], rank, f"id{rank}", f"10.0.0.{rank}", 8, hardware_resources=hardware)


def test_the_node_manager_returns_its_nodes_and_settings():
    nodes = [node(0, 2), node(1, 2)]
    manager = NodeManager(nodes, {"cluster": "group"}, "config")
    assert manager.get_nodes() == nodes
    assert manager.num_nodes() == 2
    assert manager.get_node_groups() == {"cluster": "group"}
    assert manager.get_cluster_cfg() == "config"
    assert manager.get_master_ip() == "10.0.0.0"
    assert manager.get_master_port() == manager.get_master_port() > 0
    assert manager.get_num_gpus_per_node() == 2


def test_mixed_nodes_have_no_count_per_node():
    manager = NodeManager([node(0, 2), node(1, 1)], {})
    with pytest.raises(ClusterError, match="node 0: 2, node 1: 1"):
        manager.get_num_gpus_per_node()


def test_a_host_on_a_missing_node_is_refused():
    manager = NodeManager([node(0, 0)], {}, namespace="")
    with pytest.raises(ShoalValueError, match=r"'x': node 1 does not exist.*0 to 0"):
        run(manager.start_host("x", object, node_rank=1))
