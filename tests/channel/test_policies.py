"""Policies of channels: puts to a key that already holds `maxsize` items."""

import asyncio

import pytest

from shoal.errors import ChannelExistsError, ChannelFull, ShoalValueError
from support.in_thread import in_thread
from support.processes import DEADLINE_S, until

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)


@everywhere
def test_a_key_never_holds_more_than_its_bound(channel, key):
    one = channel(maxsize=3)
    most, taken, puts = [], [], 20

    def produce():
        for n in range(puts):
            one.put(n, key=key, timeout=DEADLINE_S)
            most.append(one.qsize(key))

    producers = [in_thread(produce) for _ in range(4)]
    until(lambda: one.full(key))
    while len(taken) < 4 * puts:
        taken.append(one.get(key, timeout=DEADLINE_S))
        most.append(one.qsize(key))
    for producer in producers:
        producer.result(DEADLINE_S)
    assert max(most) <= 3
    assert sorted(taken) == sorted(list(range(puts)) * 4)


@everywhere
def test_many_puts_without_waiting_fill_a_key_exactly(channel, key):
    one = channel(maxsize=3)
    accepted, refused = [], []

    def produce(me):
        for n in range(5):
            try:
                one.put_nowait((me, n), key=key)
            except ChannelFull:
                refused.append((me, n))
            else:
                accepted.append((me, n))

    for producer in [in_thread(produce, me) for me in range(4)]:
        producer.result(DEADLINE_S)
    assert len(accepted) == one.qsize(key) == 3
    assert len(refused) == 17
    assert sorted(one.drain(key)) == sorted(accepted)


@everywhere
def test_error_raises_at_once_whatever_the_call(channel, key):
    one = channel(maxsize=2, policy="error")
    one.put_many([1, 2], key=key)
    with pytest.raises(ChannelFull, match=r"put: no room in .*maxsize=2"):
        one.put(3, key=key)
    with pytest.raises(ChannelFull):
        one.put(3, key=key, timeout=DEADLINE_S)
    with pytest.raises(ChannelFull):
        one.put_nowait(3, key=key)
    work = one.put(3, key=key, async_op=True)  # the call itself raises nothing
    with pytest.raises(asyncio.QueueFull):
        work.wait(timeout=DEADLINE_S)
    with pytest.raises(ChannelFull) as caught:
        one.put_many([3, 4], key=key)
    assert caught.value.done == 0
    assert one.drain(key) == [1, 2]


@everywhere
def test_drop_oldest_keeps_the_newest_in_order(channel, key):
    one = channel(maxsize=3, policy="drop_oldest")
    for n in range(10):
        one.put(n, key=key)
    one.put_nowait(10, key=key)
    one.put(11, key=key, async_op=True).wait(timeout=DEADLINE_S)
    assert one.drain(key) == [9, 10, 11]
    one.put_many(list(range(20)), key=key)
    assert one.drain(key) == [17, 18, 19]


@everywhere
def test_drop_oldest_drops_all_that_is_over_the_bound(channel, key):
    one = channel(maxsize=2, policy="drop_oldest")
    one.put_many([1, 2], key=key)
    lease = one.get(key=key, lease=True)
    one.put(3, key=key)
    lease.give_back()
    assert one.qsize(key) == 3
    one.put(4, key=key)
    assert one.drain(key) == [1, 4]


@everywhere
def test_keep_latest_drops_every_earlier_item(channel, key):
    one = channel(maxsize=3, policy="keep_latest")
    one.put_many([0, 1, 2], key=key)
    one.put(3, key=key)
    assert one.drain(key) == [3]
    one.put_many(list(range(8)), key=key)
    assert one.drain(key) == [6, 7]


@everywhere
def test_a_policy_that_drops_never_waits_and_keeps_the_newest_item(channel, key):
    one = channel(maxsize=1, policy="keep_latest")

    def produce(me):
        for n in range(50):
            one.put((me, n), key=key, timeout=DEADLINE_S)

    for producer in [in_thread(produce, me) for me in range(3)]:
        producer.result(DEADLINE_S)
    (last,) = one.drain(key)
    assert last[1] == 49


@everywhere
def test_the_bound_of_one_key_is_its_own(channel, key):
    one = channel(maxsize=3)
    one.create_queue((key, "narrow"), 1)
    one.put("a", key=(key, "narrow"))
    with pytest.raises(ChannelFull):
        one.put_nowait("b", key=(key, "narrow"))
    for n in range(3):
        one.put_nowait(n, key=(key, "other"))
    with pytest.raises(ChannelFull):
        one.put_nowait(3, key=(key, "other"))
    assert one.drain((key, "narrow")) == ["a"]
    assert one.drain((key, "other")) == [0, 1, 2]


@everywhere
def test_a_bound_cannot_change_once_the_key_is_used(channel, key):
    one = channel(maxsize=3)
    one.put("a", key=key)
    with pytest.raises((ChannelExistsError, ShoalValueError)):
        one.create_queue(key, 7)
    assert one.drain(key) == ["a"]


@everywhere
def test_a_policy_that_does_not_exist_is_named(channel):
    with pytest.raises(ShoalValueError, match="policy='drop_newest': expected one of block"):
        channel(policy="drop_newest")
    with pytest.raises(ShoalValueError, match="memory_policy='swap': expected one of block"):
        channel(memory_policy="swap")
