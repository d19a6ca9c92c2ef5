"""Unused shared-memory queues are removed to make room for others."""

import asyncio
import gc
import os
from pathlib import Path

import pytest

from shoal.errors import ChannelExistsError, ShoalTimeoutError
from support.in_thread import in_thread
from support.processes import DEADLINE_S, in_a_child, killed, until

pytestmark = pytest.mark.nightly

MANY = 400
"""Number of new keys after which all queues unused before are forgotten."""

ATTACH = "import sys, time\nfrom shoal import shm\nsession = shm.Session.attach(sys.argv[1])\n"


def memory(session):
    files = [path for path in Path(session.token).iterdir() if path.is_file()]
    return sum(path.stat().st_blocks * 512 for path in files)


def use_others(session, many=MANY, **bounds):
    for number in range(many):
        queue = session.queue(("other", number, *bounds.values()), **bounds)
        queue.put(number)
        assert queue.get_nowait() == number


@pytest.mark.process
def test_many_keys_one_after_the_other_take_little_memory(session, start, line, backend):
    # More than twice the limit of queues at a time; the pure core has no limit, and is slow.
    count = 20_000 if backend.__name__.endswith("_rust") else 3000
    program = ATTACH + (
        "turns = session.queue('turns')\nprint('here', flush=True)\n"
        "while (number := turns.get(timeout=60)) is not None:\n"
        "    assert session.queue(('key', number)).get_nowait() == number\n"
        "print(session.stats()['queues'], flush=True)\n"
    )
    turns = session.queue("turns", maxsize=8)
    other = start(program, session.token)
    assert line(other) == "here"
    use_others(session)
    before = memory(session)
    for number in range(count):
        session.queue(("key", number)).put(number)
        turns.put(number, timeout=DEADLINE_S)
    turns.put(None)
    assert int(line(other)) < 200
    stats = session.stats()
    assert (stats["messages"], stats["queues"] < 200) == (0, True)
    assert memory(session) - before < 2 * 2**20


def test_a_key_that_comes_back_is_a_new_queue_with_its_own_bound(session):
    queue = session.queue("k", maxsize=3)
    queue.put(1)
    assert queue.get() == 1
    with pytest.raises(ChannelExistsError):
        session.queue("k", maxsize=4)
    del queue
    use_others(session, maxsize=3)
    queue = session.queue("k", maxsize=4)
    assert (queue.maxsize, queue.qsize(), queue.closed) == (4, 0, False)
    stats = queue.stats()
    assert (stats["puts"], stats["gets"], stats["consumers_waiting"]) == (0, 0, 0)
    queue.put(2)
    assert (queue.stats()["puts"], queue.get()) == (1, 2)


def test_a_queue_in_use_is_not_forgotten(session):
    kept = session.queue("open", maxsize=5)
    again = session.queue("open")
    del again
    session.queue("full", maxsize=5).put("here")
    session.queue("closed", maxsize=5).close()
    leased = session.queue("leased", maxsize=5)
    leased.put("first")
    leased.put("second")
    first, second = leased.get(lease=True), leased.get(lease=True)
    del leased
    use_others(session)
    use_others(session, maxsize=5)
    with pytest.raises(ChannelExistsError):
        session.queue("open", maxsize=6)
    kept.put(1)
    assert session.queue("open").get_nowait() == 1
    assert session.queue("full").get_nowait() == "here"
    assert session.queue("closed").closed
    first.give_back()
    assert session.queue("leased", maxsize=5).get_nowait() == "first"
    use_others(session, maxsize=5)
    with pytest.raises(ChannelExistsError):
        session.queue("leased", maxsize=6)
    second.ack()
    use_others(session, maxsize=5)
    assert session.queue("leased", maxsize=6).maxsize == 6


@pytest.mark.process
def test_a_handle_of_another_process_sees_no_message_of_another_key(session, start, line):
    program = ATTACH + (
        "mine = session.queue('mine')\nprint('here', flush=True)\n"
        "print(mine.get(timeout=60), flush=True)\nprint(mine.qsize(), flush=True)\n"
    )
    other = start(program, session.token)
    assert line(other) == "here"
    use_others(session, 2 * MANY)
    session.queue("mine").put("for you")
    assert [line(other), line(other)] == ["for you", "0"]


@pytest.mark.process
def test_processes_that_open_and_let_go_of_the_same_keys_get_their_own_messages(
    session, start, line
):
    program = ATTACH + (
        "import random\nfrom shoal.errors import ChannelEmpty\n"
        "choose = random.Random(int(sys.argv[2]))\n"
        "for _ in range(400):\n"
        "    key = choose.randrange(90)\n"
        "    queue = session.queue(key)\n"
        "    queue.put(key)\n"
        "    try:\n        assert queue.get_nowait() == key\n"
        "    except ChannelEmpty:\n        pass\n"  # another process with the same key took it
        "print('done', flush=True)\n"
    )
    use_others(session)
    processes = [start(program, session.token, str(seed)) for seed in range(3)]
    assert [line(process) for process in processes] == ["done"] * 3
    stats = session.stats()
    assert (stats["lost_messages"], stats["queues"] < 200) == (0, True)
    # A get that could not read the tables in time took nothing.
    for key in range(90):
        queue = session.queue(key)
        assert all(got == key for got in (queue.get() for _ in range(queue.qsize())))
    assert session.stats()["messages"] == 0


@pytest.mark.process
def test_queues_opened_by_dead_processes_are_forgotten(session, start, line):
    program = ATTACH + (
        "all = [session.queue(('dead', n), maxsize=7) for n in range(100)]\n"
        "print('here', flush=True)\ntime.sleep(60)\n"
    )
    other = start(program, session.token)
    assert line(other) == "here"
    use_others(session, maxsize=7)
    with pytest.raises(ChannelExistsError):
        session.queue(("dead", 99), maxsize=8)
    killed(other)
    until(lambda: session.sweep()["dead"] or session.stats()["participants"] == 1)
    use_others(session, maxsize=7)
    use_others(session, 2 * MANY, maxsize=7)
    assert session.queue(("dead", 99), maxsize=8).maxsize == 8


@pytest.mark.process
def test_a_child_lets_go_of_nothing_that_is_its_parents(session):
    queue = session.queue("parent", maxsize=9)
    inherited = session.queue("child", maxsize=9)

    def in_child():
        nonlocal queue
        del queue
        gc.collect()
        inherited.put("from the child")

    assert in_a_child(in_child) == "None"
    session.sweep()
    use_others(session, maxsize=9)
    with pytest.raises(ChannelExistsError):
        session.queue("parent", maxsize=8)
    queue.put(1)
    assert session.queue("parent").get_nowait() == 1
    assert inherited.get(timeout=DEADLINE_S) == "from the child"


@pytest.mark.process
def test_a_child_finds_a_key_that_its_parent_let_go_of(session):
    queue = session.queue("k")
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(ready, 1)
            queue.put("from the child")
            code = 0
        finally:
            os._exit(code)
    del queue
    use_others(session)
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(ready)
    os.close(go)
    assert session.queue("k").get(timeout=DEADLINE_S) == "from the child"


def test_a_waiter_of_a_forgotten_queue_is_rung_for_the_new_one(session, timing):
    timing("shm", tick_s=1000.0)

    async def works():
        with pytest.raises(ShoalTimeoutError):
            await session.queue("k").aget(timeout=0.01)
        gc.collect()
        use_others(session)
        queue = session.queue("k")
        waits = asyncio.ensure_future(queue.aget())
        await asyncio.sleep(0.05)
        put = in_thread(queue.put, "come")
        got = await asyncio.wait_for(waits, DEADLINE_S)
        put.result(DEADLINE_S)
        return got

    assert asyncio.run(works()) == "come"
