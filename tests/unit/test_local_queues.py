"""Queues within one process: the order of what waits, batches, and that nothing is lost."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from shoal.deadline import Deadline
from shoal.errors import ChannelClosed, ChannelEmpty, ChannelFull
from shoal.queues.local import LocalQueues
from shoal.queues.protocol import ONE, Want
from shoal.queues.settings import ChannelSettings

FOREVER = Deadline(math.inf)


def queues_of(maxsize=0, capacity=100):
    return LocalQueues(ChannelSettings("local", maxsize, capacity))


def put(queues, item, weight=0):
    return queues.start_put("k", item, weight, FOREVER)


def take(queues, target=None):
    want = ONE if target is None else Want("batch", target)
    return queues.start_take("k", want, FOREVER)


def test_puts_that_wait_go_on_in_their_order_and_later_puts_stay_behind():
    queues = queues_of(maxsize=1)
    puts = [put(queues, n) for n in range(3)]
    assert [each.done() for each in puts] == [True, False, False]
    assert take(queues).result().value == 0
    assert [each.done() for each in puts] == [True, True, False]
    with pytest.raises(ChannelFull):
        queues.try_put("k", "late", 0)
    assert [take(queues).result().value for _ in range(2)] == [1, 2]


def test_a_put_that_is_cancelled_while_it_waits_lets_the_next_one_in():
    queues = queues_of(maxsize=1)
    _, second, third = (put(queues, n) for n in range(3))
    assert second.cancel()
    assert [take(queues).result().value for _ in range(2)] == [0, 2]
    assert third.done()


def test_a_batch_that_waits_lets_others_take_an_item():
    queues = queues_of()
    batch, single = take(queues, 10), take(queues)
    put(queues, "a", 4)
    assert single.result().value == "a"
    assert not batch.done()
    put(queues, "b", 10)
    assert batch.result().value == ["b"]


def test_a_batch_ends_before_the_item_that_would_exceed_it():
    queues = queues_of()
    batch = take(queues, 10)
    put(queues, "a", 4)
    put(queues, "b", 7)
    assert batch.result().value == ["a"]
    assert queues.qsize("k") == 1


def test_a_batch_takes_all_items_of_a_full_queue():
    queues = queues_of(maxsize=2)
    batch = take(queues, 100)
    put(queues, "a", 1)
    assert not batch.done()
    put(queues, "b", 1)
    assert batch.result().value == ["a", "b"]


def test_closing_fails_puts_that_wait_and_lets_gets_take_what_is_left():
    queues = queues_of(maxsize=1)
    put(queues, 0)
    blocked = put(queues, 1)
    queues.close()
    with pytest.raises(ChannelClosed):
        blocked.result()
    assert take(queues, 100).result().value == [0]
    with pytest.raises(ChannelClosed):
        take(queues).result()


@settings(max_examples=200, deadline=None)
@given(
    maxsize=st.integers(0, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "get", "batch", "cancel"]), st.integers(0, 5)),
        max_size=60,
    ),
)
def test_nothing_is_lost_or_doubled_whatever_happens(maxsize, steps):
    queues = queues_of(maxsize, capacity=4)
    sent, puts, gets, withdrawn = 0, {}, [], set()
    for what, number in steps:
        if what == "put":
            puts[sent] = put(queues, sent, number)
            sent += 1
        elif what in ("get", "batch"):
            gets.append(take(queues, number if what == "batch" else None))
        else:
            for waiting in [*gets, *puts.values()][number:]:
                if not waiting.done():
                    assert waiting.cancel()
                    withdrawn |= {n for n, each in puts.items() if each is waiting}
                    break
    received = []
    for get in gets:
        if get.done() and not get.cancelled():
            value = get.result().value
            received += value if isinstance(value, list) else [value]
    there = [weighted.item for weighted in queues.peek_all("k")]
    waiting = [n for n, each in puts.items() if not each.done()]
    assert sorted([*received, *there, *waiting, *withdrawn]) == list(range(sent))
    assert there == sorted(there)
    assert not waiting or there[-1] < waiting[0]


def test_keys_do_not_hold_each_other_up():
    queues = queues_of(maxsize=1)
    put(queues, 1)
    blocked = put(queues, 2)
    queues.try_put("other", 3, 0)
    assert queues.try_take("other", ONE).value == 3
    with pytest.raises(ChannelEmpty):
        queues.try_take("other", ONE)
    assert not blocked.done()
