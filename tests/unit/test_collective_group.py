"""Collective groups: who may be a member, what they send, and that they are kept apart."""

import dataclasses
import threading
import time
from types import SimpleNamespace

import pytest

from collective_crew import Crew
from group_steps import (
    PAIR,
    TRIO,
    addresses,
    broadcast,
    broadcast_beside_a_send,
    call,
    make,
    many,
    of,
    three_ways,
    three_ways_back,
)
from shoal.collective import CollectiveGroup, CollectiveGroupOptions
from shoal.errors import PeerLostError, ShoalTimeoutError, ShoalValueError, TransportError
from shoal.manager import CollectiveGroupInfo

pytestmark = pytest.mark.process


@pytest.fixture
def crew():
    with Crew() as made:
        yield made


def record_of(crew, name):
    return crew.directory.group(name, None)


# --- making a group ---


def test_all_members_make_the_same_group(crew):
    first, second = crew.member("g:0"), crew.member("g:1")
    first.begin(make, PAIR)
    name, info = second.run(make, PAIR)
    assert first.end() == (name, info)
    assert name == "cg-g:0-g:1"
    assert [worker.address.get_name() for worker in info.workers] == ["g:0", "g:1"]
    assert info.master_addr == "127.0.0.1"
    assert info.world_size == 2
    assert record_of(crew, name) == info
    assert first.run(make, PAIR, "named")[0] == "named"


def test_the_same_call_returns_the_same_group_until_it_is_closed(crew):
    me = crew.collective("g:0")
    group = of(me, ["g:0"])
    assert of(me, ["g:0"]) is group
    group.close()
    group.close()
    assert record_of(crew, "cg-g:0") is None
    with pytest.raises(TransportError, match="group cg-g:0: broadcast: the group is closed"):
        group.broadcast(1, group.worker_addresses[0])
    again = of(me, ["g:0"])
    assert again is not group
    assert again.broadcast("alone", again.worker_addresses[0]) == "alone"


def test_a_member_that_does_not_come_is_named(crew):
    me = crew.collective("g:0")
    crew.collective("g:2")
    names = ("g:0", "g:1", "g:2", "h:0:3")
    with pytest.raises(ShoalTimeoutError, match=r"'x': waits for .*g:1, h:0:3 \(not registered"):
        me.create_collective_group(addresses(*names), "x", timeout=0.2)
    assert record_of(crew, "x") is None


def test_members_are_waited_for(crew):
    waiting = crew.member("g:0")
    waiting.begin(make, PAIR)
    time.sleep(0.3)
    other = crew.collective("g:1")
    assert waiting.end()[1] == of(other, PAIR).group_info


def test_a_member_that_died_is_an_error(crew):
    mortal, me = crew.member("g:1"), crew.collective("g:0")
    mortal.run(make, PAIR)
    mortal.kill()
    with pytest.raises(PeerLostError, match="'cg-g:0-g:1': waits for its members: g:1 died"):
        of(me, PAIR)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (addresses("g:1", "g:2"), "g:0 is not a member; members: g:1, g:2"),
        ([], "g:0 is not a member; members: none"),
        (addresses("g:0", "g:1", "g:0"), "must be unique, and g:0 is named twice"),
        ("g:0", "worker_addresses='g:0': expected a list of WorkerAddress"),
        (["g:0"], "expected a list of WorkerAddress"),
        (None, "expected a list of WorkerAddress"),
    ],
)
def test_members_that_cannot_be(crew, members, text):
    me = crew.collective("g:0")
    with pytest.raises(ShoalValueError, match=text):
        me.create_collective_group(members, timeout=5)


@pytest.mark.parametrize("others", [("g:1", "g:0"), ("g:1", "g:2")], ids=["order", "members"])
def test_a_name_belongs_to_one_group(crew, others):
    first, second, _ = crew.collective("g:0"), crew.collective("g:1"), crew.collective("g:2")
    group = of(first, PAIR, "x")
    with pytest.raises(
        ShoalValueError, match="Collective group x already exists but tried to register"
    ):
        of(second, others, "x")
    group.close()
    assert of(second, others, "x").worker_addresses == addresses(*others)


def test_a_group_of_restarted_workers_takes_the_name_of_the_former_one(crew):
    stays, first = crew.collective("h:0"), crew.member("g:0")
    names = ("g:0", "h:0")
    former = of(stays, names)
    first.run(call, names, "send", ["unreceived, and its sender died"])
    assert first.run(make, names)[1] == former.group_info
    first.kill()
    again = crew.member("g:0")
    info = again.run(make, names)[1]
    assert info.workers[0].process != former.group_info.workers[1].process
    assert record_of(crew, former.group_name) == info
    # The member that lives has the same group, with the new record, and goes on with it.
    assert of(stays, names) is former
    assert former.group_info == info
    again.begin(call, names, "send", ["from the second"])
    assert [former.recv(timeout=30) for _ in range(2)] == [
        "unreceived, and its sender died",
        "from the second",
    ]
    again.end()
    former.send("back")
    assert again.run(call, names, "recv") == "back"


def test_other_members_may_take_the_name_of_a_group_whose_member_has_ended(crew):
    me, first, second = crew.collective("h:0"), crew.member("g:0"), crew.member("g:1")
    former = of(me, ("g:0", "h:0"), "x")
    first.kill()
    group = of(me, ("h:0", "g:1"), "x")
    with pytest.raises(TransportError, match="the group is closed"):
        former.send(1)
    second.begin(call, ("h:0", "g:1"), "recv", (), {}, "x")
    group.send("new")
    assert second.end() == "new"


def test_what_a_former_group_left_is_received_by_the_next_of_its_name(crew):
    first, second = crew.collective("g:0"), crew.collective("g:1")
    with of(first, PAIR) as group:
        group.send("kept")
    second.create_collective_group(addresses(*PAIR)).close()
    assert of(second, PAIR).recv(timeout=30) == "kept"


def test_the_worker_that_closes_closes_its_groups(crew):
    me = crew.collective("g:0")
    group = of(me, ["g:0"])
    me.close()
    assert record_of(crew, group.group_name) is None


# --- two members ---


def test_two_members_send_and_receive(crew):
    first, second = crew.member("g:0"), crew.collective("g:1")
    group = of(second, PAIR)
    first.begin(call, PAIR, "send", [{"k": 1}], {"piggyback_payload": "beside"})
    assert group.recv(timeout=30) == ({"k": 1}, "beside")
    first.end()
    first.begin(call, PAIR, "recv")
    assert group.send("back", options=CollectiveGroupOptions()) is None
    assert first.end() == "back"
    first.begin(many, PAIR, 10)
    works = [group.send(n, async_op=True) for n in range(10)]
    assert [work.wait(timeout=30) for work in works] == [None] * 10
    assert first.end() == list(range(10))
    with pytest.raises(ShoalTimeoutError, match="group cg-g:0-g:1: recv from g:0"):
        group.recv(timeout=0.1)


def test_two_members_send_tensors_into_tensors(crew):
    torch = pytest.importorskip("torch")
    first, second = crew.member("g:0"), crew.collective("g:1")
    group = of(second, PAIR)
    first.begin(call, PAIR, "send_tensor", [torch.arange(6.0)])
    into = torch.zeros(6)
    group.recv_tensor(into, timeout=30)
    assert into.tolist() == [0, 1, 2, 3, 4, 5]
    first.end()
    first.begin(call, PAIR, "send_tensor", [torch.ones(2)], {"async_op": True})
    other = torch.zeros(2)
    group.recv_tensor(other, async_op=True).wait(timeout=30)
    assert other.tolist() == [1, 1]
    first.end()
    with pytest.raises(AssertionError, match="expected a torch tensor"):
        group.send_tensor([1.0])
    with pytest.raises(ValueError, match="must be contiguous when using P2P communication"):
        group.send(torch.ones(2, 3).t())


def test_groups_of_the_same_members_are_kept_apart(crew):
    first, second = crew.member("g:0"), crew.member("g:1")
    second.begin(three_ways_back)
    first.run(three_ways, "v")
    assert second.end() == ["v in none", "v in one", "v in two"]


def test_broadcasts_and_messages_of_a_group_are_kept_apart(crew):
    first, second = crew.member("g:0"), crew.member("g:1")
    first.begin(broadcast_beside_a_send, 0)
    assert second.run(broadcast_beside_a_send, 1) == ["of the group", "sent", "of the worker"]
    assert first.end() == [None, "of the worker", "of the group"]


# --- more members ---


@pytest.mark.parametrize("source", [0, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"async_op": True}, {"options": CollectiveGroupOptions(use_ring_broadcast=True)}],
    ids=["sync", "async", "ring"],
)
def test_a_broadcast_reaches_every_member(crew, source, options):
    members = [crew.member(name) for name in TRIO]
    for member in members:
        member.begin(broadcast, TRIO, {"v": [1, 2]}, source, options)
    assert [member.end() for member in members] == [{"v": [1, 2]}] * 3


def test_point_to_point_needs_two_members(crew):
    me, *_ = [crew.collective(name) for name in TRIO]
    group = of(me, TRIO, "x")
    text = r"group x: {}: point to point needs a group of two members, this one has 3: g:0, g:1, h:"
    for method, args in (
        ("send", (1,)),
        ("recv", ()),
        ("send_tensor", (None,)),
        ("recv_tensor", (None,)),
    ):
        with pytest.raises(ShoalValueError, match=text.format(method)):
            getattr(group, method)(*args)


def test_a_source_that_is_not_a_member_is_refused(crew):
    me = crew.collective("g:0")
    group = of(me, ["g:0"], "x")
    with pytest.raises(ShoalValueError, match=r"the source g:9 is not a member; members: g:0"):
        group.broadcast(1, addresses("g:9")[0])
    with pytest.raises(TypeError, match="src_addr='g:0': expected a WorkerAddress"):
        group.broadcast(1, "g:0")


def test_a_group_can_be_made_by_hand(crew):
    first, second = crew.collective("g:0"), crew.collective("g:1")
    info = CollectiveGroupInfo("x", [first._routes.info, second._routes.info], "127.0.0.1")
    groups = [
        CollectiveGroup(info, owner, "x", addresses(*PAIR), address)
        for owner, address in zip((first, second), addresses(*PAIR), strict=True)
    ]
    groups[0].send("by hand")
    assert groups[1].recv(timeout=30) == "by hand"
    assert repr(groups[0]) == "<CollectiveGroup x of g:0, g:1>"
    for group in groups:
        group.close()


def test_threads_that_make_a_group_at_once_have_the_same_one(crew):
    me, made = crew.collective("g:0"), []
    barrier = threading.Barrier(8)

    def run():
        barrier.wait()
        made.append(of(me, ["g:0"]))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 8
    assert len(set(map(id, made))) == 1


# --- which members share accelerators ---


def group_on(*devices):
    """A group without its constructor, of which only the record is there."""
    workers = [SimpleNamespace(cluster_node_rank=n, available_accelerators=a) for n, a in devices]
    group = CollectiveGroup.__new__(CollectiveGroup)
    group._group_info = SimpleNamespace(workers=workers)
    return group


def test_ranks_are_told_apart_by_what_they_share_with_the_source():
    group = group_on((0, [0]), (0, [0]), (0, [1]), (0, [0, 1]), (1, [0]))
    assert list(group._classify_broadcast_ranks(0)) == [[1], [3], [2, 4]]
    assert list(group._classify_broadcast_ranks(3)) == [[], [0, 1, 2], [4]]
    assert list(group._classify_broadcast_ranks(4)) == [[], [], [0, 1, 2, 3]]
    assert list(group_on((0, []), (0, []))._classify_broadcast_ranks(0)) == [[], [], [1]]


def test_ranks_are_put_together_by_their_device():
    group = group_on((0, [5]), (0, [9]), (0, [5]), (1, [5]), (0, [5, 9]), (0, []))
    assert group._group_ranks_by_device([2, 1, 0]) == [[2, 0], [1]]
    assert group._group_ranks_by_device([]) == []
    assert group._group_ranks_by_device([4, 0, 5, 3, 2]) == [[0, 2], [3], [4], [5]]


def test_constants():
    kinds = ["TENSOR", "TENSOR_LIST", "TENSOR_DICT", "OBJECT", "DATACLASS_WITH_TENSORS"]
    assert [getattr(CollectiveGroup, kind) for kind in kinds] == [0, 1, 2, 3, 4]
    assert (CollectiveGroup.CPU, CollectiveGroup.POOL_SIZE) == ("cpu", 1)


def test_kinds_of_payloads():
    torch = pytest.importorskip("torch")

    @dataclasses.dataclass
    class Batch:
        states: torch.Tensor
        parts: list
        step: int

    one = torch.ones(2)
    info = CollectiveGroup._get_object_info
    for value, kind, tensors in (
        (one, CollectiveGroup.TENSOR, 1),
        ([], CollectiveGroup.TENSOR_LIST, 0),
        ((one, one), CollectiveGroup.TENSOR_LIST, 2),
        ({}, CollectiveGroup.TENSOR_DICT, 0),
        ({"a": one}, CollectiveGroup.TENSOR_DICT, 1),
        ([one, 1], CollectiveGroup.OBJECT, 0),
        ({"a": [one]}, CollectiveGroup.OBJECT, 0),
        (None, CollectiveGroup.OBJECT, 0),
        (Batch, CollectiveGroup.OBJECT, 0),
        (Batch(None, [1], 2), CollectiveGroup.OBJECT, 0),
        (Batch(one, [one, one], 2), CollectiveGroup.DATACLASS_WITH_TENSORS, 3),
    ):
        found, data = info(value)
        assert found == kind, value
        assert len(data.tensors_list) == len(data.cpu_tensors) == tensors
        assert data.cpu_tensor_mask == [True] * tensors
        assert (data.has_cpu_tensor, data.has_accel_tensor) == (tensors > 0, False)
    assert list(data.tensor_fields) == list(data.metadata) == ["states", "parts"]
    elsewhere = info([one, torch.empty(2, device="meta")])[1]
    assert elsewhere.cpu_tensor_mask == [True, False]
    assert elsewhere.accel_tensors == elsewhere.tensors_list[1:]
    assert elsewhere.has_accel_tensor
