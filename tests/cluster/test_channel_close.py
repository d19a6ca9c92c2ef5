"""The end of a channel: closing, draining, iterating, deleting, and reuse of its name."""

import asyncio
import threading

import pytest

from shoal import Channel
from shoal.errors import (
    ChannelClosed,
    ChannelError,
    ChannelExistsError,
    ChannelNotFoundError,
    PeerLostError,
)
from support.processes import DEADLINE_S, until

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "ray"], indirect=True)
pytestmark = pytest.mark.ray


@everywhere
def test_closing_ends_every_wait_and_leaves_what_is_there(channel):
    one = channel(maxsize=1, private=True)
    one.put("left", key="full")
    errors = []

    def waits(call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except ChannelError as error:
            errors.append(type(error))

    threads = [
        threading.Thread(target=waits, args=(one.get, "empty")),
        threading.Thread(target=waits, args=(one.get_many, 3, "empty")),
        threading.Thread(target=waits, args=(one.get_batch, 9, "empty")),
        threading.Thread(target=waits, args=(one.put, "late", 0, "full")),
    ]
    for thread in threads:
        thread.start()
    works = [one.get("empty", async_op=True), one.put("later", key="full", async_op=True)]
    threads[0].join(0.2)
    one.close()
    for thread in threads:
        thread.join(DEADLINE_S)
    for work in works:
        with pytest.raises(ChannelClosed):
            work.wait(timeout=DEADLINE_S)
    assert errors == [ChannelClosed] * 4
    for put in (one.put, one.put_nowait):
        with pytest.raises(ChannelClosed, match="closed"):
            put("late")
    with pytest.raises(ChannelClosed):
        one.put("late", async_op=True).wait(timeout=DEADLINE_S)
    assert one.get("full") == "left"
    for get in (one.get, one.get_nowait):
        with pytest.raises(ChannelClosed):
            get("full")


@everywhere
def test_iterating_ends_with_the_channel(channel):
    one = channel(private=True)
    one.put_many(range(3))
    one.put_many("ab", key="other")
    seen = iter(one)
    assert next(seen) == 0
    one.close()
    assert list(seen) == [1, 2]
    assert list(one) == []
    assert list(one.items("other")) == ["a", "b"]


@everywhere
def test_iterating_waits_for_items_and_for_the_end(channel):
    one = channel(maxsize=2, private=True)

    def produce():
        for n in range(10):
            one.put(n)
        one.close()

    thread = threading.Thread(target=produce)
    thread.start()
    assert list(one) == list(range(10))
    thread.join()


@everywhere
def test_iterating_in_an_event_loop(channel):
    one = channel(maxsize=2, private=True)

    async def produce():
        for n in range(10):
            await one.put(n, async_op=True)
        one.close()

    async def consume():
        producing = asyncio.ensure_future(produce())
        seen = [item async for item in one]
        await producing
        return seen

    assert asyncio.run(consume()) == list(range(10))


@everywhere
def test_drain_takes_what_is_there_and_does_not_wait(channel, key):
    one = channel()
    assert one.drain(key) == []
    one.put_many(range(10), key=key)
    one.put("other", key=(key, "other"))
    assert one.drain(key) == list(range(10))
    assert one.drain((key, "other")) == ["other"]


@everywhere
def test_closing_twice_is_closing(channel):
    one = channel(private=True)
    one.close()
    one.close()
    one.delete()
    with pytest.raises(ChannelClosed):
        one.get(timeout=DEADLINE_S)


def close(channel):
    channel.close()


def test_a_worker_can_end_the_waits_of_others(channel, peers):
    one = channel(private=True)
    pending = one.get(async_op=True)
    peers.run(0, close, one)
    with pytest.raises(ChannelClosed):
        pending.wait(timeout=DEADLINE_S)


def test_the_name_is_free_once_nothing_is_left(channel):
    one = channel(private=True)
    name = one.name
    one.put("left")
    one.close()
    assert Channel.connect(name).get(timeout=DEADLINE_S) == "left"
    fresh = channel(name=name, maxsize=2, private=True)
    fresh.put("new")
    # A handle of the former channel does not see the new one.
    with pytest.raises(ChannelClosed):
        one.put("stale")
    with pytest.raises(ChannelClosed):
        one.get(timeout=DEADLINE_S)
    assert fresh.drain() == ["new"]


def get(channel):
    return channel.get(timeout=DEADLINE_S)


def test_deleting_throws_away_and_frees_the_name_at_once(channel, peers):
    one = channel(private=True)
    name = one.name
    one.put_many(range(5))
    peers.run(0, Channel.qsize, one)
    one.delete()
    with pytest.raises(ChannelNotFoundError):
        Channel.connect(name)
    with pytest.raises(ChannelClosed):
        one.put("late")
    fresh = channel(name=name, private=True)
    assert fresh.empty()
    # A process that has not opened it before can no longer find it.
    with pytest.raises(ChannelClosed):
        peers.run(1, get, one)
    fresh.put("new")
    assert fresh.drain() == ["new"]


@pytest.mark.parametrize("transport", ["local"], indirect=True)
def test_deleting_a_local_channel_throws_away(channel):
    one = channel()
    one.put("a")
    one.delete()
    assert one.qsize() == 0
    with pytest.raises(ChannelClosed):
        one.get(timeout=DEADLINE_S)


def test_a_channel_that_others_drain_ends_by_itself(channel):
    one = channel(private=True)
    one.put("left")
    one.close()
    with pytest.raises(ChannelExistsError, match="closed and still holds items"):
        Channel.create(one.name, 9)
    assert one.get(timeout=DEADLINE_S) == "left"

    def gone():
        try:
            Channel.connect(one.name)
        except ChannelNotFoundError:
            return True
        except PeerLostError:  # the actor ended during the call
            return False
        return False

    until(gone)
