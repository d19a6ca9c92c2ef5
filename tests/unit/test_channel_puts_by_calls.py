"""Puts to a channel on another node: the bytes that travel, and cancellation."""

import asyncio
import importlib
import threading
from concurrent.futures import CancelledError

import pytest

from shoal.deadline import Deadline
from shoal.errors import PeerLostError
from shoal.shm.keys import canonical
from shoal.transport.client import new_ticket
from shoal.transport.wire import pack
from support.channel_host import DEADLINE_S, held_up
from support.processes import until

ITEM = bytes(8000)
ITEMS = 200
SMALL = 5
"""Maximum number of times that an item may travel, on average; the first call may find no room."""


@pytest.fixture
def sent(channel, monkeypatch):
    """Record the bytes of each call."""
    calls = importlib.import_module(f"{channel.remote.__package__}.calls")
    sizes, pack = [], calls.pack

    def counted(value):
        packed = pack(value)
        sizes.append(len(packed))  # none is large enough to be sent in parts
        return packed

    monkeypatch.setattr(calls, "pack", counted)
    return sizes


@pytest.mark.parametrize("how", ["put_many", "async"])
def test_what_is_refused_does_not_travel_again_and_again(hosts, sent, channel, how):
    queues, here = hosts.start(maxsize=2).way("ray"), hosts.way("shm")

    def consume():
        for _ in range(ITEMS):
            here.take("k", channel.want.ONE, Deadline(DEADLINE_S))

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


def test_many_go_with_few_calls_where_there_is_room(hosts, sent):
    queues = hosts.start().way("ray")
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
    work_of = importlib.import_module(f"{channel.remote.__package__}.work").work_of

    def start(queues, item, seconds=DEADLINE_S):
        return work_of(queues.start_put("k", item, 0, Deadline(seconds)), "put")

    return start


def held_by(hosts, channel):
    queues = hosts.way("shm")
    return [queues.take("k", channel.want.ONE, None) for _ in range(queues.qsize("k"))]


def was_sent(hosts, calls):
    until(lambda: hosts.handle.called.count("serve") == calls, DEADLINE_S)


def test_a_put_that_was_not_sent_is_cancelled(hosts, channel, put):
    queues = hosts.start().way("ray")
    with held_up():
        first, second = put(queues, 1), put(queues, 2)
        assert first.cancel() is True
    second.wait(DEADLINE_S)
    with pytest.raises(CancelledError):
        first.wait(DEADLINE_S)
    assert held_by(hosts, channel) == [2]


def test_a_put_that_waits_at_the_host_ends_when_that_has_heard_of_it(hosts, channel, put):
    queues = hosts.start(maxsize=1).way("ray")
    queues.put("k", 0, 0, None)
    work = put(queues, 1)
    until(lambda: hosts.worker._waiting, DEADLINE_S)
    work.cancel()  # returns True only if the host has already answered
    with pytest.raises(CancelledError):
        work.wait(DEADLINE_S)
    assert held_by(hosts, channel) == [0]
    put(queues, 2).wait(DEADLINE_S)
    assert held_by(hosts, channel) == [2]


@pytest.mark.parametrize("how", ["cancel", "its task"])
def test_a_put_that_came_before_its_cancellation_is_done(hosts, channel, put, how):
    queues = hosts.start().way("ray")

    async def cancel_its_task(work):
        task = asyncio.create_task(work.async_wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with hosts.standing_still():
        work = put(queues, 1)
        was_sent(hosts, 1)
        if how == "cancel":
            assert work.cancel() is False
        else:
            asyncio.run(cancel_its_task(work))
    assert work.wait(DEADLINE_S) is None
    assert held_by(hosts, channel) == [1]


def test_a_put_of_which_nobody_hears_is_neither_done_nor_cancelled(hosts, put):
    queues = hosts.start().way("ray")
    with hosts.standing_still():
        work = put(queues, 1, 0.2)
        was_sent(hosts, 1)
        assert work.cancel() is False
        with pytest.raises(PeerLostError, match="may be done or not"):
            work.wait(DEADLINE_S)


def test_of_puts_that_go_together_one_is_cancelled_that_had_no_room(hosts, channel, put):
    queues = hosts.start(maxsize=2).way("ray")
    queues.put("k", 0, 0, None)
    with hosts.standing_still():
        with held_up():
            works = [put(queues, n) for n in (1, 2, 3)]
        was_sent(hosts, 2)
        assert [work.cancel() for work in works[:2]] == [False, False]
    works[0].wait(DEADLINE_S)
    with pytest.raises(CancelledError):
        works[1].wait(DEADLINE_S)
    assert held_by(hosts, channel) == [0, 1]
    works[2].wait(DEADLINE_S)
    assert held_by(hosts, channel) == [3]


def test_a_cancellation_that_overtakes_its_put_is_not_forgotten(hosts, channel):
    hosts.start(maxsize=1).way("ray").put("k", 0, 0, None)
    ticket, key = new_ticket(), (canonical("k"), "'k'")
    hosts.call("cancel", pack(ticket))
    parcel = channel.shm.Parcel.of(1)
    assert "no room" in hosts.ask("put", key, parcel, 0, 10 * DEADLINE_S, ticket)
    assert held_by(hosts, channel) == [0]
