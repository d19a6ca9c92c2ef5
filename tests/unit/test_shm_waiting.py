"""Waiting calls of shared-memory queues: their refusals, their callback, and room before work."""

import asyncio
import copy
import itertools
import pickle
import threading
import time

import numpy as np
import pytest

from shoal.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelFull,
    ChannelMemoryError,
    ShoalTimeoutError,
    ShoalTypeError,
)
from shoal.shm.refusals import Refusal, timeout_text
from support.in_thread import in_thread
from support.processes import DEADLINE_S

MIB = 2**20
# Longer than two slices of a wait.
WHILE_S = 0.35


class Counted:
    """A message that counts how often it is encoded."""

    def __init__(self):
        self.encoded = 0

    def __reduce__(self):
        self.encoded += 1
        return Counted, ()


class Unsendable:
    def __reduce__(self):
        raise ValueError("not this one")


class Stop(Exception):  # noqa: N818  (the name says what it does)
    """Raised by a callback."""


@pytest.fixture
def full(session):
    """A queue with one message and room for one."""
    queue = session.queue("full", maxsize=1)
    queue.put("first")
    return queue


def later(function, *arguments):
    """Call a function in a while, in a thread of its own."""
    timer = threading.Timer(WHILE_S, function, arguments)
    timer.start()
    return timer


def stops():
    raise Stop("enough")


def refusal_of(error_class, call, *arguments):
    with pytest.raises(error_class) as refused:
        call(*arguments)
    return refused.value


# Refusals.


def test_a_queue_without_bound_names_the_backlog(shm, place):
    with shm.Session.create(dir=place, max_bytes=8 * MIB, backlog=2) as session:
        queue = session.queue("q")
        with pytest.raises(ShoalTimeoutError) as late:
            queue.put_many(range(1000), timeout=0)
        held = late.value.done
        assert late.value.refusal == ("backlog", held, held, 0)
        why = f"it holds {held} messages, as many as the session's backlog allows"
        assert Refusal.of(late.value).why() == why
        assert str(late.value).endswith(why)


@pytest.mark.parametrize("policy", ["block", "error"])
def test_a_lack_of_memory_names_the_bytes_reserved(shm, place, policy):
    create = shm.Session.create
    with create(dir=place, max_bytes=2 * MIB, memory_policy=policy) as session:
        queue = session.queue("memory")
        large = np.zeros(MIB + MIB // 2, np.uint8)
        queue.put(large)
        error_class = ChannelMemoryError if policy == "error" else ShoalTimeoutError
        error = refusal_of(error_class, queue.put, large, 0, 0.01)
        kind, held, bound, length = error.refusal
        assert (kind, bound) == ("memory", 2 * MIB)
        assert large.nbytes <= length <= held + MIB
        assert Refusal.of(error).why() in str(error)
        if policy == "block":
            assert refusal_of(ChannelFull, queue.put_nowait, large).refusal == error.refusal


def test_an_empty_queue_and_a_light_batch_say_so(session):
    queue = session.queue("q")
    assert refusal_of(ChannelEmpty, queue.get_nowait).refusal == ("empty", 0, 0, 0)
    assert refusal_of(ShoalTimeoutError, queue.get, 0).refusal == ("empty", 0, 0, 0)
    assert refusal_of(ShoalTimeoutError, queue.get_many, 3, 0).refusal == ("empty", 0, 0, 0)
    queue.put("light", weight=2)
    light = refusal_of(ShoalTimeoutError, queue.get_batch, 9, 0)
    assert light.refusal == ("weight", 1, 9, 0)
    assert str(light) == timeout_text("get_batch", "queue 'q'", 0, Refusal.of(light))
    least = refusal_of(ShoalTimeoutError, queue.get_batch, 9, 0, 5)
    assert least.refusal == ("weight", 1, 5, 0)


def test_errors_of_asyncio_have_refusals_too(full):
    async def refused(call):
        with pytest.raises(ShoalTimeoutError) as late:
            await call
        return late.value

    put = asyncio.run(refused(full.aput(1, timeout=0.01)))
    assert put.refusal == ("messages", 1, 1, 0)
    assert str(put) == timeout_text("aput", "queue 'full'", 0.01, Refusal.of(put))
    assert asyncio.run(full.aget(timeout=0)) == "first"
    get = asyncio.run(refused(full.aget(timeout=0.01)))
    assert get.refusal == ("empty", 0, 0, 0)
    assert str(get) == "aget: no message in queue 'full' within 0.01 s"


def test_a_refusal_is_pickled_with_its_error(full):
    error = refusal_of(ChannelFull, full.put_nowait, 1)
    for loaded in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert loaded.refusal == ("messages", 1, 1, 0)
    full.close()
    assert refusal_of(ChannelClosed, full.put, 1).refusal is None
    assert Refusal.of(ValueError()) is None
    assert timeout_text("put", "q", 2.0, None) == "put: no room in q within 2 s"


# The callback of a wait.


@pytest.mark.parametrize(
    "operation", ["put", "put_many", "get", "get_many", "get_batch", "reserve"]
)
def test_an_exception_of_the_callback_ends_the_call(shm, place, operation):
    with shm.Session.create(dir=place, max_bytes=2 * MIB) as session:
        empty, full = session.queue("empty"), session.queue("full", maxsize=1)
        full.put(np.zeros(MIB + MIB // 2, np.uint8))
        call = {
            "put": lambda: full.put(1, waiting=stops),
            "put_many": lambda: full.put_many([1, 2], waiting=stops),
            "get": lambda: empty.get(waiting=stops),
            "get_many": lambda: empty.get_many(2, waiting=stops),
            "get_batch": lambda: empty.get_batch(2, waiting=stops),
            "reserve": lambda: empty.reserve(MIB, "u1", waiting=stops),
        }[operation]
        start = time.monotonic()
        with pytest.raises(Stop, match=r"^enough$") as stopped:
            call()
        assert time.monotonic() - start > 0.05
        if operation == "put_many":
            assert stopped.value.done == 0
        assert (empty.qsize(), full.qsize()) == (0, 1)
        assert session.stats()["messages"] == 1
        assert full.get().nbytes == MIB + MIB // 2
        empty.put("still works")
        assert empty.get() == "still works"


def test_the_callback_is_called_now_and_then_while_a_call_waits(full):
    calls = []
    timer = later(full.get)
    full.put("second", waiting=lambda: calls.append(time.monotonic()))
    timer.join()
    assert 1 <= len(calls) <= 6
    assert all(after - before > 0.05 for before, after in itertools.pairwise(calls))
    assert full.get(waiting=lambda: calls.append("get")) == "second"
    assert "get" not in calls  # it did not wait


def test_a_short_wait_does_not_call_back(full):
    with pytest.raises(ShoalTimeoutError):
        full.put(1, 0, 0.02, waiting=stops)
    with pytest.raises(ShoalTimeoutError):
        full.put(1, 0, 0, waiting=stops)


def test_the_callback_of_a_wait_for_memory_is_called_as_rarely(shm, place):
    with shm.Session.create(dir=place, max_bytes=2 * MIB) as session:
        queue, calls = session.queue("q"), []
        large = np.zeros(MIB + MIB // 2, np.uint8)
        queue.put(large)
        with pytest.raises(ShoalTimeoutError):
            queue.put(large, 0, WHILE_S, waiting=lambda: calls.append(1))
        assert 1 <= len(calls) <= 4


@pytest.mark.parametrize("waiting", [1, "print"])
def test_a_callback_must_be_callable(full, waiting):
    for call in (
        lambda: full.put(1, waiting=waiting),
        lambda: full.put_many([1], waiting=waiting),
        lambda: full.get(waiting=waiting),
        lambda: full.reserve(1, "u1", waiting=waiting),
    ):
        with pytest.raises(ShoalTypeError) as wrong:
            call()
        assert str(wrong.value) == f"waiting={waiting!r}: expected a callable or None"
    assert full.qsize() == 1


# Room before work.


def test_a_put_that_waits_encodes_once(full):
    message = Counted()
    timer = later(full.get)
    full.put(message)
    timer.join()
    assert message.encoded == 1
    assert isinstance(full.get(), Counted)


def test_a_put_without_room_encodes_nothing(full):
    message = Counted()
    with pytest.raises(ChannelFull):
        full.put_nowait(message)
    with pytest.raises(ShoalTimeoutError):
        full.put(message, 0, 0.01)
    with pytest.raises(ShoalTimeoutError):
        full.put_many([message], None, 0.01)
    assert message.encoded == 0


def test_put_many_encodes_each_message_once_when_there_is_room(session):
    queue = session.queue("many", maxsize=2)
    messages = [Counted() for _ in range(6)]
    with pytest.raises(ShoalTimeoutError) as late:
        queue.put_many(messages, timeout=0.01)
    assert late.value.done == 2
    assert [message.encoded for message in messages] == [1, 1, 0, 0, 0, 0]

    def take_four():
        taken = 0
        while taken < 4:
            taken += len(queue.get_many(2))  # maybe one

    timer = later(take_four)
    queue.put_many(messages[2:], timeout=DEADLINE_S)
    timer.join()
    assert [message.encoded for message in messages] == [1] * 6


def test_put_many_puts_the_objects_before_one_that_cannot_be_sent(session):
    queue = session.queue("many")
    with pytest.raises(ValueError, match=r"^not this one$") as wrong:
        queue.put_many([1, 2, Unsendable(), 4])
    assert wrong.value.done == 2
    assert queue.get_many(9) == [1, 2]


@pytest.mark.parametrize("many", [False, True])
def test_a_large_message_that_waits_holds_no_memory(session, full, many):
    large = np.arange(4 * MIB, dtype=np.uint8)
    held = []

    def look():
        held.append(session.stats()["bytes_in_use"])

    before = session.stats()["bytes_in_use"]
    timer = later(full.get)
    if many:
        full.put_many([large], waiting=look)
    else:
        full.put(large, waiting=look)
    timer.join()
    assert held
    assert max(held) == before
    assert np.array_equal(full.get(), large)


def test_a_put_that_waits_for_memory_holds_none(shm, place):
    with shm.Session.create(dir=place, max_bytes=4 * MIB) as session:
        queue, held = session.queue("q"), []
        large = np.zeros(3 * MIB, np.uint8)
        queue.put(large)
        before = session.stats()["bytes_in_use"]
        timer = later(queue.get)
        queue.put(large, waiting=lambda: held.append(session.stats()["bytes_in_use"]))
        timer.join()
        assert held
        assert max(held) == before


def test_every_producer_that_waits_for_room_gets_it(session):
    queue = session.queue("crowd", maxsize=2)
    large = np.zeros(MIB, np.uint8)
    producers = [in_thread(queue.put_many, [large] * 5) for _ in range(6)]
    for _ in range(30):
        assert queue.get(DEADLINE_S).nbytes == MIB
    for producer in producers:
        producer.result(DEADLINE_S)
    assert queue.empty()
