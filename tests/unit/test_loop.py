"""The event loop of a process: use by finalizers, which can run anywhere, and forked children."""

import asyncio
import concurrent.futures
import os
import threading
from types import SimpleNamespace

import pytest

from shoal import process
from shoal.collective import AsyncChannelWork
from shoal.futures import done, start
from shoal.loop import soon, submit
from support.processes import in_a_child

DEADLINE_S = 10


@pytest.fixture
def in_between(monkeypatch):
    """Run a function in the middle of a start of the loop, where it asks for its process."""

    def begin(function):
        def getpid():
            function()
            return os.getpid()

        monkeypatch.setattr(process, "os", SimpleNamespace(getpid=getpid))

    return begin


async def answer():
    await asyncio.sleep(0)
    return "answer"


def test_system_exit_in_a_work_does_not_end_the_loop():
    async def work():
        raise SystemExit("on purpose")

    with pytest.raises(SystemExit, match="on purpose"):
        start(work(), str).result(DEADLINE_S)
    assert start(answer(), str).result(DEADLINE_S) == "answer"


def test_a_finalizer_may_use_the_loop_while_its_thread_starts_it(in_between):
    called, asked = threading.Event(), []

    def collect():
        # The garbage collector may run wherever Python allocates.
        if threading.current_thread() is thread and not asked:
            asked.append(True)
            soon(called.set)

    results = []
    thread = threading.Thread(target=lambda: results.append(submit(answer())), daemon=True)
    submit(answer()).result(DEADLINE_S)
    in_between(collect)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the thread waits for itself"
    assert called.wait(DEADLINE_S)
    assert results[0].result(DEADLINE_S) == "answer"


def work_that_gives_back(end):
    return AsyncChannelWork(done("item"), give_back=end)


def work_that_is_cancelled(end):
    future = concurrent.futures.Future()
    future.add_done_callback(lambda ended: ended.cancelled() and end())
    return AsyncChannelWork(future, takes=True)


@pytest.mark.parametrize("make", [work_that_gives_back, work_that_is_cancelled])
def test_a_work_dropped_under_a_lock_ends_without_that_lock(make):
    lock, ended = threading.Lock(), threading.Event()

    def end():
        with lock:
            ended.set()

    works = [make(end)]

    def drop():
        with lock:
            works.clear()

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the thread waits for itself"
    assert ended.wait(DEADLINE_S)


@pytest.mark.process
def test_a_child_has_a_loop_although_another_thread_was_starting_one(in_between):
    asking, go_on = threading.Event(), threading.Event()

    def stand():
        if threading.current_thread() is thread:
            asking.set()
            go_on.wait(DEADLINE_S)

    thread = threading.Thread(target=lambda: submit(answer()), daemon=True)
    in_between(stand)
    thread.start()
    assert asking.wait(DEADLINE_S)
    try:
        assert in_a_child(lambda: submit(answer()).result(DEADLINE_S)) == "'answer'"
    finally:
        go_on.set()
        thread.join(DEADLINE_S)
