"""Shared-memory queues in asyncio: wake-ups, deadlines, cancellation and several loops."""

import asyncio
import gc
import os
import random
import weakref
from pathlib import Path

import pytest

from shoal.errors import ChannelClosed, ShoalTimeoutError, ShoalTypeError, ShoalValueError
from support.in_thread import in_thread
from support.processes import DEADLINE_S

SHORT_S = 0.05


def run(coroutine):
    """Run a coroutine in a new loop, within a deadline."""

    async def limited():
        async with asyncio.timeout(DEADLINE_S):
            return await coroutine

    return asyncio.run(limited())


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


async def cancelled(task):
    """Cancel a task and wait for its end; awaiting it would mix up its cancellation and ours."""
    task.cancel()
    await asyncio.wait([task])


def test_another_process_wakes_the_loop(session, start, line):
    program = (
        "import sys\nfrom shoal import shm\n"
        "with shm.Session.attach(sys.argv[1]) as session:\n"
        "    asked, answers = session.queue('asked'), session.queue('answers', 1)\n"
        "    print('ready', flush=True)\n"
        "    while (item := asked.get()) is not None: answers.put(item)\n"
    )
    asked, answers = session.queue("asked", 1), session.queue("answers", 1)
    process = start(program, session.token)
    line(process)

    async def scenario():
        async def ask():
            for i in range(50):
                await asked.aput(i)
            await asked.aput(None)

        asking = asyncio.create_task(ask())
        got = [await answers.aget() for _ in range(50)]
        await asking
        return got

    assert run(scenario()) == list(range(50))
    assert process.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("timeout", "kind"), [(-1, ShoalValueError), ("1", ShoalTypeError), (True, ShoalTypeError)]
)
def test_timeouts_that_cannot_be(session, timeout, kind):
    queue = session.queue("k")
    with pytest.raises(kind, match=f"^timeout={timeout!r}: expected seconds"):
        run(queue.aget(timeout=timeout))
    with pytest.raises(kind, match=f"^timeout={timeout!r}: expected seconds"):
        run(queue.aput(1, timeout=timeout))
    assert queue.empty()


def test_leases(session):
    queue = session.queue("k")

    async def scenario():
        waiting = asyncio.create_task(queue.aget(lease=True))
        await asyncio.sleep(0)
        await queue.aput("x")
        return await waiting

    with run(scenario()) as message:
        assert (message.value, message.redelivered) == ("x", False)
    assert session.stats()["descriptors_in_use"] == 0


class Large:
    """A sent object that can have weak references."""


def test_aput_keeps_no_reference_to_its_object_after_a_wait(session):
    queue = session.queue("k", maxsize=1)
    queue.put(0)

    async def scenario():
        large = Large()
        gone = weakref.ref(large)
        putting = asyncio.create_task(queue.aput(large))
        del large
        await asyncio.sleep(0)
        assert queue.get() == 0
        await putting
        del putting
        return gone

    gc.disable()
    try:
        assert run(scenario())() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("ending", ["queue", "session"])
def test_closing_ends_waiting_calls(session, ending):
    async def scenario():
        queue, full = session.queue("k"), session.queue("full", maxsize=1)
        full.put(1)
        waiting = [asyncio.create_task(queue.aget()), asyncio.create_task(full.aput(2))]
        await asyncio.sleep(SHORT_S)
        if ending == "queue":
            queue.close()
            full.close()
        else:
            session.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(error) for error in run(scenario())] == [ChannelClosed, ChannelClosed]


class Storm:
    """Consumers and producers that are cancelled at random moments."""

    def __init__(self, queue, count):
        self.queue, self.count, self.got = queue, count, []
        self.seed = random.randrange(2**32)
        self.chance = random.Random(self.seed)

    async def consume(self):
        while True:
            self.got.append(await self.queue.aget())

    async def put(self, i):
        while True:
            task = asyncio.create_task(self.queue.aput(i))
            for _ in range(self.chance.randrange(4)):
                await asyncio.sleep(0)
            if self.chance.random() < 0.5:
                task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                return task.result()

    async def cancel(self, consumers):
        while True:
            await asyncio.sleep(0)
            index = self.chance.randrange(len(consumers))
            await cancelled(consumers[index])
            consumers[index] = asyncio.create_task(self.consume())

    async def run(self):
        consumers = [asyncio.create_task(self.consume()) for _ in range(5)]
        stormy = asyncio.create_task(self.cancel(consumers))
        for i in range(self.count):
            await self.put(i)
        await cancelled(stormy)
        while len(self.got) < self.count:  # noqa: ASYNC110  (a list does not notify when it grows)
            await asyncio.sleep(0.001)
        for consumer in consumers:
            await cancelled(consumer)


def test_a_wait_that_begins_while_another_thread_closes_the_session_ends(session, monkeypatch):
    queue, copy = session.queue("k"), os.dup

    def closes_first(descriptor):
        session.close()
        return copy(descriptor)

    monkeypatch.setattr(os, "dup", closes_first)
    with pytest.raises(ChannelClosed, match="the session is closed in this process"):
        run(queue.aget())


def test_a_storm_of_cancellations_loses_nothing(session):
    storm = Storm(session.queue("k", maxsize=3), 150)
    run(storm.run())
    assert sorted(storm.got) == list(range(150)), storm.seed
    assert session.stats()["descriptors_in_use"] == 0


def test_a_cancelled_waiter_takes_no_wake_from_the_others(session):
    async def scenario():
        queue = session.queue("k")
        first, second = (asyncio.create_task(queue.aget()) for _ in range(2))
        await asyncio.sleep(SHORT_S)
        queue.put("x")
        await cancelled(first)
        if first.done() and not first.cancelled():
            return first.result()
        return await second

    assert run(scenario()) == "x"


def test_loops_in_several_threads(session):
    queue, results = session.queue("k"), session.queue("results")

    async def consume():
        while (item := await queue.aget()) is not None:
            await results.aput(item)

    consumers = [in_thread(run, consume()) for _ in range(3)]
    for i in range(60):
        queue.put(i)
    got = sorted(results.get(timeout=DEADLINE_S) for _ in range(60))
    queue.put_many([None] * 3)
    for consumer in consumers:
        consumer.result(DEADLINE_S)
    assert got == list(range(60))


@pytest.mark.nightly
def test_nothing_stays_open_or_alive_of_loops_that_end(session):
    queue = session.queue("k")
    loops = []

    async def wait():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        with pytest.raises(ShoalTimeoutError):
            await queue.aget(timeout=0.01)

    run(wait())
    gc.collect()
    before = open_files()
    for _ in range(5):
        run(wait())
    gc.collect()
    assert open_files() <= before
    assert [loop() for loop in loops] == [None] * 6


def test_a_child_made_by_fork_has_a_bell_of_its_own(session):
    queue, back = session.queue("k"), session.queue("back")

    async def once():
        return await queue.aget()

    queue.put("parent")
    assert run(once()) == "parent"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            back.put("waits")
            back.put(run(once()))
            code = 0
        finally:
            os._exit(code)
    assert back.get(timeout=DEADLINE_S) == "waits"
    queue.put("child")
    assert back.get(timeout=DEADLINE_S) == "child"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_that_left_by_dropping_its_session_is_rung_when_it_is_back(session, start, line):
    program = (
        "import asyncio, gc, sys\nfrom shoal import shm\nfrom shoal.shm import timing\n"
        "timing.TIMING = timing.ShmTiming(tick_s=1000)\n"
        "async def serve():\n"
        "    for i in range(3):\n"
        "        attached = shm.Session.attach(sys.argv[1])\n"
        "        queue = attached.queue('k')\n"
        "        print(i, flush=True)\n"
        "        print(await queue.aget(), flush=True)\n"
        "        del attached, queue\n"
        "        gc.collect()\n"
        "asyncio.run(serve())\n"
    )
    queue = session.queue("k")
    process = start(program, session.token)
    for i in range(3):
        assert line(process) == str(i)
        if i:
            # The get looks before it waits, and finds nothing before that.
            with pytest.raises(ShoalTimeoutError):
                session.queue("nothing").get(timeout=0.1)
        queue.put("there")
        assert line(process) == "there"
    assert process.wait(DEADLINE_S) == 0
