"""`Queue.displace`: making room in a full shared-memory queue by dropping the oldest messages."""

import contextlib

import numpy as np
import pytest

from shoal.errors import ChannelClosed, ChannelFull, ShoalTypeError
from shoal.queues.settings import DROPPING
from shoal.queues.shared import put_now
from support.in_thread import in_thread
from support.processes import DEADLINE_S, until


def dropped(session):
    return session.stats()["dropped_messages"]


def test_only_a_full_queue_loses_messages(session):
    queue = session.queue("a", maxsize=3)
    for number in range(3):
        assert queue.displace(all=True) == 0
        queue.put(number)
    assert queue.displace() == 1
    assert queue.displace() == 0
    queue.put(3)
    assert queue.get_many(9, timeout=0) == [1, 2, 3]
    queue.put_many(range(3))
    assert queue.displace(all=True) == 3
    assert queue.empty()
    assert dropped(session) == 4
    assert session.stats()["lost_messages"] == 0


def test_the_bound_of_a_queue_without_maxsize_is_the_backlog(shm, place):
    with shm.Session.create(dir=place, backlog=2) as session:
        queue = session.queue("a")
        queue.put_many([1, 2])
        assert queue.displace() == 1
        assert queue.get() == 2


def test_bytes_do_not_make_it_full_and_neither_does_the_close(session):
    queue = session.queue("a", maxsize=2, max_bytes=1000)
    queue.put(bytes(900))
    assert queue.displace(all=True) == 0
    queue.put(b"")
    queue.close()
    assert not queue.full()
    assert queue.displace(all=True) == 0
    assert queue.qsize() == 2


@pytest.mark.parametrize("policy", DROPPING)
def test_a_put_that_may_drop_messages_is_refused_where_bytes_are_missing(session, policy):
    queue = session.queue("a", maxsize=2, max_bytes=1000)
    queue.put(bytes(2000))  # alone it may have more
    with pytest.raises(ChannelFull, match="max_bytes=1000"):
        put_now(queue, b"", 0, policy)
    assert queue.qsize() == 1


def test_memory_of_what_is_dropped_is_free_at_once(session):
    queue = session.queue("a", maxsize=2)
    for _ in range(2):
        queue.put(np.zeros(200_000))
    assert session.stats()["bytes_in_use"] >= 3_200_000
    assert queue.displace(all=True) == 2
    stats = session.stats()
    assert (stats["bytes_in_use"], stats["descriptors_in_use"], stats["messages"]) == (0, 0, 0)
    queue.put(np.ones(3))
    assert queue.get().tolist() == [1, 1, 1]


def test_a_put_that_waits_for_room_is_woken(session):
    queue = session.queue("a", maxsize=1)
    queue.put(0)
    put = in_thread(queue.put, 1)
    until(queue.displace)
    put.result(DEADLINE_S)
    assert queue.get(timeout=0) == 1


@pytest.mark.nightly
def test_each_message_is_dropped_or_taken_once_in_any_race(session):
    queue = session.queue("a", maxsize=4)
    rounds, taken = 500, []

    def displaces(**options):
        count = 0
        while not queue.closed:
            count += queue.displace(**options)
        return count

    def takes():
        with contextlib.suppress(ChannelClosed):
            while True:
                taken.append(queue.get(timeout=DEADLINE_S))

    displacers = [in_thread(displaces, all=every) for every in (False, True)]
    taker = in_thread(takes)
    for number in range(rounds):
        queue.put(number, timeout=DEADLINE_S)
    queue.close()
    taker.result(DEADLINE_S)
    assert dropped(session) == sum(displacer.result(DEADLINE_S) for displacer in displacers)
    assert len(taken) + dropped(session) == rounds
    assert taken == sorted(taken)


def test_all_is_a_bool(session):
    queue = session.queue("a", maxsize=1)
    queue.put(0)
    with pytest.raises(ShoalTypeError) as error:
        queue.displace(1)
    assert str(error.value) == "all=1: expected True or False"
    assert queue.qsize() == 1
