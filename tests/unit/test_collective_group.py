"""Collective groups: allowed members, sends and broadcasts, and that groups do not mix."""

import dataclasses
import itertools
import threading
import time
from types import SimpleNamespace

import pytest

from shoal.collective import CollectiveGroup, CollectiveGroupOptions
from shoal.errors import PeerLostError, ShoalTimeoutError, ShoalValueError, TransportError
from shoal.manager import CollectiveGroupInfo
from support.collective_crew import Crew
from support.group_steps import (
    PAIR,
    TRIO,
    addresses,
    broadcast,
    broadcast_beside_a_send,
    call,
    make,
    three_ways,
    three_ways_back,
)
from support.in_thread import in_thread

pytestmark = [pytest.mark.nightly, pytest.mark.process]


@pytest.fixture(scope="module")
def crew():
    with Crew() as made:
        yield made


@pytest.fixture(scope="module")
def workers(crew):
    """The workers of `TRIO`, in separate processes; the first two are also those of `PAIR`."""
    return [crew.member(name) for name in TRIO]


@pytest.fixture
def here(crew):
    """Make workers in this process, with names that no other test has: `here(0, 1)`."""
    name = f"here{next(_numbers)}"

    def make_them(*ranks):
        return [crew.collective(f"{name}:{rank}") for rank in ranks]

    make_them.addresses = lambda *ranks: addresses(*(f"{name}:{rank}" for rank in ranks))
    make_them.name = name
    return make_them


_numbers = itertools.count()


@pytest.fixture
def pair(here):
    """Both ends of a group of two workers in this process."""
    return [one.create_collective_group(here.addresses(0, 1)) for one in here(0, 1)]


def record_of(crew, name):
    return crew.directory.group(name, None)


# --- making a group ---


def test_all_members_make_the_same_group(crew, workers):
    first, second, _ = workers
    first.begin(make, PAIR)
    name, info = second.run(make, PAIR)
    assert first.end() == (name, info)
    assert name == "cg-g:0-g:1"
    assert [worker.address.get_name() for worker in info.workers] == ["g:0", "g:1"]
    assert info.master_addr == "127.0.0.1"
    assert info.world_size == 2
    assert record_of(crew, name) == info
    assert first.run(make, PAIR, "named")[0] == "named"


def test_the_same_call_returns_the_same_group_until_it_is_closed(crew, here):
    (me,), alone = here(0), here.addresses(0)
    group = me.create_collective_group(alone, "closed")
    assert me.create_collective_group(alone, "closed") is group
    assert record_of(crew, "closed") == group.group_info
    group.close()
    group.close()
    assert record_of(crew, "closed") is None
    with pytest.raises(TransportError, match="group closed: broadcast: the group is closed"):
        group.broadcast(1, alone[0])
    again = me.create_collective_group(alone, "closed")
    assert again is not group
    assert again.broadcast("alone", alone[0]) == "alone"


def test_a_missing_member_is_named(crew, here):
    me, _ = here(0, 2)
    members = [*here.addresses(0, 1, 2), *addresses("absent:0:3")]
    text = rf"'x': waits for .*{here.name}:1, absent:0:3 \(not registered"
    with pytest.raises(ShoalTimeoutError, match=text):
        me.create_collective_group(members, "x", timeout=0.2)
    assert record_of(crew, "x") is None


def test_members_are_waited_for(here):
    (first,), members = here(0), here.addresses(0, 1)
    making = in_thread(first.create_collective_group, members, timeout=30)
    time.sleep(0.2)
    assert not making.done()
    (second,) = here(1)
    assert making.result(30).group_info == second.create_collective_group(members).group_info


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (addresses("g:1", "g:2"), r"here\d+:0 is not a member; members: g:1, g:2"),
        ([], "is not a member; members: none"),
        (addresses("g:0", "g:1", "g:0"), "worker_addresses names g:0 twice"),
        ("g:0", "worker_addresses='g:0': expected a list of WorkerAddress"),
        (["g:0"], "expected a list of WorkerAddress"),
        (None, "expected a list of WorkerAddress"),
    ],
)
def test_invalid_members_are_refused(here, members, text):
    (me,) = here(0)
    with pytest.raises(ShoalValueError, match=text):
        me.create_collective_group(members, timeout=5)


@pytest.mark.parametrize("others", [(1, 0), (1, 2)], ids=["order", "members"])
def test_a_second_group_with_a_name_is_refused(here, others):
    first, second, _ = here(0, 1, 2)
    group = first.create_collective_group(here.addresses(0, 1), "taken")
    wanted = here.addresses(*others)
    with pytest.raises(
        ShoalValueError, match="Collective group taken already exists but tried to register"
    ):
        second.create_collective_group(wanted, "taken")
    group.close()
    other = second.create_collective_group(wanted, "taken")
    assert other.worker_addresses == wanted
    other.close()


def test_a_group_of_restarted_workers_takes_the_name_of_the_former_one(crew, here):
    (stays,), first = here(0), crew.member("mortal:0")
    names = ("mortal:0", f"{here.name}:0")
    members = addresses(*names)
    former = stays.create_collective_group(members)
    first.run(call, names, "send", "unreceived, and its sender died")
    assert first.run(make, names)[1] == former.group_info
    first.kill()
    with pytest.raises(PeerLostError, match="waits for its members: mortal:0 died"):
        stays.create_collective_group(members)
    again = crew.member("mortal:0")
    info = again.run(make, names)[1]
    assert info.workers[0].process != former.group_info.workers[0].process
    assert record_of(crew, former.group_name) == info
    # The surviving member keeps its group object, which has the new record.
    assert stays.create_collective_group(members) is former
    assert former.group_info == info
    again.run(call, names, "send", "from the second")
    assert [former.recv(timeout=30) for _ in range(2)] == [
        "unreceived, and its sender died",
        "from the second",
    ]
    former.send("back")
    assert again.run(call, names, "recv") == "back"


def test_other_members_may_take_the_name_of_a_group_whose_member_has_ended(crew, here):
    (me, other), mortal = here(0, 1), addresses(f"ended-{here.name}:0")
    crew.collective(mortal[0].get_name())
    former = me.create_collective_group([*mortal, *here.addresses(0)], "inherited")
    crew.directory.forget(mortal[0].root_group_name)
    group = me.create_collective_group(here.addresses(0, 1), "inherited")
    with pytest.raises(TransportError, match="the group is closed"):
        former.send(1)
    group.send("new")
    ours = other.create_collective_group(here.addresses(0, 1), "inherited")
    assert ours.recv(timeout=30) == "new"
    # Closing the former group does not take the name from its new members.
    former.close()
    assert record_of(crew, "inherited") == group.group_info


def test_a_message_of_a_closed_group_is_received_by_the_next_group_of_its_name(here):
    (first, second), members = here(0, 1), here.addresses(0, 1)
    with first.create_collective_group(members) as group:
        group.send("kept")
    second.create_collective_group(members).close()
    assert second.create_collective_group(members).recv(timeout=30) == "kept"


def test_closing_a_worker_closes_its_groups(crew, here):
    (me,) = here(0)
    group = me.create_collective_group(here.addresses(0), "of a closed worker")
    assert record_of(crew, group.group_name) is not None
    me.close()
    assert record_of(crew, group.group_name) is None
    with pytest.raises(TransportError, match="the group is closed"):
        group.broadcast(1, here.addresses(0)[0])


# --- two members ---


def test_two_members_send_and_receive(pair):
    first, second = pair
    assert first.send({"k": 1}, piggyback_payload="beside") is None
    assert second.recv(timeout=30) == ({"k": 1}, "beside")
    second.send("back", options=CollectiveGroupOptions())
    assert first.recv(timeout=30) == "back"
    receives = [second.recv(async_op=True) for _ in range(10)]
    sends = [first.send(n, async_op=True) for n in range(10)]
    assert [work.wait(timeout=30) for work in receives] == list(range(10))
    assert [work.wait(timeout=30) for work in sends] == [None] * 10
    with pytest.raises(ShoalTimeoutError, match=rf"group {second.group_name}: recv from here\d+:0"):
        second.recv(timeout=0.1)


def test_two_members_send_tensors_into_tensors(pair):
    torch = pytest.importorskip("torch")
    first, second = pair
    first.send_tensor(torch.arange(6.0))
    into = torch.zeros(6)
    second.recv_tensor(into, timeout=30)
    assert into.tolist() == [0, 1, 2, 3, 4, 5]
    work = second.recv_tensor(into, async_op=True)
    first.send_tensor(torch.ones(6), async_op=True).wait(timeout=30)
    work.wait(timeout=30)
    assert into.tolist() == [1] * 6
    with pytest.raises(AssertionError, match="expected a torch tensor"):
        first.send_tensor([1.0])
    with pytest.raises(AssertionError, match="torch tensor, got ndarray; recv returns any object"):
        second.recv_tensor(into.numpy())
    first.send(torch.arange(6).reshape(2, 3).t())
    assert second.recv(timeout=30)[1].tolist() == [1, 4]


def test_groups_of_the_same_members_are_kept_apart(workers):
    first, second, _ = workers
    second.begin(three_ways_back)
    first.run(three_ways, "v")
    assert second.end() == ["v in none", "v in one", "v in two"]


def test_broadcasts_and_messages_of_a_group_are_kept_apart(workers):
    first, second, _ = workers
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
@pytest.mark.parametrize("size", [2, 600_000])
def test_a_broadcast_reaches_every_member(workers, source, options, size):
    value = {"v": [1, 2], "bytes": b"x" * size}
    for names in (TRIO, PAIR) if source < len(PAIR) else (TRIO,):
        members = workers[: len(names)]
        for member in members:
            member.begin(broadcast, names, value, source, options)
        assert [member.end() for member in members] == [value] * len(members)


def test_point_to_point_needs_two_members(here):
    me, *_ = here(0, 1, 2)
    group = me.create_collective_group(here.addresses(0, 1, 2), "three")
    text = "group three: {}: point to point needs a group of two members, this one has 3: "
    for method, args in {"send": [1], "recv": [], "send_tensor": [1], "recv_tensor": [1]}.items():
        with pytest.raises(ShoalValueError, match=text.format(method)):
            getattr(group, method)(*args)


def test_an_invalid_source_is_refused(here):
    (me,) = here(0)
    group = me.create_collective_group(here.addresses(0))
    with pytest.raises(ShoalValueError, match=r"the source g:9 is not a member; members: here"):
        group.broadcast(1, addresses("g:9")[0])
    with pytest.raises(TypeError, match="src_addr='g:0': expected a WorkerAddress"):
        group.broadcast(1, "g:0")


def test_a_group_can_be_constructed_directly(here):
    owners, members = here(0, 1), here.addresses(0, 1)
    info = CollectiveGroupInfo("x", [owner._routes.info for owner in owners], "127.0.0.1")
    groups = [
        CollectiveGroup(info, owner, "x", members, address)
        for owner, address in zip(owners, members, strict=True)
    ]
    groups[0].send("by hand")
    assert groups[1].recv(timeout=30) == "by hand"
    assert repr(groups[0]) == f"<CollectiveGroup x of {here.name}:0, {here.name}:1>"
    for group in groups:
        group.close()


def test_threads_that_create_a_group_at_once_get_the_same_one(here):
    (me,), barrier = here(0), threading.Barrier(8)

    def make_one():
        barrier.wait()
        return me.create_collective_group(here.addresses(0))

    made = [in_thread(make_one) for _ in range(8)]
    assert len({id(one.result(30)) for one in made}) == 1


# --- which members share accelerators ---


def group_on(*devices):
    """A group made without its constructor, which has only its record."""
    workers = [SimpleNamespace(cluster_node_rank=n, available_accelerators=a) for n, a in devices]
    group = CollectiveGroup.__new__(CollectiveGroup)
    group._group_info = SimpleNamespace(workers=workers)
    return group


def test_ranks_are_classified_by_the_devices_that_they_share_with_the_source():
    group = group_on((0, [0]), (0, [0]), (0, [1]), (0, [0, 1]), (1, [0]))
    assert list(group._classify_broadcast_ranks(0)) == [[1], [3], [2, 4]]
    assert list(group._classify_broadcast_ranks(3)) == [[], [0, 1, 2], [4]]
    assert list(group._classify_broadcast_ranks(4)) == [[], [], [0, 1, 2, 3]]
    assert list(group_on((0, []), (0, []))._classify_broadcast_ranks(0)) == [[], [], [1]]


def test_ranks_are_grouped_by_device():
    group = group_on((0, [5]), (0, [9]), (0, [5]), (1, [5]), (0, [5, 9]), (0, []))
    assert group._group_ranks_by_device([2, 1, 0]) == [[2, 0], [1]]
    assert group._group_ranks_by_device([]) == []
    assert group._group_ranks_by_device([4, 0, 5, 3, 2]) == [[0, 2], [3], [4], [5]]


def test_constants():
    kinds = ["TENSOR", "TENSOR_LIST", "TENSOR_DICT", "OBJECT", "DATACLASS_WITH_TENSORS"]
    assert [getattr(CollectiveGroup, kind) for kind in kinds] == [0, 1, 2, 3, 4]
    assert (CollectiveGroup.CPU, CollectiveGroup.POOL_SIZE) == ("cpu", 1)


def test_options_are_checked():
    assert CollectiveGroupOptions().is_empty_options()
    assert not CollectiveGroupOptions(accel_max_ctas=4).is_empty_options()
    with pytest.raises(AssertionError, match="accel_cluster_size=9: expected 0 to 8"):
        CollectiveGroupOptions(accel_cluster_size=9)
    with pytest.raises(AssertionError, match="accel_max_ctas=2 is less than accel_min_ctas=3"):
        CollectiveGroupOptions(accel_max_ctas=2, accel_min_ctas=3)


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
