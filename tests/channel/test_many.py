"""Channel calls for several items: `put_many`, `get_many`, and batches by weight."""

import threading
import time

import pytest

from shoal.errors import ChannelClosed, ShoalTimeoutError, ShoalTypeError, ShoalValueError
from support.in_thread import in_thread
from support.processes import DEADLINE_S

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)


@everywhere
def test_many_are_put_and_taken_in_order(channel, key):
    one = channel()
    one.put_many([], key=key)
    one.put_many(range(5), key=key)
    one.put_many(["a", None], [3, 4], key=key)
    assert one.get_many(3, key) == [0, 1, 2]
    assert one.get_many(100, key) == [3, 4, "a", None]
    assert one.empty(key)


@everywhere
def test_put_many_of_more_items_than_one_message_holds_arrives_whole(channel, key):
    one = channel()
    one.put_many(range(5000), key=key)
    got = []
    while len(got) < 5000:
        got += one.get_many(3000, key, timeout=DEADLINE_S)
    assert got == list(range(5000))


@everywhere
def test_get_many_waits_for_the_first_alone(channel, key):
    one = channel()
    with pytest.raises(ShoalTimeoutError, match="get_many"):
        one.get_many(2, key, timeout=0.1)
    timer = threading.Timer(0.1, one.put, ("late", 0, key))
    timer.start()
    assert one.get_many(2, key, timeout=DEADLINE_S) == ["late"]
    timer.join()


@everywhere
def test_put_many_without_room_says_how_many_are_in_the_channel(channel, key):
    one = channel(maxsize=3)
    with pytest.raises(ShoalTimeoutError) as caught:
        one.put_many(range(7), key=key, timeout=0.2)
    assert caught.value.done == 3
    assert one.drain(key) == [0, 1, 2]


@everywhere
def test_put_many_goes_on_as_there_is_room(channel, key):
    one = channel(maxsize=3)
    putting = in_thread(one.put_many, range(20), key=key)
    assert [one.get(key, timeout=DEADLINE_S) for _ in range(20)] == list(range(20))
    putting.result(DEADLINE_S)


@pytest.mark.parametrize("transport", ["shm"], indirect=True)
def test_a_long_put_many_counts_the_items_put_before(channel):
    one = channel(maxsize=3, private=True)
    one.put("opens the queue")
    one.get()
    closing = threading.Timer(0.6, one.close)
    closing.start()
    with pytest.raises(ChannelClosed) as caught:
        one.put_many(range(7))
    closing.join()
    assert caught.value.done == 3
    assert list(one) == [0, 1, 2]


def test_a_put_of_an_item_that_cannot_be_pickled_puts_nothing(channel, key):
    one = channel()
    with pytest.raises(ShoalValueError, match="cannot be sent"):
        one.put(threading.Lock(), key=key)
    with pytest.raises(ShoalValueError, match="cannot be sent"):
        one.put(threading.Lock(), key=key, async_op=True).wait(timeout=DEADLINE_S)
    assert one.empty(key)


@everywhere
def test_put_many_after_the_end_has_put_nothing(channel, key):
    one = channel(private=True)
    one.close()
    with pytest.raises(ChannelClosed) as caught:
        one.put_many([1, 2], key=key)
    assert caught.value.done == 0


@everywhere
def test_put_many_comes_after_async_puts_that_wait(channel, key):
    one = channel(maxsize=3)
    works = [one.put(n, key=key, async_op=True) for n in range(5)]
    putting = in_thread(one.put_many, [5, 6], key=key)
    assert [one.get(key, timeout=DEADLINE_S) for _ in range(7)] == list(range(7))
    putting.result(DEADLINE_S)
    assert [work.wait(timeout=DEADLINE_S) for work in works] == [None] * 5


@everywhere
def test_wrong_counts_are_errors(channel, key):
    one = channel()
    with pytest.raises(ShoalValueError, match="expected 2, one for each item, got 1"):
        one.put_many([1, 2], [1], key=key)
    with pytest.raises(ShoalValueError, match="n=0: expected 1 or more"):
        one.get_many(0, key)
    with pytest.raises(ShoalValueError, match="target_weight=-1"):
        one.get_batch(-1, key)
    with pytest.raises(ShoalTypeError, match=r"^items=5: expected an iterable"):
        one.put_many(5, key=key)
    with pytest.raises(ShoalTypeError, match=r"^weights=5: expected an iterable"):
        one.put_many([1], 5, key=key)
    assert one.empty(key)


# Batches.


@everywhere
def test_a_batch_reaches_its_weight_or_stops_before_it_is_exceeded(channel, key):
    one = channel()
    one.put_many("abcde", [2, 2, 2, 3, 1], key=key)
    assert one.get_batch(4, key) == ["a", "b"]
    assert one.get_batch(4, key) == ["c"]  # the next item would exceed the target
    assert one.get_batch(4, key) == ["d", "e"]
    one.put_many(["heavy", "light", "last"], [50, 1, 1], key=key)
    assert one.get_batch(10, key, timeout=DEADLINE_S) == ["heavy"]
    assert one.get_batch(0, key) == ["light"]
    assert one.get_batch(key=key) == ["last"]
    with pytest.raises(ShoalTimeoutError):
        one.get_batch(0, key, timeout=0.05)


@everywhere
def test_a_waiting_batch_takes_all_items_once_its_key_is_full(channel, key):
    one = channel(maxsize=3)
    pending = one.get_batch(100, key, async_op=True)
    for n in range(3):
        assert not pending.done()
        one.put(n, 1, key)
    assert pending.wait(timeout=DEADLINE_S) == [0, 1, 2]


@everywhere
def test_min_weight_is_enough_only_after_the_linger(channel, key):
    one = channel()
    one.put_many("ab", [1, 1], key=key)
    start = time.monotonic()
    assert one.get_batch(5, key, min_weight=2, linger=0.3) == ["a", "b"]
    assert time.monotonic() - start >= 0.29
    one.put("c", 1, key)
    with pytest.raises(ShoalTimeoutError, match="weight"):
        one.get_batch(5, key, min_weight=2, linger=0.05, timeout=0.2)
    timer = threading.Timer(0.2, one.put, ("d", 1, key))
    timer.start()
    assert one.get_batch(5, key, min_weight=2, linger=0.05, timeout=DEADLINE_S) == ["c", "d"]
    timer.join()


@everywhere
def test_min_weight_without_linger_needs_no_wait(channel, key):
    one = channel()
    one.put_many("ab", [1, 1], key=key)
    assert one.get_batch(5, key, min_weight=1) == ["a", "b"]
    one.put("c", 1, key)
    assert one.get_batch(5, key, linger=0.1) == ["c"]


@everywhere
def test_a_whole_target_does_not_wait_for_the_linger(channel, key):
    one = channel()
    one.put_many("abc", [2, 2, 2], key=key)
    assert one.get_batch(4, key, min_weight=1, linger=600.0, timeout=DEADLINE_S) == ["a", "b"]
    pending = one.get_batch(4, key, linger=600.0, async_op=True)
    one.put("d", 2, key)
    assert pending.wait(timeout=DEADLINE_S) == ["c", "d"]


@everywhere
def test_the_rest_of_a_closed_channel_is_a_batch(channel, key):
    one = channel(private=True)
    one.put_many("ab", [1, 1], key=key)
    one.close()
    assert one.get_batch(5, key, timeout=DEADLINE_S) == ["a", "b"]
    with pytest.raises(ChannelClosed):
        one.get_batch(5, key, timeout=DEADLINE_S)


@everywhere
def test_no_two_batches_share_an_item_or_mix(channel, key):
    one = channel()

    def consume():
        return [one.get_batch(10, key, timeout=DEADLINE_S) for _ in range(5)]

    consumers = [in_thread(consume) for _ in range(4)]
    for start in range(0, 200, 8):
        one.put_many(range(start, start + 8), [1] * 8, key=key)
    batches = [batch for consumer in consumers for batch in consumer.result(DEADLINE_S)]
    # Each batch has ten consecutive items: no other get took an item from its middle.
    assert sorted(map(min, batches)) == list(range(0, 200, 10))
    for batch in batches:
        assert batch == list(range(batch[0], batch[0] + 10))


@everywhere
def test_a_batch_that_waits_leaves_single_gets_their_items(channel, key):
    one = channel()
    pending = one.get_batch(100, key, async_op=True)
    singles = [one.get(key, async_op=True) for _ in range(2)]
    one.put_many(range(102), [1] * 102, key=key)
    got = [*pending.wait(timeout=DEADLINE_S), *(work.wait(timeout=DEADLINE_S) for work in singles)]
    assert sorted(got) == list(range(102))
    assert one.empty(key)
