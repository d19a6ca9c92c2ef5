"""Leased messages of a shared-memory queue that their consumer gives back."""

import os

import numpy as np
import pytest

from shoal.errors import ChannelClosed, ChannelEmpty, ShoalValueError
from support.in_thread import in_thread
from support.processes import DEADLINE_S, in_a_child, killed


def test_it_is_delivered_again_at_the_end_to_any_consumer(session):
    queue = session.queue("a")
    queue.put_many(["first", "second"])
    message = queue.get(timeout=0, lease=True)
    message.give_back()
    message.give_back()
    message.ack()
    assert queue.qsize() == 2
    with pytest.raises(ShoalValueError) as error:
        _ = message.value
    assert str(error.value) == "the message was given back"
    assert queue.get(timeout=0) == "second"
    again = queue.get(timeout=0, lease=True)
    assert (again.value, again.redelivered) == ("first", True)
    again.ack()
    again.give_back()
    assert again.value == "first"
    assert queue.empty()
    assert session.stats()["descriptors_in_use"] == 0


def test_within_a_with_block(session):
    queue = session.queue("a")
    queue.put(1)
    with queue.get(timeout=0, lease=True) as message:
        message.give_back()
    assert queue.get(timeout=0) == 1


def test_a_lease_keeps_its_message_when_the_session_is_dropped(session, start, line):
    program = (
        "import sys\nfrom shoal import shm\n"
        "message = shm.Session.attach(sys.argv[1]).queue('a').get(timeout=20, lease=True)\n"
        "print(message.value, flush=True)\ninput()\n"
        "message.ack()\nprint('done', flush=True)\n"
    )
    queue = session.queue("a")
    queue.put("item")
    consumer = start(program, session.token)
    assert line(consumer) == "item"
    session.sweep()
    assert queue.empty()
    consumer.stdin.write("\n")
    consumer.stdin.flush()
    assert line(consumer) == "done"
    assert queue.empty()


def test_large_arrays_keep_their_memory(session):
    queue = session.queue("a")
    queue.put(np.arange(100_000.0))
    for _ in range(5):
        message = queue.get(timeout=0, lease=True)
        assert message.value.sum() == 4999950000
        message.give_back()
        del message
    assert queue.get(timeout=0).sum() == 4999950000
    assert session.stats()["bytes_in_use"] == 0


def test_it_goes_into_a_full_or_closed_queue_and_wakes_a_waiting_get(session):
    queue = session.queue("a", maxsize=1)
    queue.put(0)
    message = queue.get(timeout=0, lease=True)
    queue.put(1)
    message.give_back()
    assert queue.qsize() == 2
    assert queue.full()
    assert queue.get_many(2, timeout=0) == [1, 0]
    queue.put(2)
    message = queue.get(timeout=0, lease=True)
    got = in_thread(queue.get)
    message.give_back()
    assert got.result(DEADLINE_S) == 2
    queue.put(4)
    message = queue.get(timeout=0, lease=True)
    queue.close()
    with pytest.raises(ChannelClosed):
        queue.get(timeout=0)
    message.give_back()
    assert queue.get(timeout=0) == 4
    with pytest.raises(ChannelClosed):
        queue.get(timeout=0)


def test_where_there_is_no_room_at_all_it_comes_as_soon_as_there_is(session):
    # A ring of 64 slots, one of which is reserved for the end.
    queue = session.queue("a", maxsize=63)
    queue.put_many(range(63))
    messages = queue.get_many(2, timeout=0, lease=True)
    queue.put_many([63, 64])
    for message in messages:
        message.give_back()
    session.sweep()
    assert [queue.get_nowait() for _ in range(63)] == list(range(2, 65))
    rest = sorted(queue.get(timeout=DEADLINE_S) for _ in range(2))
    assert rest == [0, 1]
    with pytest.raises(ChannelEmpty):
        queue.get_nowait()
    assert session.stats()["descriptors_in_use"] == 0


def test_threads_that_give_back_and_one_that_sweeps_lose_and_double_nothing(session):
    queue = session.queue("a", maxsize=63)
    queue.put_many(range(63))
    rounds, busy = 200, [True]

    def gives_back():
        for _ in range(rounds):
            with queue.get(DEADLINE_S, lease=True) as message:
                message.give_back()

    def fills_and_sweeps():
        while busy:
            with queue.get(DEADLINE_S, lease=True) as message:
                session.sweep()
                message.give_back()

    givers = [in_thread(gives_back) for _ in range(3)]
    sweeper = in_thread(fills_and_sweeps)
    for giver in givers:
        giver.result(DEADLINE_S)
    busy.clear()
    sweeper.result(DEADLINE_S)
    session.sweep()
    assert sorted(queue.get_many(99, timeout=0)) == list(range(63))
    assert session.stats()["descriptors_in_use"] == 0


def test_a_child_has_nothing_to_give_back(session):
    queue = session.queue("a")
    queue.put(1)
    message = queue.get(timeout=0, lease=True)
    text = f"give_back: the message was leased by process {os.getpid()}, not by this one"
    assert text in in_a_child(message.give_back)
    assert queue.empty()
    message.give_back()
    assert queue.get(timeout=0) == 1


def test_leases_of_several_of_a_process_that_dies_are_delivered_again(session, start, line):
    program = (
        "import sys, time\nfrom shoal import shm\n"
        "session = shm.Session.attach(sys.argv[1])\nqueue = session.queue('a')\n"
        "many = queue.get_many(3, timeout=20, lease=True)\n"
        "batch = queue.get_batch(5, timeout=20, least=2, lease=True)\n"
        "many[0].give_back()\nmany[1].ack()\n"
        "print(len(many), len(batch), flush=True)\ntime.sleep(60)\n"
    )
    queue = session.queue("a")
    queue.put_many(range(5), [1] * 5)
    victim = start(program, session.token)
    assert line(victim) == "3 2"
    killed(victim)
    session.sweep()
    assert queue.get(timeout=0) == 0
    again = queue.get_many(9, timeout=0, lease=True)
    assert {message.value for message in again} == {2, 3, 4}
    assert all(message.redelivered for message in again)
    for message in again:
        message.ack()
