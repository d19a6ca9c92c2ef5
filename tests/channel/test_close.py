"""The end of a channel: closing, draining, iterating and deleting."""

import asyncio
from concurrent.futures import wait

import pytest

from shoal.errors import ChannelClosed
from support.in_thread import in_thread
from support.processes import DEADLINE_S

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)


@everywhere
def test_closing_ends_every_wait_and_leaves_the_items(channel):
    one = channel(maxsize=1, private=True)
    one.put("left", key="full")
    calls = [
        in_thread(one.get, "empty"),
        in_thread(one.get_many, 3, "empty"),
        in_thread(one.get_batch, 9, "empty"),
        in_thread(one.put, "late", 0, "full"),
    ]
    works = [one.get("empty", async_op=True), one.put("later", key="full", async_op=True)]
    wait(calls, 0.2)
    one.close()
    for work in works:
        with pytest.raises(ChannelClosed):
            work.wait(timeout=DEADLINE_S)
    assert [type(call.exception(DEADLINE_S)) for call in calls] == [ChannelClosed] * 4
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

    producer = in_thread(produce)
    assert list(one) == list(range(10))
    producer.result(DEADLINE_S)


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
def test_drain_takes_the_items_without_waiting(channel, key):
    one = channel()
    assert one.drain(key) == []
    one.put_many(range(10), key=key)
    one.put("other", key=(key, "other"))
    assert one.drain(key) == list(range(10))
    assert one.drain((key, "other")) == ["other"]


@everywhere
def test_a_second_close_does_nothing(channel):
    one = channel(private=True)
    one.close()
    one.close()
    one.delete()
    with pytest.raises(ChannelClosed):
        one.get(timeout=DEADLINE_S)


@pytest.mark.parametrize("transport", ["local"], indirect=True)
def test_deleting_a_local_channel_throws_away(channel):
    one = channel()
    one.put("a")
    one.delete()
    assert one.qsize() == 0
    with pytest.raises(ChannelClosed):
        one.get(timeout=DEADLINE_S)
