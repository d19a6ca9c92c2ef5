"""When the core may use the queue between two workers of a node, without Python code."""

import time

import pytest

from shoal.collective.mailbox import MOST_MESSAGES
from shoal.collective.outbox import LOOK_S
from shoal.errors import ShoalTimeoutError, TransportError
from support.processes import in_a_child

pytestmark = pytest.mark.process


def send_two(me):
    """Send two messages: the first one finds the receiver, and the second one uses the queue."""
    for number in range(2):
        me.send(number, "b", 0)
    return sends(me)


def recv_two(me):
    assert [me.recv("a", 0, timeout=30) for _ in range(2)] == [0, 1]
    return receives(me)


def sends(me):
    """The ranks of the group `b` to which the core may send directly."""
    return list(me._direct_sends["b"])


def receives(me):
    return list(me._direct_receives["a"])


@pytest.fixture
def two(crew):
    """Two workers, whose core may send from `a` to `b` and receive there directly."""
    a, b = crew.member("a:0"), crew.member("b:0")
    assert a.run(send_two) == [0]
    assert b.run(recv_two) == [0]
    return a, b


def test_an_asynchronous_send_that_waits_comes_before_later_sends(two):
    def send_behind(me):
        for number in range(MOST_MESSAGES):
            me.send(number, "b", 0)
        me.work = me.send(MOST_MESSAGES, "b", 0, async_op=True)
        return sends(me)

    def send_more(me):
        me.send(MOST_MESSAGES + 1, "b", 0)
        me.work.wait(timeout=30)
        me.send(MOST_MESSAGES + 2, "b", 0)

    a, b = two
    assert a.run(send_behind) == []
    a.begin(send_more)
    numbers = list(range(MOST_MESSAGES + 3))
    assert [b.run(lambda me: me.recv("a", 0, timeout=30)) for _ in numbers] == numbers
    a.end()
    assert a.run(send_two) == [0]


def test_an_asynchronous_receive_that_waits_comes_before_later_receives(two):
    def recv_behind(me):
        work = me.recv("a", 0, async_op=True, timeout=30)
        return receives(me), me.recv("a", 0, timeout=30), work.wait(timeout=30)

    a, b = two
    b.begin(recv_behind)
    a.run(send_two)
    assert b.end() == ([], 1, 0)
    a.run(send_two)
    assert b.run(recv_two) == [0]


def test_a_message_that_was_refused_comes_before_later_ones(two):
    def send_tensor(me):
        import torch

        me.send_tensor(torch.ones(2), "b", 0)
        me.send("later", "b", 0)

    def recv_tensor(me):
        import torch

        with pytest.raises(TransportError, match="call recv_tensor"):
            me.recv("a", 0, timeout=30)
        found, into = receives(me), torch.zeros(2)
        me.recv_tensor(into, "a", 0, timeout=30)
        return found, into.tolist(), me.recv("a", 0, timeout=30), receives(me)

    a, b = two
    a.run(send_tensor)
    assert b.run(recv_tensor) == ([], [1.0, 1.0], "later", [0])


def test_a_forked_child_has_no_queue_to_use(two):
    def fork(me):
        return in_a_child(lambda: me.send("child", "b", 0)), sends(me)

    a, b = two
    said, left = a.run(fork)
    assert "TransportError" in said
    assert left == [0]
    with pytest.raises(ShoalTimeoutError):
        b.run(lambda me: me.recv("a", 0, timeout=0.1))


def test_a_successor_of_the_receiver_is_sent_to(two, crew):
    a, b = two
    b.kill()
    successor = crew.member("b:0")

    def send_late(me):
        time.sleep(2 * LOOK_S)
        return send_two(me)

    assert a.run(send_late) == [0]
    assert successor.run(recv_two) == [0]
