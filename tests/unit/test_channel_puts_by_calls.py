"""Puts to a channel on another node: the bytes that travel, and cancellation."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from shoal.channel.actor_protocol import new_ticket, pack
from shoal.deadline import Deadline
from shoal.errors import PeerLostError
from shoal.shm.keys import canonical
from support.channel_actor import DEADLINE_S, held_up
from support.processes import until

pytestmark = pytest.mark.usefixtures("by_calls")

ITEM = bytes(8000)
ITEMS = 200
SMALL = 5
"""Maximum number of times that an item may travel, on average; the first call may find no room."""


@pytest.fixture
def sent(channel, monkeypatch):
    """Record the bytes of each call."""
    calls = channel.actor_calls
    sizes, pack = [], calls.pack

    def counted(value):
        packed = pack(value)
        sizes.append(len(packed))  # none is large enough to be sent in parts
        return packed

    monkeypatch.setattr(calls, "pack", counted)
    return sizes


@pytest.mark.parametrize("how", ["put_many", "async"])
def test_what_is_refused_does_not_travel_again_and_again(actors, sent, channel, how):
    queues, here = actors.start(maxsize=2).way("ray"), actors.way("shm")

    def consume():
        for _ in range(ITEMS):
            here.take("k", channel.protocol.ONE, Deadline(DEADLINE_S))

    consumer = threading.Thread(target=consume)
    consumer.start()
    if how == "put_many":
        queues.put_many("k", [ITEM] * ITEMS, [0] * ITEMS, Deadline(DEADLINE_S))
    else:
        with held_up():  # so that they go in one call at first
            puts = [queues.start_put("k", ITEM, 0, Deadline(DEADLINE_S)) for _ in range(ITEMS)]
        for put in puts:
            put.result(DEADLINE_S)
    consumer.join(DEADLINE_S)
    assert sum(sent) < SMALL * ITEMS * len(ITEM)


def test_many_go_with_few_calls_where_there_is_room(actors, sent):
    queues = actors.start().way("ray")
    queues.put_many("k", [0] * ITEMS, [0] * ITEMS, Deadline(DEADLINE_S))
    assert len(sent) == 1
    with held_up():
        puts = [queues.start_put("k", 0, 0, Deadline(DEADLINE_S)) for _ in range(ITEMS)]
    for put in puts:
        put.result(DEADLINE_S)
    assert len(sent) == 2


# Cancelling.


@pytest.fixture
def put(channel):
    """Start a put as a channel does, and return its work."""
    work_of = channel.wait.work_of

    def start(queues, item, seconds=DEADLINE_S):
        return work_of(queues.start_put("k", item, 0, Deadline(seconds)), "put")

    return start


def held_by(actors, channel):
    queues = actors.way("shm")
    return [queues.take("k", channel.protocol.ONE, None) for _ in range(queues.qsize("k"))]


def was_sent(actors, calls):
    until(lambda: actors.handle.called.count("serve") == calls, DEADLINE_S)


def test_a_put_that_was_not_sent_is_cancelled(actors, channel, put):
    queues = actors.start().way("ray")
    with held_up():
        first, second = put(queues, 1), put(queues, 2)
        assert first.cancel() is True
    second.wait(DEADLINE_S)
    with pytest.raises(CancelledError):
        first.wait(DEADLINE_S)
    assert held_by(actors, channel) == [2]


def test_a_put_that_waits_at_the_actor_ends_when_that_has_heard_of_it(actors, channel, put):
    queues = actors.start(maxsize=1).way("ray")
    queues.put("k", 0, 0, None)
    work = put(queues, 1)
    until(lambda: actors.worker._waiting, DEADLINE_S)
    work.cancel()  # returns True only if the actor has already answered
    with pytest.raises(CancelledError):
        work.wait(DEADLINE_S)
    assert held_by(actors, channel) == [0]
    put(queues, 2).wait(DEADLINE_S)
    assert held_by(actors, channel) == [2]


@pytest.mark.parametrize("how", ["cancel", "its task"])
def test_a_put_that_came_before_its_cancellation_is_done(actors, channel, put, how):
    queues = actors.start().way("ray")

    async def cancel_its_task(work):
        task = asyncio.create_task(work.async_wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with actors.standing_still():
        work = put(queues, 1)
        was_sent(actors, 1)
        if how == "cancel":
            assert work.cancel() is False
        else:
            asyncio.run(cancel_its_task(work))
    assert work.wait(DEADLINE_S) is None
    assert held_by(actors, channel) == [1]


@pytest.mark.nightly
def test_a_put_without_an_answer_is_neither_done_nor_cancelled(actors, put):
    queues = actors.start().way("ray")
    with actors.standing_still():
        work = put(queues, 1, 0.2)
        was_sent(actors, 1)
        assert work.cancel() is False
        with pytest.raises(PeerLostError, match="may be done or not"):
            work.wait(DEADLINE_S)


def test_of_puts_that_go_together_one_is_cancelled_that_had_no_room(actors, channel, put):
    queues = actors.start(maxsize=2).way("ray")
    queues.put("k", 0, 0, None)
    with actors.standing_still():
        with held_up():
            works = [put(queues, n) for n in (1, 2, 3)]
        was_sent(actors, 2)
        assert [work.cancel() for work in works[:2]] == [False, False]
    works[0].wait(DEADLINE_S)
    with pytest.raises(CancelledError):
        works[1].wait(DEADLINE_S)
    assert held_by(actors, channel) == [0, 1]
    works[2].wait(DEADLINE_S)
    assert held_by(actors, channel) == [3]


def test_a_cancellation_that_overtakes_its_put_is_not_forgotten(actors, channel):
    actors.start(maxsize=1).way("ray").put("k", 0, 0, None)
    ticket, key = new_ticket(), (canonical("k"), "'k'")
    actors.call("cancel", pack(ticket))
    parcel = channel.shm.Parcel.of(1)
    assert actors.ask("put", key, parcel, 0, 10 * DEADLINE_S, ticket) is None
    assert held_by(actors, channel) == [0]
