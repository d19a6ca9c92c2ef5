"""Local channels (within a process), and the works that their asynchronous operations return.

`tests/channel` shows for each transport, also this one, how puts and gets wait, end and are ordered.
"""

import asyncio
import concurrent.futures
import gc
import pickle
import signal

import pytest

from shoal.channel import Channel, LocalChannel
from shoal.collective import AsyncCollWork, AsyncFuncWork, AsyncRouteWork, AsyncWork
from shoal.errors import (
    ChannelEmpty,
    ChannelError,
    ChannelFull,
    ShoalTimeoutError,
    ShoalValueError,
)
from support.processes import until


@pytest.fixture
def channel():
    return Channel.create("local", 2, local=True)


def test_items_are_passed_as_they_are(channel):
    item = object()
    channel.put(item)
    assert channel.is_local
    assert channel.get() is item


def test_draining_ends_although_a_producer_puts_all_the_time():
    class Refilled(Channel):
        """Adds two items whenever some are taken."""

        def get_many(self, *args, **kwargs):
            items = super().get_many(*args, **kwargs)
            assert items[-1] < 100
            self.put_many([items[-1] + 1, items[-1] + 2])
            return items

    channel = Refilled.create("local", local=True)
    channel.put_many([0, 1, 2])
    assert channel.drain() == [0, 1, 2]
    assert channel.drain() == [3, 4]


MANY = 4096


def test_keys_that_hold_nothing_are_forgotten_once_there_are_many():
    channel = Channel.create("local", local=True)
    channel.put_many(range(3), key="kept")
    for n in range(2 * MANY):
        channel.put(n, key=n)
        assert channel.get(n) == n
        assert channel.stats(n).depth == 0
        with pytest.raises(ShoalTimeoutError):
            channel.get((n, "empty"), timeout=0)
    assert len(channel._local._queues) <= MANY + 1
    assert len(channel._rates._last) == MANY
    kept, last, first = (channel.stats(key) for key in ("kept", n, 0))
    assert [(one.puts, one.gets) for one in (kept, last, first)] == [(3, 0), (1, 1), (0, 0)]
    for n in range(2 * MANY):  # this many are in use
        channel.put(n, key=("used", n))
    assert {channel.stats(("used", n)).puts for n in range(2 * MANY)} == {1}
    assert len(channel._local._queues) <= 3 * MANY


def test_rates_are_those_since_the_last_time(channel):
    for _ in range(2):
        channel.put("a")
        stats = channel.stats()
    assert stats.put_rate > 0 == stats.get_rate
    assert channel.stats().put_rate == 0


def test_no_rate_is_negative_although_a_key_was_forgotten():
    channel = Channel.create("local", local=True)
    for _ in range(2):
        channel.put("a", key="k")
        channel.get("k")
    assert channel.stats("k").puts == 2
    for n in range(MANY):
        channel.put(n, key=n)
        channel.get(n)
    stats = channel.stats("k")
    assert (stats.puts, stats.gets, stats.put_rate, stats.get_rate) == (0, 0, 0, 0)


def test_a_local_channel_has_a_valid_bound_and_stays_in_its_process(channel):
    with pytest.raises(ChannelError, match="cannot leave its process"):
        pickle.dumps(channel)
    with pytest.raises(ShoalValueError, match="maxsize=-1"):
        Channel.create("c", -1, local=True)


def test_an_unbounded_channel_warns_once_at_80_percent(caplog):
    channel = Channel.create("nearly-full", capacity=10, local=True)
    for n in range(9):
        channel.put(n)
    assert caplog.text.count("more than 80 %") == 1
    channel.put(9)
    with pytest.raises(ChannelFull, match="capacity=10"):
        channel.put_nowait(10)


def test_the_older_names_of_a_local_channel():
    local = LocalChannel(1)
    local.put("a", 1, "k")
    assert (local.qsize("k"), local.full("k"), local.empty(), local.maxsize()) == (1, True, True, 1)
    with pytest.raises(ChannelFull):
        local.put("b", 0, "k", nowait=True)
    assert local.peek_all("k")[0].weight == 1
    assert local.get("k") == "a"
    with pytest.raises(ChannelEmpty):
        local.get("k", nowait=True)


def test_an_error_of_a_signal_handler_ends_a_wait_whatever_its_class(channel):
    def stop(*_):
        raise TimeoutError("the time of the program is over")

    before = signal.signal(signal.SIGALRM, stop)
    work = channel.get("other", async_op=True)
    try:
        for wait in (channel.get, work.wait):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(TimeoutError, match="the time of the program is over"):
                wait(timeout=10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert work.cancel()  # the operation itself went on
    channel.put("kept")
    assert channel.get_nowait() == "kept"


def failing():
    raise ValueError("on purpose")


def test_works_chain_and_time_their_functions():
    order = []
    first = AsyncFuncWork(order.append, 1)
    second = first.then(order.append, 2)
    third = first.then(lambda work: work.add_perf_time(3.0), pass_self=True)
    first()
    third.wait(timeout=30)
    assert order == [1, 2]
    assert first.get_last_work() is third
    assert second.get_next_work() is third
    assert third.time == 3.0
    assert 0 <= first.time < 1


def test_an_error_without_a_waiter_is_logged(caplog):
    work = AsyncFuncWork(failing)
    work()
    del work
    gc.collect()  # the error's own traceback is a cycle
    assert "failing failed and no call waited for it: on purpose" in caplog.text


def test_works_combine():
    works = [AsyncFuncWork(lambda n=n: n) for n in range(3)]
    both = AsyncCollWork(works[:1]) + AsyncCollWork(works[1:])
    total = AsyncRouteWork(works, sum)
    for work in works:
        assert not both.done()
        work()
    assert both.wait(timeout=30) == [0, 1, 2]
    assert total.wait(timeout=30) == 3
    with pytest.raises(ShoalValueError, match="at least one"):
        AsyncCollWork([])


def test_chained_functions_may_wait_for_each_other():
    ready = [AsyncWork() for _ in range(8)]
    released = AsyncFuncWork(lambda: "released")
    waiting = [work.then(lambda: released.wait(timeout=30)) for work in ready]
    trigger = AsyncWork()
    trigger.then(released)
    for work in [*ready, trigger]:
        work.future.set_result(None)
    assert [work.wait(timeout=30) for work in waiting] == ["released"] * 8


def test_cancelling_a_combination_gives_back_what_its_works_took(channel):
    async def give_up():
        both = AsyncCollWork([channel.get(async_op=True), channel.get("other", async_op=True)])
        task = asyncio.ensure_future(_await(both))
        await asyncio.sleep(0)
        channel.put("taken")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        channel.put("kept", key="other")

    asyncio.run(give_up())
    assert channel.get_nowait() == "taken"
    assert channel.get_nowait("other") == "kept"


async def _await(work: AsyncWork):
    return await work


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["then", "drop", "cancel", "timeout"])
def test_an_item_that_a_combination_took_and_no_caller_fetched_comes_back(channel, how):
    channel.put("taken")
    seconds = {"cancel": 60, "timeout": 0.05}
    works = [channel.get(async_op=True)]
    if how in seconds:
        works.append(channel.get("other", async_op=True, timeout=seconds[how]))
    both = AsyncCollWork(works)
    del works
    if how == "then":
        both.then(lambda: None).wait(timeout=30)
    elif how == "cancel":
        assert not both.cancel()  # one of them is done
        with pytest.raises(concurrent.futures.CancelledError):
            both.wait(timeout=30)
    elif how == "timeout":
        with pytest.raises(ShoalTimeoutError):
            both.wait(timeout=30)
    del both

    def came_back():
        gc.collect()  # the error's own traceback is a cycle
        return channel.qsize() == 1

    until(came_back)
    assert AsyncCollWork([channel.get(async_op=True)]).wait(timeout=30) == "taken"
    gc.collect()
    assert channel.empty()


def test_a_put_that_has_got_room_cannot_be_cancelled():
    channel = Channel.create("c", maxsize=2, local=True)
    channel.put_many([0, 1])
    first, second = (channel.put(n, async_op=True) for n in (2, 3))
    cancelled = []
    # Called when both items are in the channel, and only the first put knows it.
    first.future.add_done_callback(lambda _: cancelled.append(second.cancel()))
    assert channel.get_many(2) == [0, 1]
    assert cancelled == [False]
    assert second.wait(timeout=30) is None
    assert channel.get_many(2) == [2, 3]


def test_a_refused_put_says_why_in_words_and_numbers():
    channel = Channel.create("refusing", maxsize=9, local=True)
    channel.create_queue("own bound", 1)
    channel.put("a", key="own bound")
    for late in (
        lambda: channel.put("b", key="own bound", timeout=0.05),
        lambda: channel.put("b", key="own bound", timeout=0.05, async_op=True).wait(timeout=20),
        lambda: channel.put_nowait("b", key="own bound"),
    ):
        with pytest.raises((ShoalTimeoutError, ChannelFull), match="as maxsize=1 allows") as caught:
            late()
        assert caught.value.refusal == ("messages", 1, 1, 0)
    channel.put("c", key="not full", weight=1)
    with pytest.raises(ShoalTimeoutError) as caught:
        channel.get_batch(7, "not full", min_weight=3, linger=0, timeout=0.05)
    assert caught.value.refusal == ("weight", 1, 3, 0)
