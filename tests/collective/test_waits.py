"""Log lines and errors of long waits between workers: which worker waits for which, and cycles."""

import logging
import time

import pytest

from shoal import deadline
from shoal.collective import waits
from shoal.errors import ShoalTimeoutError

pytestmark = [pytest.mark.nightly, pytest.mark.process]


def soon(me, call):
    """Run a call with a short time before its first log line; return the lines."""
    deadline.TIMING = deadline.WaitTiming(first_logs_s=(1.2, 60.0))
    waits._NOTE_AFTER_S = 0.2
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("shoal").addHandler(handler)
    try:
        call(me)
    except ShoalTimeoutError:
        return lines
    finally:
        logging.getLogger("shoal").removeHandler(handler)
    return lines


def recv_from(peer, timeout=3):
    return lambda me: me.recv(peer, 0, timeout=timeout)


def fill(peer, timeout=3):
    return lambda me: [me.send(number, peer, 0, timeout=timeout) for number in range(17)]


def broadcast_in(names, timeout=3):
    return lambda me: me.broadcast(1, [(name, 0) for name in names], timeout=timeout)


def error_of(me, call):
    waits._NOTE_AFTER_S = 0.2
    with pytest.raises(ShoalTimeoutError) as caught:
        call(me)
    return str(caught.value)


def recv_behind(me):
    me.recv("a", 0, async_op=True, timeout=3)
    me.recv("a", 0, timeout=2)


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        pytest.param(recv_from("b"), recv_from("a", 2), id="receives"),
        pytest.param(fill("b"), fill("a", 2), id="sends"),
        pytest.param(recv_from("b"), broadcast_in("ab", 2), id="broadcast"),
        pytest.param(recv_from("b"), recv_behind, id="behind"),
    ],
)
def test_the_error_of_a_worker_that_is_in_a_cycle_names_it(crew, of_a, of_b):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.begin(error_of, of_a)
    b.begin(error_of, of_b)
    # It ends about a second before the other one.
    assert b.end().endswith(" s (a cycle: b:0 waits for a:0, which waits for b:0)")
    a.end()


def test_workers_that_wait_for_each_other_name_the_cycle(crew):
    names = "abc"
    members = [crew.member(f"{name}:0") for name in names]
    for member, peer in zip(members, "bca", strict=True):
        member.begin(soon, recv_from(peer))
    (line,), _, _ = [member.end() for member in members]
    assert "a:0: recv from b:0: waits for b:0" in line
    assert "a cycle: a:0 waits for b:0, which waits for c:0, which waits for a:0" in line


def test_a_wait_without_a_cycle_names_the_peer_alone(crew):
    a, _ = crew.member("a:0"), crew.member("b:0")
    (line,) = a.run(soon, fill("b"))
    assert "a:0: send to b:0: waits for b:0" in line
    assert "cycle" not in line
    assert "limit 3 s" in line


def test_a_broadcast_says_for_whom_it_waits(crew):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.begin(soon, recv_from("b"))
    b.begin(soon, broadcast_in("ab"))
    (line,) = b.end()
    assert "b:0: broadcast from a:0: waits for a:0" in line
    assert "a cycle: b:0 waits for a:0, which waits for b:0" in line
    a.end()


def large_ones(me):
    for _ in range(9):
        me.broadcast(b"x" * (8 * 2**20), [("a", 0), ("b", 0), ("c", 0)], timeout=3)


def part_once(me):
    me.broadcast(None, [("a", 0), ("b", 0), ("c", 0)], timeout=20)


def part_all(me):
    for _ in range(9):
        part_once(me)


def test_a_source_without_room_names_the_members_that_do_not_take_part(crew):
    a, b, c = (crew.member(f"{name}:0") for name in "abc")
    b.begin(part_all)
    a.begin(soon, large_ones)
    (line,) = a.end()
    assert "a:0: broadcast from a:0: waits for c:0 to take part" in line
    assert "cycle" not in line  # b:0 waits for a:0, but a:0 has what it wants of b:0
    c.run(part_once)
    b.kill()


def idle(me):
    work = me.recv("a", 0, async_op=True)
    time.sleep(2)  # longer than the 1.2 s before the first log line
    assert not work.done()
    work.cancel()


def test_an_asynchronous_receive_that_idles_says_nothing(crew):
    _, b = crew.member("a:0"), crew.member("b:0")
    assert b.run(soon, idle) == []
