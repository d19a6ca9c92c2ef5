"""Emulated links between processes, over shared memory and over gloo."""

import os
import signal
import threading
import time

import pytest

from shoal.errors import PeerLostError
from shoal.net_emulation import EmulatedNetwork, NetEmulationConfig, NetEmulationManager
from support import payload_kinds as kinds

pytestmark = [pytest.mark.nightly, pytest.mark.process]

DELAY_S = 0.3


def links(me, delay_s=DELAY_S):
    """Give a worker the links of a job without Ray: between `a:0` and `b:0`."""
    config = NetEmulationConfig.from_cfg(
        {
            "enabled": True,
            "crossdc_pairs": [{"src": "a:0", "dst": "b:0", "delay_ms": 1000 * delay_s}],
        }
    )
    manager = NetEmulationManager(config)
    me._routes.network = EmulatedNetwork(config, lambda: manager)


def send_all_kinds(me, count):
    links(me)
    works = []
    for number in range(count):
        async_op = number % 3 == 0
        if number % 4 == 1:
            tensor = kinds.counting(9) + number
            works.append(me.send_tensor(tensor, "b", 0, async_op=async_op))
            continue
        beside = kinds.counting(40_000) if number % 4 == 2 else None
        value = (time.monotonic(), number, beside)
        works.append(me.send(value, "b", 0, async_op=async_op))
    for work in works:
        if work is not None:
            work.wait(timeout=60)
    return all(box._over_links for box in me._outboxes.values())


def recv_all_kinds(me, count):
    """Return what is wrong."""
    links(me)
    wrong = []
    for number in range(count):
        if number % 4 == 1:
            into = kinds.counting(9)
            me.recv_tensor(into, "a", 0, timeout=60)
            if not into.equal(kinds.counting(9) + number):
                wrong.append((number, into))
            continue
        sent, found, beside = me.recv("a", 0, timeout=60)
        if time.monotonic() - sent < DELAY_S or found != number:
            wrong.append((number, sent, found))
        if number % 4 == 2 and not beside.equal(kinds.counting(40_000)):
            wrong.append((number, beside))
    return wrong


def test_all_kinds_of_messages_arrive_late_and_in_order(pair):
    a, b = pair
    a.begin(send_all_kinds, 48)
    b.begin(recv_all_kinds, 48)
    assert a.end()
    assert b.end() == []


def send_some(me, count, delay_s):
    links(me, delay_s)
    for number in range(count):
        me.send(number, "b", 0, async_op=True)
        me.send_tensor(kinds.counting(9), "b", 0, async_op=True)


def recv(me, async_op):
    work = me.recv("a", 0, async_op=async_op, timeout=60)
    return work.wait(timeout=60) if async_op else work


@pytest.mark.parametrize("async_op", [False, True], ids=["recv", "async recv"])
def test_messages_on_their_way_die_with_their_sender(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    b.begin(recv, async_op)
    a.run(send_some, 3, 600.0)
    a.kill()
    with pytest.raises(PeerLostError, match="recv from a:0"):
        b.end()


def send(me, async_op):
    work = me.send(1, "b", 0, async_op=async_op, timeout=60)
    if async_op:
        work.wait(timeout=60)


@pytest.mark.parametrize("async_op", [False, True], ids=["send", "async send"])
def test_a_message_on_its_way_to_a_killed_worker_is_an_error(crew, async_op):
    a, b = crew.member("a:0"), crew.member("b:0")
    b.run(links)
    a.run(send_some, 1, 600.0)
    a.begin(send, async_op)
    b.kill()
    with pytest.raises(PeerLostError, match="send to b:0"):
        a.end()


def interrupt_a_broadcast(me):
    """Get SIGINT while a broadcast is on its way, and then broadcast something else."""
    links(me, 1.0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        me.broadcast("first", [("a", 0), ("b", 0)], timeout=60)
    return me.broadcast("second", [("a", 0), ("b", 0)], timeout=60)


def take_one_broadcast(me):
    links(me, 1.0)
    return me.broadcast(None, [("a", 0), ("b", 0)], timeout=60)


def test_ctrl_c_ends_a_broadcast_on_its_way(pair):
    a, b = pair
    a.begin(interrupt_a_broadcast)
    b.begin(take_one_broadcast)
    assert [a.end(), b.end()] == ["second"] * 2
