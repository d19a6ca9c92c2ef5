"""Broadcasts between the workers of one node, of all sizes and in all orders."""

import logging
import os
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from shoal._backend import WorkerAddress
from shoal.collective import broadcast
from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.futures import done
from support.collective_crew import Crew

pytestmark = pytest.mark.process

NAMES = "abc"
ALL = [(name, 0) for name in NAMES]


@pytest.fixture(scope="module", params=["shm", "torch"])
def trio(nursery, request):
    environment = {} if request.param == "shm" else {"SHOAL_TRANSPORT": request.param}
    with Crew(nursery, **environment) as made:
        yield [made.member(f"{name}:0") for name in NAMES]


def together(members, function, *args):
    for member in members:
        member.begin(function, *args)
    return [member.end() for member in members]


def each_as_source(me, sizes, async_op):
    """Broadcast from each member in turn; return the size of each array and whether it is right."""
    found, works = [], []
    mine = me.routes.name.split(":")[0]
    for size in sizes:
        for source, _ in ALL:
            value = np.full(size, ord(source), np.uint8) if mine == source else None
            work = me.broadcast(value, ALL, src=(source, 0), async_op=async_op, timeout=50)
            works.append((work, source))
    for work, source in works:
        array = work.wait(timeout=50) if async_op else work
        right = bool((array == ord(source)).all())
        array[:] = ord(mine)  # the array belongs to this worker alone
        found.append((array.nbytes, right))
    return found


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_each_member_as_source_with_all_sizes(trio, async_op):
    sizes = [0, 10, 256 * 1024 - 200, 256 * 1024, 3 * 2**20]
    for found in together(trio, each_as_source, sizes, async_op):
        assert found == [(size, True) for size in sizes for _ in ALL]


def warnings_of(me, sources):
    """Broadcast among two members from each of some sources; return the warnings."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("shoal").addHandler(handler)
    own = me.routes.name.split(":")[0]
    for source in sources or [own]:
        me.broadcast(own, ALL[:2], src=(source, 0), timeout=50)
    logging.getLogger("shoal").removeHandler(handler)
    return lines


@pytest.mark.parametrize("sources", [None, "ab"], ids=["each its own", "each in turn"])
def test_members_that_name_different_sources_are_warned(crew, sources):
    pair = [crew.member(f"{name}:0") for name in "ab"]
    assert together(pair, warnings_of, sources) == [[], []]
    found = together(pair, warnings_of, sources)
    if sources is None:
        for name, other, (line,) in zip("ab", "ba", found, strict=True):
            text = f"{name}:0 takes itself for the source, and {other}:0 has sent an object"
            assert text in line
    else:
        assert found == [[], []]


@pytest.mark.nightly
def test_large_objects_up_to_the_bound_and_beyond(trio):
    for found in together(trio, each_as_source, [64 * 2**20, 66 * 2**20], False):
        assert all(right for _, right in found)


def many_in_flight(me, count):
    works = [
        me.broadcast(number if me.routes.name == "a:0" else None, ALL, async_op=True)
        for number in range(count)
    ]
    last = me.broadcast("end" if me.routes.name == "a:0" else None, ALL, timeout=50)
    return [work.wait(timeout=50) for work in works], last


def test_many_in_flight_keep_their_order(trio):
    for found in together(trio, many_in_flight, 300):
        assert found == (list(range(300)), "end")


def large_without_waiting(me, count):
    """Start more large broadcasts than fit the buffer; other members take part only afterwards."""
    size = 8 * 2**20
    if me.routes.name == "a:0":
        works = [
            me.broadcast(np.full(size, number, np.uint8), ALL, async_op=True, timeout=50)
            for number in range(count)
        ]
        for name in "bc":
            me.send("begin", name, 0)
        for work in works:
            work.wait(timeout=50)
        return None
    assert me.recv("a", 0, timeout=50) == "begin"
    return [int(me.broadcast(None, ALL, timeout=50)[-1]) for _ in range(count)]


def test_an_asynchronous_broadcast_beyond_the_bound_returns_at_once(trio):
    found = together(trio, large_without_waiting, 12)
    assert found == [None, list(range(12)), list(range(12))]


def sparse(me):
    import torch

    value = torch.eye(3).to_sparse() if me.routes.name == "a:0" else None
    return me.broadcast(value, ALL, timeout=50).to_dense().sum().item()


def test_a_sparse_tensor_reaches_several_members(trio):
    pytest.importorskip("torch")
    assert together(trio, sparse) == [3.0] * 3


def in_groups(me, rounds):
    """Take part in broadcasts of overlapping groups, between messages."""
    mine = me.routes.name.split(":")[0]
    groups = [["a", "b"], ["b", "c"], ["c", "a"], ["a", "b", "c"]]
    found = []
    peers = [name for name in NAMES if name != mine]
    for number in range(rounds):
        for peer in peers:
            me.send((mine, number), peer, 0, async_op=True)
        works = []
        for group in groups:
            if mine in group:
                source = group[number % len(group)]
                value = (source, number, tuple(group)) if source == mine else None
                members = [(name, 0) for name in group]
                work = me.broadcast(value, members, src=(source, 0), async_op=True, timeout=50)
                works.append((work, (source, number, tuple(group))))
        found += [work.wait(timeout=50) == expected for work, expected in works]
        found += [me.recv(peer, 0, timeout=50) == (peer, number) for peer in peers]
    return all(found)


def test_overlapping_groups_between_messages_of_the_same_workers(trio):
    assert together(trio, in_groups, 30) == [True] * 3


def crossing(me):
    """Two workers do the same two things in opposite orders."""
    pair = [("a", 0), ("b", 0)]
    big = np.ones(70 * 2**20, np.uint8)
    if me.routes.name == "a:0":
        me.send(big, "b", 0, timeout=50)
        me.broadcast(big, ALL, timeout=50)
        work = me.broadcast(big, ALL, async_op=True, timeout=50)
        me.send(big, "b", 0, timeout=50)
        work.wait(timeout=50)
        me.broadcast("small", pair, timeout=50)
        return True
    found = []
    found.append(me.broadcast(None, ALL, timeout=50).nbytes)
    if me.routes.name == "c:0":
        found.append(me.broadcast(None, ALL, timeout=50).nbytes)
        return found == [big.nbytes] * 2
    found.append(me.recv("a", 0, timeout=50).nbytes)
    found.append(me.recv("a", 0, timeout=50).nbytes)
    found.append(me.broadcast(None, ALL, timeout=50).nbytes)
    return found == [big.nbytes] * 4 and me.broadcast(None, pair, timeout=50) == "small"


def test_large_messages_and_broadcasts_do_not_wait_for_each_other(crew):
    trio = [crew.member(f"{name}:0") for name in NAMES]
    assert together(trio, crossing) == [True] * 3


def take_part(me, value=None, timeout=30):
    return me.broadcast(value, ALL, timeout=timeout)


def take_part_async(me, count):
    works = [me.broadcast(None, ALL, async_op=True, timeout=30) for _ in range(count)]
    found = []
    for work in works:
        try:
            found.append(work.wait(timeout=40))
        except PeerLostError:
            found.append("lost")
    assert all(work.done() for work in works)
    return found


@pytest.mark.nightly
def test_a_broadcast_waits_for_late_members_and_names_missing_ones(crew):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.begin(take_part, 1, 0.5)
    b.begin(take_part, None, 0.5)
    for member in (a, b):
        with pytest.raises(ShoalTimeoutError, match=r"members that have not come: c:0$"):
            member.end()
    a.begin(take_part, "now")
    b.begin(take_part)
    time.sleep(0.3)
    c = crew.member("c:0")
    c.begin(take_part)
    assert [member.end() for member in (a, b, c)] == ["now"] * 3


@pytest.mark.parametrize("nbytes", [10, 2**20], ids=["small", "large"])
def test_the_other_members_receive_although_one_member_died(crew, nbytes):
    a, b, c = (crew.member(f"{name}:0") for name in NAMES)
    assert together([a, b, c], take_part, b"x") == [b"x"] * 3
    c.kill()
    b.begin(take_part)
    time.sleep(0.2)
    with pytest.raises(PeerLostError, match="c:0"):
        a.run(take_part, b"y" * nbytes)
    assert b.end() == b"y" * nbytes


def interrupt_the_seventeenth(me):
    """Get SIGINT while a large broadcast waits for the last member, whose queue is full."""
    for number in range(16):
        me.broadcast(number, ALL, timeout=30)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        me.broadcast(b"x" * 2**20, ALL, timeout=30)
    me.send("take part", "c", 0)
    me.broadcast("after", ALL, timeout=30)


def take_part_often(me, count):
    if me.routes.name == "c:0":
        me.recv("a", 0, timeout=30)
    return [me.broadcast(None, ALL, timeout=30) for _ in range(count)][-1]


def unread_bytes(me):
    (series,) = me._broadcasts._known.values()
    return series._written.nbytes()


def test_ctrl_c_during_a_broadcast_leaves_no_memory_for_members_that_get_nothing(crew):
    a, b, c = (crew.member(f"{name}:0") for name in NAMES)
    b.begin(take_part_often, 18)
    c.begin(take_part_often, 17)
    a.run(interrupt_the_seventeenth)
    assert [b.end(), c.end()] == ["after"] * 2
    assert a.run(unread_bytes) == 0


def test_a_broadcast_that_has_begun_keeps_its_turn_when_it_is_cancelled(monkeypatch):
    begins, goes_on = threading.Event(), threading.Event()

    def begin(_, value, deadline):
        begins.set()
        assert goes_on.wait(deadline.remaining)
        return done(value), None

    monkeypatch.setattr(broadcast._Series, "_begin_in_thread", begin)
    me = WorkerAddress("a", [0])
    routes = SimpleNamespace(info=SimpleNamespace(address=me))
    series = broadcast._Series(routes, "broadcast", "", [me], me, ring=False)
    first = series.start("first", Deadline(30))
    assert begins.wait(30)
    second = series.start("second", Deadline(30))
    assert not first.cancel()
    assert second.cancel()
    waits = series._order.waits(broadcast._KEY, "put")
    goes_on.set()
    assert waits
    assert first.wait(timeout=30) == "first"


@pytest.mark.nightly
def test_the_death_of_the_source_ends_all_that_wait_for_it(crew):
    a, b, c = (crew.member(f"{name}:0") for name in NAMES)
    assert together([a, b, c], take_part, b"x") == [b"x"] * 3
    b.begin(take_part)
    c.begin(take_part_async, 3)
    time.sleep(0.3)
    a.kill()
    with pytest.raises(PeerLostError):
        b.end()
    assert c.end() == ["lost"] * 3


@pytest.mark.nightly
def test_a_broadcast_arrives_although_its_source_died_after_sending(crew):
    a, b, c = (crew.member(f"{name}:0") for name in NAMES)
    assert together([a, b, c], take_part, b"x") == [b"x"] * 3
    for size in (10, 2**20):
        assert a.run(take_part, b"y" * size) == b"y" * size
    a.kill()
    for member in (b, c):
        assert [member.run(take_part) for _ in range(2)] == [b"y" * 10, b"y" * 2**20]
        with pytest.raises(PeerLostError):
            member.run(take_part)


@pytest.mark.nightly
def test_a_member_with_a_successor_takes_part_again(crew):
    a, b, c = (crew.member(f"{name}:0") for name in NAMES)
    assert together([a, b, c], take_part, b"x") == [b"x"] * 3
    c.kill()
    c = crew.member("c:0")
    time.sleep(0.2)
    assert together([a, b, c], take_part, b"again") == [b"again"] * 3
    a.kill()
    a = crew.member("a:0")
    assert together([a, b, c], take_part, b"more") == [b"more"] * 3
