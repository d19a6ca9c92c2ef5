"""Looking at a shared-memory queue: peeked messages, which stay in it, and statistics."""

import gc
import threading
import time

import numpy as np
import pytest

from shoal.errors import ChannelDecodeError, ShoalTypeError, ShoalValueError
from support.in_thread import in_thread
from support.items import Unloadable
from support.processes import DEADLINE_S, until


@pytest.fixture
def queue(session):
    return session.queue("a")


def test_a_look_takes_nothing(session, queue):
    assert queue.peek() == []
    queue.put("x", 7)
    queue.put({"a": [1, "y" * 5000]}, 0)
    queue.put(3, 2**63 - 1)
    for _ in range(2):
        assert queue.peek() == [(7, "x"), (0, {"a": [1, "y" * 5000]}), (2**63 - 1, 3)]
    assert queue.peek(2) == queue.peek()[:2]
    assert queue.peek(0) == []
    assert queue.peek(2**40) == queue.peek(None)
    assert queue.get() == "x"
    assert [weight for weight, _ in queue.peek()] == [0, 2**63 - 1]
    assert queue.get_many(9)[1] == 3
    assert session.stats()["descriptors_in_use"] == 0


def test_peek_returns_a_copy(session, queue):
    sent = np.arange(50_000.0)
    queue.put(sent)
    (_, seen), *rest = queue.peek()
    assert rest == []
    seen[:] = 0
    assert np.array_equal(queue.peek(1)[0][1], sent)
    got = queue.get()
    assert np.array_equal(got, sent)
    del got
    gc.collect()
    stats = session.stats()
    assert (stats["bytes_in_use"], stats["descriptors_in_use"]) == (0, 0)


def test_peek_skips_leased_and_taken_messages(queue):
    queue.put_many([1, np.zeros(20_000), 3])
    with queue.get(lease=True) as message, queue.get(lease=True) as large:
        assert [one for _, one in queue.peek()] == [3]
        assert message.value + large.value.sum() == 1


def test_peek_leaves_a_message_that_cannot_be_rebuilt(queue):
    queue.put_many([1, Unloadable()])
    for _ in range(2):
        with pytest.raises(ChannelDecodeError, match=r"^queue 'a': .* ValueError: not here$") as e:
            queue.peek()
        assert isinstance(e.value.__cause__, ValueError)
    assert queue.peek(1) == [(0, 1)]
    assert queue.qsize() == 2


@pytest.mark.parametrize("n", [-1, 2**70])
def test_how_many_to_look_at_is_checked(queue, n):
    with pytest.raises(ShoalValueError, match=r"^n="):
        queue.peek(n)
    with pytest.raises(ShoalTypeError, match=r"^n='1': expected an int$"):
        queue.peek("1")


def test_a_closed_queue_can_be_looked_at(queue):
    queue.put(1)
    queue.close()
    assert queue.peek() == [(0, 1)]
    assert queue.stats()["messages"] == 1


def test_peek_sees_whole_messages_while_others_put_and_take(queue):
    """Each message repeats one value in all its bytes, and messages are seen in order."""
    over = threading.Event()

    def work():
        number = 0
        while not over.is_set():
            number += 1
            size = 9000 if number % 3 else 4
            queue.put(np.full(size, number, np.int64), number)
            if number > 5:
                queue.get()

    works = in_thread(work)
    try:
        seen = 0
        end = time.monotonic() + DEADLINE_S
        while seen < 300 and time.monotonic() < end:
            messages = queue.peek()
            for weight, array in messages:
                assert (array == weight).all()
            weights = [weight for weight, _ in messages]
            assert weights == sorted(set(weights))
            seen += len(messages)
    finally:
        over.set()
        works.result(DEADLINE_S)
    assert seen >= 300


def test_the_numbers_of_a_queue(session, queue):
    empty = queue.stats()
    assert empty == {
        "messages": 0,
        "bytes": 0,
        "puts": 0,
        "gets": 0,
        "producers_waiting": 0,
        "consumers_waiting": 0,
        "oldest_s": 0.0,
    }
    session.queue("other").put(1)
    queue.put_many([1, "x" * 1000, np.zeros(20_000)])
    queue.get()
    queue.put(4)
    stats = queue.stats()
    assert (stats["messages"], stats["puts"], stats["gets"]) == (3, 4, 1)
    assert 161_000 <= stats["bytes"] < 164_000
    held = queue.get_many(2)
    stats = queue.stats()
    assert (stats["messages"], stats["puts"], stats["gets"]) == (1, 4, 3)
    assert 0 < stats["bytes"] < 100
    del held
    assert queue.get() == 4
    assert {key: queue.stats()[key] for key in ("messages", "bytes", "oldest_s")} == {
        "messages": 0,
        "bytes": 0,
        "oldest_s": 0.0,
    }


def test_the_age_of_the_oldest_grows_until_it_is_taken(queue):
    queue.put("first")
    time.sleep(0.3)
    queue.put("second")
    assert 0.25 <= queue.stats()["oldest_s"] < DEADLINE_S
    queue.get()
    before = queue.stats()["oldest_s"]
    time.sleep(0.1)
    assert queue.stats()["oldest_s"] > before


def test_waiting_calls_are_counted(session):
    queue = session.queue("w", maxsize=1)
    consumer = in_thread(queue.get)
    until(lambda: queue.stats()["consumers_waiting"] == 1)
    assert queue.stats()["producers_waiting"] == 0
    queue.put(1)
    assert consumer.result(DEADLINE_S) == 1
    queue.put(2)
    producer = in_thread(queue.put, 3)
    until(lambda: queue.stats()["producers_waiting"] == 1)
    assert queue.get() == 2
    producer.result(DEADLINE_S)


def test_armed_event_loops_are_counted(queue):
    queue.fileno()
    queue.arm("get")
    queue.arm("get")
    assert queue.stats()["consumers_waiting"] == 1
    queue.arm("put")
    assert queue.stats()["producers_waiting"] == 1
    queue.put(1)
    assert queue.stats()["consumers_waiting"] == 0
    queue.get()
    assert queue.stats()["producers_waiting"] == 0
