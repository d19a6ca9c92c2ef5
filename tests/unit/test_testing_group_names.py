"""The names and addresses of groups: found by name, free after close, and never given twice."""

import asyncio
import re
import threading
import time

import pytest

from shoal import Cluster, NodePlacementStrategy, Worker, WorkerAddress, WorkerInfo
from shoal.errors import NameTakenError, ShoalTimeoutError, ShoalValueError, WorkerGroupError
from shoal.manager import WorkerManager
from shoal.process import ProcessId
from shoal.worker import WorkerGroup, names
from support.in_thread import in_thread
from support.processes import until

TWO = NodePlacementStrategy([0, 0])


class Child(Worker):
    def __init__(self, parent=None, delay_of_0=0.0):
        if delay_of_0:
            # Rank 0 registers last, so that the others look it up before.
            time.sleep(delay_of_0 if self._rank == 0 else 0.0)
        super().__init__(parent_address=parent)

    def port(self):
        return self._master_port

    def name(self):
        return self.get_name()


MAY_START = threading.Event()


class Late(Worker):
    def __init__(self):
        MAY_START.wait(30)
        super().__init__()


class Parent(Worker):
    def start(self, name, delay_of_0=0.0, with_address=True):
        address = self.worker_address if with_address else None
        group = Child.create_group(address, delay_of_0)
        self._group = group.launch(Cluster(), TWO, name)

    def ports(self):
        return self._group.port().wait()

    def names(self):
        return self._group.name().wait()

    def end(self):
        self._group.close()


@pytest.fixture
def parent(cluster):
    return Parent.create_group().launch(cluster, name="parent", wait=True)


def names_of(group):
    return [info.address.get_name() for info in WorkerManager.get_proxy().get_group(group)]


# Found by name.


def test_a_group_is_found_whole_while_its_workers_are_constructing(cluster):
    Child.create_group(None, 1.0).launch(cluster, TWO, "slow")
    group = WorkerGroup.from_group_name(Child, "slow")
    assert [rank.rank for rank in group.worker_info_list] == [0, 1]
    assert group.ready().name().wait() == ["slow:0", "slow:1"]


def test_a_wait_for_a_group_ends_when_it_is_launched(cluster):
    finding = in_thread(WorkerGroup.from_group_name, Child, "later", timeout=30)
    time.sleep(0.1)
    Child.create_group().launch(cluster, TWO, "later")
    assert finding.result(30).name().wait() == ["later:0", "later:1"]


def test_a_rank_that_registers_during_the_search_is_not_lost(cluster, monkeypatch):
    find, manager = names.find_actor, WorkerManager.get_proxy()

    def find_and_register(name, namespace):
        if name == "slow:1" and not MAY_START.is_set():
            MAY_START.set()
            until(lambda: len(manager.get_group("slow")) == 2)
            return None  # as before it was started
        return find(name, namespace)

    MAY_START.clear()
    Late.create_group().launch(cluster, TWO, "slow")
    monkeypatch.setattr(names, "find_actor", find_and_register)
    group = WorkerGroup.from_group_name(Late, "slow")
    assert [rank.rank for rank in group.worker_info_list] == [0, 1]


def test_a_group_that_does_not_come_is_named(cluster):
    with pytest.raises(ShoalValueError, match=r"no group 'later' in the job 'shoal'$"):
        WorkerGroup.from_group_name(Child, "later")
    with pytest.raises(ShoalValueError, match=r"no group 'later' .* within 0\.1 s"):
        WorkerGroup.from_group_name(Child, "later", timeout=0.1)
    WorkerManager.get_proxy().announce_group("partial", 2, "driver")
    with pytest.raises(ShoalValueError, match=r"; there is partial; did you mean 'partial'\?$"):
        WorkerGroup.from_group_name(Child, "patrial")
    with pytest.raises(ShoalTimeoutError, match=r"2 ranks, and its ranks \[0, 1\] were not"):
        WorkerGroup.from_group_name(Child, "partial", timeout=0.1)
    Child.create_group().launch(cluster, TWO, "partial", wait=True)
    cluster._runtime.kill(cluster._runtime.actors["partial:1"])
    with pytest.raises(ShoalValueError, match=r"'partial' has lost its ranks \[1\]"):
        WorkerGroup.from_group_name(Child, "partial")


# Closed.


def test_a_nested_group_is_found_whole_and_leaves_no_record_when_it_is_closed(parent):
    parent.start("children").wait()
    group = WorkerGroup.from_group_name(Child, "children")
    assert group.name().wait() == ["parent:0:0", "parent:0:1"]
    assert names_of("children") == ["parent:0:0", "parent:0:1"]
    parent.end().wait()
    assert names_of("children") == []
    address = WorkerAddress.from_name("parent:0:0")
    assert WorkerManager.get_proxy().get_worker_info(address) is None
    with pytest.raises(ShoalValueError, match="no group 'children'"):
        WorkerGroup.from_group_name(Child, "children")
    # Rank 1 does not meet at the port of the closed rank 0.
    parent.start("children", delay_of_0=0.5).wait()
    (ports,) = parent.ports().wait()
    assert ports[0] == ports[1]


def test_a_group_does_not_meet_at_the_port_of_a_dead_one_of_another_name(cluster, parent):
    parent.start("first").wait()
    parent.ports().wait()
    for rank in range(2):
        cluster._runtime.kill(cluster._runtime.actors[f"first:{rank}"])
    parent.start("second", delay_of_0=0.5).wait()
    (ports,) = parent.ports().wait()
    assert ports[0] == ports[1]


def register(manager, name, group):
    address = WorkerAddress.from_name(name)
    manager.register_worker(address, WorkerInfo(address, address.rank, 1, 0, group=group))


def test_closing_a_group_removes_what_its_workers_launched():
    manager = WorkerManager()
    for name, group, launcher in [
        ("g:0", "g", "driver"),
        ("g:0:0", "nested", "g:0"),
        ("g:0:0:0", "below", "g:0:0"),
        ("g:0:5", "", ""),
        ("apart:0", "apart", "g:0"),
        ("apart:0:1", "further", "apart:0"),
        ("group:0", "group", "driver"),
    ]:
        if group:
            manager.announce_group(group, 1, launcher)
        register(manager, name, group)
    manager.announce_group("never", 1, "g:0")
    manager.unregister_group("below")
    assert manager.get_group_size("below") is None
    assert manager.get_group_size("nested") == 1
    manager.unregister_group("g")
    assert [a.get_name() for a in manager._infos] == ["group:0"]
    assert [n for n in ("g", "nested", "apart", "further", "never", "group")
            if manager.get_group_size(n)] == ["group"]  # fmt: skip


# Addresses.


def test_a_second_group_with_the_same_parent_is_refused(cluster, parent):
    parent.start("first").wait()
    assert parent.names().wait() == [["parent:0:0", "parent:0:1"]]
    second = Child.create_group(WorkerAddress("parent", [0])).launch(cluster, TWO, "second")
    says = r"the address 'parent:0:0' belongs to first:0, which is alive: .* second:0, second:1"
    with pytest.raises(WorkerGroupError) as caught:
        second.ready()
    assert {type(error) for error in caught.value.exceptions} == {NameTakenError}
    assert re.search(says, str(caught.value.exceptions))
    assert names_of("first") == ["parent:0:0", "parent:0:1"]
    second.close()
    assert names_of("first") == ["parent:0:0", "parent:0:1"]


def test_without_a_parent_address_two_groups_have_their_own_addresses(parent):
    parent.start("first", with_address=False).wait()
    assert parent.names().wait() == [["first:0", "first:1"]]
    parent.start("second", with_address=False).wait()
    assert parent.names().wait() == [["second:0", "second:1"]]


def test_an_address_is_claimed_from_ended_workers_only():
    manager = WorkerManager()
    address = WorkerAddress.from_name("g:0:0")

    def info(group, pid):
        return WorkerInfo(address, 0, 1, 0, group=group, pid=pid, process=ProcessId("a", pid, 1))

    first, again, other = info("first", 1), info("first", 2), info("other", 3)
    assert manager.claim_worker(address, first) is None
    assert manager.claim_worker(address, again) is None  # the same rank, started again
    assert manager.claim_worker(address, other) == again
    assert manager.claim_worker(address, other, instead_of=first) == again
    assert manager.claim_worker(address, other, instead_of=again) is None
    assert manager.get_worker_info(address) == other


def test_a_wait_for_rank_0_takes_that_of_its_group():
    async def scenario():
        manager = WorkerManager()
        register(manager, "g:0:0", "first")
        address = WorkerAddress.from_name("g:0:0")
        assert await manager.wait_worker_info(address, 0.01, group="second") is None
        waiting = asyncio.ensure_future(manager.wait_worker_info(address, 10, group="second"))
        await asyncio.sleep(0)
        register(manager, "g:0:0", "second")
        return await waiting

    assert asyncio.run(scenario()).group == "second"
