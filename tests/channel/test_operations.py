"""Operations of channels: order, keys, weights, deadlines, errors, and asynchronous calls."""

import asyncio
import enum
import threading

import numpy as np
import pytest

from shoal import Channel
from shoal.errors import (
    ChannelDecodeError,
    ChannelEmpty,
    ShoalTimeoutError,
    ShoalValueError,
)
from support.in_thread import in_thread
from support.items import Unloadable
from support.processes import DEADLINE_S

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)


@everywhere
def test_items_keep_order_keys_and_weights(channel):
    one = channel()
    for n in range(3):
        one.put({"n": n}, weight=n)
    one.put("other", key=("a", 1))
    assert one.qsize() == 3
    assert [(held.weight, held.item) for held in one.peek_all()] == [
        (n, {"n": n}) for n in range(3)
    ]
    assert "{'n': 2}" in str(one)
    assert one.name in repr(one)
    assert [one.get()["n"] for _ in range(3)] == [0, 1, 2]
    assert one.empty()
    assert one.get(key=("a", 1.0)) == "other"


@everywhere
def test_nowait_calls_say_full_and_empty(channel, key):
    one = channel(maxsize=1)
    with pytest.raises(asyncio.QueueEmpty, match=r"^driver .*empty") as caught:
        one.get_nowait(key)
    assert f"channel {one.name!r}, key {key!r}" in str(caught.value)
    one.put_nowait("a", key=key)
    assert one.full(key)
    with pytest.raises(asyncio.QueueFull, match="maxsize=1"):
        one.put_nowait("b", key=key)
    assert one.get_nowait(key) == "a"
    assert (one.maxsize, one.qsize(key)) == (1, 0)
    with pytest.raises(ChannelEmpty):
        one.get_nowait(key)


@everywhere
def test_deadlines_name_the_channel_and_lose_nothing(channel, key):
    one = channel(maxsize=1)
    with pytest.raises(ShoalTimeoutError, match=r"driver .*get: no message in .* within 0.1 s"):
        one.get(key, timeout=0.1)
    one.put("a", key=key)
    with pytest.raises(ShoalTimeoutError, match=r"put: no room in .*key .* within 0.1 s") as caught:
        one.put("b", key=key, timeout=0.1)
    assert key in str(caught.value)
    with pytest.raises(ShoalTimeoutError):
        one.put("c", key=key, timeout=0.1, async_op=True).wait(timeout=DEADLINE_S)
    assert one.get(key) == "a"
    assert one.empty(key)


@everywhere
def test_async_errors_reach_the_caller_and_later_puts_go_on(channel, key):
    one = channel(maxsize=1)
    one.put(1, key=key)
    late = one.put(2, key=key, async_op=True, timeout=0.1)
    behind = one.put(3, key=key, async_op=True)
    with pytest.raises(ShoalTimeoutError):
        late.wait(timeout=DEADLINE_S)
    assert one.get(key) == 1
    behind.wait(timeout=DEADLINE_S)
    assert one.get(key, timeout=DEADLINE_S) == 3


@everywhere
def test_a_chained_function_runs_after_the_put(channel, key):
    one = channel()
    sizes = []
    work = one.put("a", key=key, async_op=True)
    chained = work.then(lambda: sizes.append(one.qsize(key)))
    chained.wait(timeout=DEADLINE_S)
    assert sizes == [1]
    assert work.get_next_work() is chained is work.get_last_work()


@everywhere
def test_bad_arguments_are_named(channel, key):
    one = channel()
    with pytest.raises(ShoalValueError, match=r"weight=1\.5"):
        one.put("a", weight=1.5, key=key)
    with pytest.raises(ShoalValueError, match=r"weight=-1"):
        one.put("a", weight=-1, key=key)
    with pytest.raises(ShoalValueError, match="timeout=-1"):
        one.get(key, timeout=-1)
    with pytest.raises(ShoalValueError, match="no ':'"):
        Channel.create("a:b", local=True)
    assert one.empty(key)


@everywhere
def test_the_older_names_of_arguments(channel):
    one = channel(private=True)
    one.put("a", 3, queue_name="q")
    one.put_nowait("b", 3, queue_name="q")
    one.put("c", 3, queue_name="q")
    assert one.get_batch(batch_weight=6, queue_name="q") == ["a", "b"]
    assert one.get(queue_name="q") == "c"
    with pytest.raises(ChannelEmpty):
        one.get_nowait(queue_name="q")
    one.put("d", queue_name="q")
    assert (one.qsize(queue_name="q"), one.qsize()) == (1, 0)
    assert (one.empty(queue_name="q"), one.full(queue_name="q")) == (False, False)
    assert one.peek_all(queue_name="q") == one.peek_all("q") != one.peek_all()


@everywhere
@pytest.mark.parametrize("call", ["get", "get_nowait", "get_batch", "get_many"])
def test_a_pending_get_of_one_key_does_not_change_what_another_call_returns(channel, key, call):
    one = channel()
    pending = one.get((key, "A"), async_op=True)
    one.put("for B", key=(key, "B"))
    got = one.get_many(1, (key, "B")) if call == "get_many" else getattr(one, call)(key=(key, "B"))
    assert got in ("for B", ["for B"])
    assert not pending.done()
    one.put("for A", key=(key, "A"))
    assert pending.wait(timeout=DEADLINE_S) == "for A"


@everywhere
def test_looking_at_a_key_does_not_swallow_the_wake_up_of_a_get(channel, key):
    one = channel()
    pending = one.get(key, async_op=True)
    batch = one.get_batch(2, (key, "batch"), async_op=True)
    looking = threading.Event()

    def look():
        while not looking.is_set():
            one.peek_all(key)
            one.qsize((key, "batch"))

    looks = in_thread(look)
    one.put("a", key=key)
    one.put_many(["b", "c"], [1, 1], key=(key, "batch"))
    try:
        assert pending.wait(timeout=DEADLINE_S) == "a"
        assert batch.wait(timeout=DEADLINE_S) == ["b", "c"]
    finally:
        looking.set()
        looks.result(DEADLINE_S)


class Level(enum.IntEnum):
    LOW = 1


def test_none_may_be_a_key_or_an_item(channel):
    one = channel(private=True)
    one.put(None, key=None)
    one.put("other")
    assert one.qsize(None) == 1
    assert one.get(None, timeout=DEADLINE_S) is None
    assert one.get() == "other"


@pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)
def test_keys_that_are_equal_are_one_queue(channel, key):
    one = channel()
    for equal in [1, True, 1.0, np.int64(1), Level.LOW]:
        one.put(repr(equal), key=(key, equal))
    assert one.qsize((key, 1)) == 5
    assert len(one.drain((key, 1.0))) == 5
    one.put("0", key=(key, 0.0))
    assert one.get((key, -0.0), timeout=DEADLINE_S) == "0"


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_an_item_that_cannot_be_rebuilt_takes_no_other_with_it(channel, key, async_op):
    one = channel()
    one.put_many([1, Unloadable(), 2], [1, 1, 1], key=key)

    def get():
        batch = one.get_batch(3, key, async_op, timeout=DEADLINE_S)
        return batch.wait(timeout=DEADLINE_S) if async_op else batch

    with pytest.raises(ChannelDecodeError, match="not here") as failed:
        get()
    assert repr(key) in str(failed.value)
    assert list(failed.value.items) == [1, 2]
    assert one.empty(key)
