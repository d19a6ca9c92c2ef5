"""Asynchronous puts to another node that wait behind others: their deadlines, and memory."""

import gc
import math
import threading
import time
import weakref

import pytest

from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTimeoutError
from shoal.queues.protocol import ONE
from support.channel_actor import held_up
from support.processes import DEADLINE_S, until


@pytest.fixture
def full(actors):
    """The queues of another node, whose only place is taken."""
    queues = actors.start(maxsize=1).way("lane")
    queues.put("k", "first", 0, Deadline(DEADLINE_S))
    return queues


def begin(queues, *seconds):
    """Begin puts of 1, 2, ... with these timeouts, which go together."""
    with held_up():
        return [queues.start_put("k", n, 0, Deadline(s)) for n, s in enumerate(seconds, 1)]


def test_a_put_is_late_although_the_one_before_it_waits_on(actors, full):
    patient, hasty, last = begin(full, math.inf, 0.3, math.inf)
    with pytest.raises(ShoalTimeoutError, match=r"put: no room in .* key 'k' within 0.3 s"):
        hasty.result(DEADLINE_S)
    assert not patient.done()
    here = actors.way("shm")
    got = [here.take("k", ONE, Deadline(DEADLINE_S)) for _ in range(3)]
    assert got == ["first", 1, 3]
    assert [put.result(DEADLINE_S) for put in (patient, last)] == [None, None]


def test_a_put_without_time_is_made_if_there_is_room(actors):
    queues = actors.start().way("lane")
    for _ in range(20):
        assert queues.start_put("k", 0, 0, Deadline(0)).result(DEADLINE_S) is None
        assert queues.start_take("k", ONE, Deadline(0)).result(DEADLINE_S).value == 0


@pytest.fixture
def slow(full, monkeypatch):
    """Hold up the calls that put several messages; the fixture's events say when one is sent."""
    sent, goes_on = threading.Event(), threading.Event()
    put_now = full._lane.put_now

    def slowly(*arguments):
        sent.set()
        assert goes_on.wait(DEADLINE_S)
        return put_now(*arguments)

    monkeypatch.setattr(full._lane, "put_now", slowly)
    return sent, goes_on


@pytest.mark.parametrize("room", [0, 1])
def test_a_put_whose_time_ends_in_the_middle_of_a_call_is_not_sent_again(actors, full, slow, room):
    sent, goes_on = slow
    patient, hasty = begin(full, math.inf, 0.2)
    assert sent.wait(DEADLINE_S)
    until(lambda: hasty.deadline.expired, DEADLINE_S)
    here = actors.way("shm")
    got = [here.take("k", ONE, None) for _ in range(room)]
    assert not hasty.done()  # it may be in the queue already
    goes_on.set()
    with pytest.raises(ShoalTimeoutError):
        hasty.result(DEADLINE_S)
    got += [here.take("k", ONE, Deadline(DEADLINE_S)) for _ in range(2 - room)]
    assert patient.result(DEADLINE_S) is None
    assert (got, full.qsize("k")) == (["first", 1], 0)


def test_a_put_in_a_call_that_is_not_answered_ends_soon_after_its_time(actors, full, slow, timing):
    timing("channel", ping_s=0.1, answer_s=0.1)
    sent, goes_on = slow
    patient, hasty = begin(full, math.inf, 0.2)
    assert sent.wait(DEADLINE_S)
    silent = r"does not answer: .* may be done or not"
    with actors.standing_still(), pytest.raises(PeerLostError, match=silent):
        hasty.result(DEADLINE_S)
    assert not patient.done()
    assert not patient.cancel()
    goes_on.set()
    until(patient.cancelled, DEADLINE_S)


def test_a_put_and_its_message_are_not_kept_until_the_deadline(actors):
    put = actors.start().way("lane").start_put("k", 0, 0, Deadline(3600))
    gone = threading.Event()
    weakref.finalize(put, gone.set)
    put.result(DEADLINE_S)
    assert put.parcel is None
    del put
    end = time.monotonic() + DEADLINE_S
    while not gone.wait(0.05) and time.monotonic() < end:
        gc.collect()
    assert gone.is_set()
