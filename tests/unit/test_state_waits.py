"""Waits on the state page: from 0.1 s on, until they end, in threads and in event loops."""

import asyncio
import concurrent.futures
import gc
import math
import threading

import pytest

from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError
from shoal.queues.wait import long_wait, result_of
from shoal.state import calling, hide_process, show_process
from shoal.work import AsyncCollWork, AsyncWork
from support.in_thread import in_thread
from support.processes import until
from support.state_pages import outline, state_of, states, wait_of

NO_LIMIT = Deadline(math.inf)


@pytest.fixture(autouse=True)
def page(page_folder):
    """This process is a worker of a job."""
    show_process("job", "actor:0", 0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr("shoal.deadline.time.monotonic", lambda: Clock.now)
    return Clock


def now_shown():
    return outline(state_of("actor:0").activities)


def test_a_wait_is_shown_from_a_tenth_of_a_second_on(clock):
    with LongWait(str, NO_LIMIT, operation="get", on="it", peers=lambda: ("env:0",)) as wait:
        wait.tick()
        assert now_shown() == []
        assert wait.step() == pytest.approx(0.1)
        clock.now += wait.step()
        wait.tick()
        shown = wait_of("actor:0")
        assert (shown.operation, shown.on, shown.peers) == ("get", "it", ("env:0",))
        assert shown.since == 1000.0
        assert wait.step() == pytest.approx(9.9)  # until it is logged
    assert now_shown() == []


def test_a_wait_without_a_page_is_not_ticked_more_often(clock):
    hide_process()
    with LongWait(str, NO_LIMIT) as wait:
        clock.now += 0.1
        wait.tick()
        assert wait.step() == pytest.approx(9.9)
    assert states() == []


def test_a_wait_that_has_no_object_shows_its_sentence(clock):
    with LongWait(lambda: "actor:0: publish waits for b", NO_LIMIT, operation="publish") as wait:
        wait.show()
        assert wait_of("actor:0").on == "actor:0: publish waits for b"


def test_a_wait_that_ends_with_an_error_is_no_longer_shown():
    def fails():
        with LongWait(str, NO_LIMIT) as wait:
            wait.show()
            assert now_shown() == ["wait"]
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert now_shown() == []


def test_only_the_outermost_of_nested_waits_is_shown():
    with calling("step"), LongWait(str, NO_LIMIT, operation="recv") as outer:
        with LongWait(str, NO_LIMIT, operation="get") as inner:
            inner.show()  # the outer one is not called meanwhile
            assert now_shown() == [("step", ["recv"])]
            outer.show()
        assert now_shown() == [("step", ["recv"])]
    with LongWait(str, NO_LIMIT, operation="put") as later:
        later.show()
        assert now_shown() == ["put"]


def test_an_inner_wait_is_shown_with_its_peers_after_the_outer_one(clock):
    peers = ["env:0", "env:1"]
    with LongWait(str, NO_LIMIT, 1.0, peers=lambda: peers) as wait:
        wait.tick()
        assert wait_of("actor:0").peers == ("env:0", "env:1")
        wait.hide()
        assert now_shown() == []
        wait.tick()
        del peers[0]
        wait.tick()  # some have answered
        assert wait_of("actor:0").peers == ("env:1",)
        assert wait_of("actor:0").since == 999.0


def test_a_call_of_a_channel_is_shown_while_it_waits_for_its_future():
    future = concurrent.futures.Future()

    def get():
        with calling("rollout"):
            result_of(future, long_wait("get", "an item", "the channel 'a', key 1", NO_LIMIT))

    getting = in_thread(get)
    until(lambda: wait_of("actor:0"))
    assert now_shown() == [("rollout", ["get"])]
    assert wait_of("actor:0").on == "the channel 'a', key 1"
    future.set_result(None)
    getting.result()
    assert now_shown() == []


def test_a_wait_that_times_out_is_no_longer_shown_while_its_error_is_handled():
    work = AsyncWork(None, "get from the channel 'a'")
    try:
        work.wait(0.2)
    except ShoalTimeoutError:
        assert now_shown() == []
    else:
        pytest.fail("it did not time out")


def test_coroutines_show_their_waits_within_their_calls():
    future = concurrent.futures.Future()

    async def rollout(number):
        with calling(f"rollout{number}"):
            await AsyncWork(future, f"get from the channel {number}")

    async def main():
        tasks = [asyncio.create_task(rollout(number)) for number in range(2)]
        await asyncio.to_thread(until, lambda: [len(shown) for shown in now_shown()] == [2, 2])
        found = state_of("actor:0").activities
        future.set_result(None)
        await asyncio.gather(*tasks)
        return found

    found = asyncio.run(main())
    assert {(call.operation, call.inside[0].on) for call in found} == {
        ("rollout0", "get from the channel 0"),
        ("rollout1", "get from the channel 1"),
    }
    assert now_shown() == []


def test_a_cancelled_coroutine_no_longer_waits():
    async def main():
        waiting = asyncio.ensure_future(AsyncWork(None, "get").async_wait())
        await asyncio.to_thread(until, now_shown)
        waiting.cancel()
        await asyncio.wait({waiting})
        return now_shown()

    assert asyncio.run(main()) == []


def test_an_operation_that_has_ended_is_never_shown(monkeypatch):
    monkeypatch.setattr("shoal.deadline.begin_wait", lambda *_: pytest.fail("it was shown"))
    work = AsyncWork(None, "get")
    work.future.set_result(1)

    async def main():
        return await work

    assert (work.wait(), asyncio.run(main())) == (1, 1)


def work_for(*peers, seconds=math.inf):
    work = AsyncWork(None, "recv from env:0 at actor:0")
    work.operation, work.peers, work.deadline = "recv", peers, Deadline(seconds)
    return work


def shown_while(work):
    """The wait that the page shows while a work is waited for."""
    with work._waiting(NO_LIMIT) as waiting:
        waiting.show()
        return wait_of("actor:0")


def test_a_work_names_its_peers_and_its_own_deadline():
    shown = shown_while(work_for("env:0", seconds=50))
    assert (shown.operation, shown.on, shown.peers) == ("recv", "", ("env:0",))
    assert shown.until == pytest.approx(shown.since + 50, abs=5)


def test_gathered_and_chained_works_name_the_peers_of_those_that_go_on():
    first, second = work_for("env:0"), work_for("env:1", "env:0", seconds=50)
    both = AsyncCollWork([first, second])
    assert both.awaited() == ["env:0", "env:1"]
    assert both.remaining() <= 50
    chained = first.then(lambda: None)
    assert chained.awaited() == ("env:0",)
    first.future.set_result(None)
    second.peers = ("env:1",)
    assert both.awaited() == ["env:1"]
    chained.wait()
    assert chained.awaited() == ()


def test_a_chained_function_is_shown_until_it_has_run():
    first, runs, ends = work_for("env:0"), threading.Event(), threading.Event()

    def function():
        runs.set()
        ends.wait()

    with calling("step"):
        chained = first.then(function)
        assert now_shown() == [("step", ["then"])]
    first.future.set_result(None)
    runs.wait()
    assert now_shown() == ["then"]
    ends.set()
    chained.wait()
    until(lambda: now_shown() == [])


def test_peers_that_become_known_during_a_wait_are_shown(timing):
    timing("deadline", peers_every_s=0.01)

    def learns(work):
        until(now_shown)
        work.peers = ("env:7",)
        until(lambda: (shown := wait_of("actor:0")) and shown.peers == ("env:7",))
        work.future.set_result(None)

    async def awaits(work):
        await asyncio.gather(work.async_wait(), asyncio.to_thread(learns, work))

    asyncio.run(awaits(work_for()))
    work = work_for()
    learning = in_thread(learns, work)
    work.wait()
    learning.result()


def test_a_long_chain_of_functions_names_its_peers():
    first = work_for("env:0")
    last = first
    for _ in range(2000):
        last = last.then(lambda: None)
    assert last._waiting(NO_LIMIT).activity().peers == ("env:0",)
    del first, last
    gc.collect()
    assert now_shown() == []


def test_an_error_while_a_wait_is_shown_does_not_end_it():
    def fails():
        raise RecursionError

    with LongWait(str, NO_LIMIT, 1.0, peers=fails, ends_in=fails) as wait:
        wait.tick()
        wait.tick()
        assert (wait_of("actor:0").peers, wait_of("actor:0").until) == ((), math.inf)


def test_only_the_oldest_chained_function_is_shown():
    def names(number):
        def function():
            pass

        function.__qualname__ = f"f{number}"
        return function

    works = [work_for("env:0") for _ in range(40)]
    chained = [work.then(names(number)) for number, work in enumerate(works)]
    assert state_of("actor:0").hidden == 0
    shown = wait_of("actor:0")
    assert shown.on == "the function f0"
    for number in (1, 0):
        works[number].future.set_result(None)
        chained[number].wait()
    until(lambda: (now := wait_of("actor:0")) and now.on == "the function f2")
    assert wait_of("actor:0").since > shown.since
    hide_process()
    show_process("job", "actor:0", 0)
    chained.append(work_for().then(names(40)))
    assert wait_of("actor:0").on == "the function f2"
    for work in chained:
        work.cancel()
    assert now_shown() == []
