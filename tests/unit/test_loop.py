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


async def answer():
    await asyncio.sleep(0)
    return "answer"


def test_work_that_ends_programs_does_not_end_the_loop():
    async def work():
        raise SystemExit("on purpose")

    with pytest.raises(SystemExit, match="on purpose"):
        start(work(), str).result(DEADLINE_S)
    assert start(answer(), str).result(DEADLINE_S) == "answer"


def test_a_finalizer_may_ask_for_the_loop_while_its_thread_asks_for_it(monkeypatch):
    called, asked = threading.Event(), []

    def getpid():
        # The garbage collector runs here, as it may wherever Python allocates.
        if threading.current_thread() is thread and not asked:
            asked.append(True)
            soon(called.set)
        return os.getpid()

    results = []
    thread = threading.Thread(target=lambda: results.append(submit(answer())), daemon=True)
    submit(answer()).result(DEADLINE_S)
    monkeypatch.setattr(process, "os", SimpleNamespace(getpid=getpid))
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the thread waits for itself"
    assert called.wait(DEADLINE_S)
    assert results[0].result(DEADLINE_S) == "answer"


@pytest.fixture
def drop():
    """Drop a work in a thread that has a lock."""

    def begin(works, lock):
        def within():
            with lock:
                works.clear()

        thread = threading.Thread(target=within, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the thread waits for itself"

    return begin


def test_a_work_that_is_dropped_within_a_lock_gives_back_without_it(drop):
    lock, given_back = threading.Lock(), threading.Event()

    def give_back():
        with lock:
            given_back.set()

    drop([AsyncChannelWork(done("item"), give_back=give_back)], lock)
    assert given_back.wait(DEADLINE_S)


def test_a_get_that_is_dropped_within_a_lock_is_cancelled_without_it(drop):
    lock, ended = threading.Lock(), threading.Event()

    def end(_):
        with lock:
            ended.set()

    future = concurrent.futures.Future()
    future.add_done_callback(end)
    drop([AsyncChannelWork(future, takes=True)], lock)
    assert ended.wait(DEADLINE_S)
    assert future.cancelled()


@pytest.mark.process
def test_a_child_has_a_loop_although_another_thread_was_asking_for_one(monkeypatch):
    asking, go_on = threading.Event(), threading.Event()

    def getpid():
        if threading.current_thread() is thread:
            asking.set()
            go_on.wait(DEADLINE_S)
        return os.getpid()

    thread = threading.Thread(target=lambda: submit(answer()), daemon=True)
    monkeypatch.setattr(process, "os", SimpleNamespace(getpid=getpid))
    thread.start()
    assert asking.wait(DEADLINE_S)
    try:
        assert in_a_child(lambda: submit(answer()).result(DEADLINE_S)) == "'answer'"
    finally:
        go_on.set()
        thread.join(DEADLINE_S)
