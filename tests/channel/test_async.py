"""Channel puts and gets with `async_op=True`: order, several event loops, and cancellation."""

import asyncio
import concurrent.futures
import contextlib
import gc
import random
import threading
import time

import pytest

from shoal.errors import ShoalTimeoutError
from support.in_thread import in_thread
from support.processes import DEADLINE_S, until

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)
pytestmark = everywhere

ROUNDS = 40


def test_gets_are_served_in_the_order_in_which_they_were_started(channel, key):
    one = channel()
    gets = [one.get(key, async_op=True) for _ in range(20)]
    for n in range(20):
        one.put(n, key=key)
    random.Random(1).shuffle(order := list(range(20)))
    assert {n: gets[n].wait(timeout=DEADLINE_S) for n in order} == {n: n for n in order}


def test_puts_arrive_in_the_order_of_the_calls_whichever_kind_they_are(channel, key):
    one = channel(maxsize=4)

    def consume():
        return [one.get(key, timeout=DEADLINE_S) for _ in range(60)]

    consuming, works = in_thread(consume), []
    for start in range(0, 60, 3):
        works += [
            one.put(start, key=key, async_op=True),
            one.put(start + 1, key=key, async_op=True),
        ]
        one.put(start + 2, key=key, timeout=DEADLINE_S)
    assert consuming.result(DEADLINE_S) == list(range(60))
    assert all(work.done() for work in works)


def test_one_work_is_awaited_by_two_loops(channel, key):
    one = channel()
    work = one.get(key, async_op=True)

    async def wait():
        return await work

    loops = [in_thread(asyncio.run, wait()) for _ in range(2)]
    one.put("a", key=key)
    assert [loop.result(DEADLINE_S) for loop in loops] == ["a", "a"]
    assert one.empty(key)


def test_many_wait_at_once_and_on_the_channels_node_without_threads(channel, key, transport):
    one = channel()
    threads = threading.active_count()
    gets = [one.get((key, n), async_op=True) for n in range(200)]
    if transport != "lane":
        assert threading.active_count() - threads < 20
    for n in reversed(range(200)):
        one.put(n, key=(key, n))
    assert [work.wait(timeout=DEADLINE_S) for work in gets] == list(range(200))


def test_a_get_that_is_cancelled_while_it_waits_takes_nothing(channel, key):
    one = channel()
    first, second = one.get(key, async_op=True), one.get(key, async_op=True)
    assert first.cancel()
    one.put("a", key=key)
    assert second.wait(timeout=DEADLINE_S) == "a"
    with pytest.raises(concurrent.futures.CancelledError):
        first.wait(timeout=DEADLINE_S)


def test_a_get_whose_item_arrives_with_the_cancellation_loses_nothing(channel, key):
    one = channel()
    choice = random.Random(2)

    async def once(n):
        waiting = asyncio.ensure_future(one.get(key, async_op=True).async_wait())
        await asyncio.sleep(0)
        putting = in_thread(one.put, n, 0, key)
        await asyncio.sleep(choice.uniform(0, 0.004))
        waiting.cancel()
        try:
            got = [await waiting]
        except asyncio.CancelledError:
            got = []
        await asyncio.wrap_future(putting)
        return got

    for n in range(ROUNDS):
        got = asyncio.run(once(n))
        if not got:
            got = [one.get(key, timeout=DEADLINE_S)]
        assert got == [n]
    assert one.empty(key)


def test_each_item_is_delivered_once_after_cancelled_gets(channel, key):
    one = channel()
    choice, items = random.Random(3), 150

    async def give_up(work, seconds, how):
        """Wait for a get, but for a short time only; return what it brought."""
        if how == "time":
            return [await asyncio.wait_for(work.async_wait(), seconds)]
        waiting = asyncio.ensure_future(work.async_wait())
        if how == "before it starts":
            waiting.cancel()
        await asyncio.sleep(seconds)
        if how == "work":
            work.cancel()
        elif how == "task":
            waiting.cancel()
        return [await waiting]

    async def consume():
        got = []
        while not putting.done():
            how = choice.choice(["time", "work", "task", "before it starts"])
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                got += await give_up(one.get(key, async_op=True), choice.uniform(0, 0.01), how)
        return got

    def produce():
        for n in range(items):
            one.put(n, key=key)
            time.sleep(0.002)  # so that gets end before, during and after a put

    putting = in_thread(produce)
    got = asyncio.run(consume())
    while len(got) < items:
        got.append(one.get(key, timeout=DEADLINE_S))
    assert sorted(got) == list(range(items))
    assert one.empty(key)


def test_a_get_that_was_done_before_its_awaiting_was_cancelled_loses_nothing(channel, key):
    one = channel()

    async def cancelled():
        work = one.get(key, async_op=True)
        waiting = asyncio.ensure_future(work.async_wait())
        await asyncio.sleep(0)
        one.put("a", key=key)
        while not work.done():  # noqa: ASYNC110  (a work has no event)
            await asyncio.sleep(0)
        waiting.cancel()  # its result is already scheduled on the loop
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())
    assert one.get(key, timeout=DEADLINE_S) == "a"


def test_a_batch_that_is_cancelled_leaves_all_its_items(channel, key):
    one = channel()

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.get_batch(4, key, async_op=True).async_wait(), 0.2)

    one.put_many([0, 1], [1, 1], key=key)
    asyncio.run(give_up())
    one.put_many([2, 3], [1, 1], key=key)
    assert one.get_batch(4, key, timeout=DEADLINE_S) == [0, 1, 2, 3]


def test_a_put_that_is_cancelled_is_not_in_the_channel(channel, key):
    one = channel(maxsize=1)
    one.put(0, key=key)
    works = [one.put(n, key=key, async_op=True) for n in range(1, 4)]
    assert works[1].cancel()
    assert [one.get(key, timeout=DEADLINE_S) for _ in range(3)] == [0, 1, 3]
    works[0].wait(timeout=DEADLINE_S)
    works[2].wait(timeout=DEADLINE_S)
    assert one.empty(key)


def test_an_item_of_a_dropped_work_returns_to_a_closed_channel(channel, key):
    one = channel(private=True)
    one.put("a", key=key)
    work = one.get(key, async_op=True)
    until(work.done)
    one.close()
    del work
    gc.collect()
    until(lambda: one.qsize(key) == 1)
    assert one.get(key, timeout=DEADLINE_S) == "a"


def test_a_get_that_is_dropped_while_it_waits_takes_nothing(channel, key):
    one = channel()
    one.get(key, async_op=True)
    gc.collect()
    one.put("a", key=key)
    assert one.get(key, timeout=DEADLINE_S) == "a"


def test_a_dropped_put_happens(channel, key):
    one = channel(maxsize=1)
    one.put(0, key=key)
    one.put(1, key=key, async_op=True)
    gc.collect()
    assert [one.get(key, timeout=DEADLINE_S) for _ in range(2)] == [0, 1]


def test_each_work_has_its_own_deadline(channel, key):
    one = channel()
    late, behind = one.get(key, async_op=True, timeout=0.1), one.get(key, async_op=True)
    with pytest.raises(ShoalTimeoutError, match=r"0\.1 s"):
        late.wait(timeout=DEADLINE_S)
    with pytest.raises(ShoalTimeoutError, match="still running"):
        behind.wait(timeout=0.05)
    one.put("a", key=key)
    assert behind.wait(timeout=DEADLINE_S) == "a"


def test_a_sync_get_waits_behind_the_async_ones_of_its_process(channel, key):
    one = channel()
    pending = one.get(key, async_op=True)
    timer = threading.Timer(0.1, one.put_many, (["first", "second"],), {"key": key})
    timer.start()
    assert one.get(key, timeout=DEADLINE_S) == "second"
    assert pending.wait(timeout=DEADLINE_S) == "first"
    timer.join()
