"""`KeyedQueues` as a state machine, without threads, event loop or Ray."""

from hypothesis import given, settings, strategies as st

from shoal.queues.keyed_queues import KeyedQueues, Message
from shoal.queues.protocol import Outcome


def message(payload, weight=0):
    return Message(weight, payload)


def payloads(items):
    return [item.payload for item in items]


def test_items_of_a_key_come_in_the_order_of_the_puts():
    queues = KeyedQueues()
    for n in range(5):
        assert queues.put("k", message(n)) is Outcome.OK
    assert [queues.take("k")[0].payload for _ in range(5)] == list(range(5))
    assert queues.take("k") == []


def test_keys_are_equal_as_in_python_and_any_hashable_is_one():
    queues = KeyedQueues()
    queues.put(1, message("a"))
    queues.put(None, message("b"))
    assert queues.qsize(True) == queues.qsize(1.0) == 1
    assert queues.take(None)[0].payload == "b"


def test_the_bound_is_exact_and_per_key():
    queues = KeyedQueues(maxsize=2)
    assert [queues.put("a", message(n)) for n in range(3)] == [
        Outcome.OK,
        Outcome.OK,
        Outcome.FULL,
    ]
    assert queues.full("a")
    assert not queues.full("b")
    assert queues.put("b", message(0)) is Outcome.OK


def test_a_full_key_does_not_hold_up_another_key():
    queues = KeyedQueues(maxsize=1)
    queues.put("a", message(1))
    blocked = queues.wait_put("a", message(2))
    assert queues.put("b", message(3)) is Outcome.OK
    assert queues.take("b")[0].payload == 3
    assert blocked.outcome is Outcome.PENDING


def test_a_waiting_put_goes_on_when_there_is_room_and_later_puts_stay_behind_it():
    queues = KeyedQueues(maxsize=1)
    queues.put("k", message(1))
    first = queues.wait_put("k", message(2))
    second = queues.wait_put("k", message(3))
    assert payloads(queues.take("k")) == [1]
    assert first.outcome is Outcome.OK
    assert second.outcome is Outcome.PENDING
    assert queues.put("k", message(4)) is Outcome.FULL
    assert payloads(queues.take("k")) == [2]
    assert payloads(queues.take("k")) == [3]


def test_a_waiting_get_receives_the_next_item_and_wakes():
    queues = KeyedQueues()
    woken = []
    waiter = queues.wait_get("k")
    waiter.wake = lambda: woken.append(waiter.outcome)
    queues.put("other", message(0))
    assert woken == []
    queues.put("k", message(1))
    assert woken == [Outcome.OK]
    assert payloads(waiter.items) == [1]
    assert queues.qsize("k") == 0


def test_what_a_cancelled_get_was_given_goes_back_to_the_front():
    queues = KeyedQueues()
    waiter = queues.wait_get("k")
    queues.put("k", message(1))
    queues.put("k", message(2))
    queues.cancel(waiter)
    assert payloads(queues.take("k")) == [1]
    assert payloads(queues.take("k")) == [2]


def test_a_cancelled_put_leaves_no_message_and_lets_the_next_one_in():
    queues = KeyedQueues(maxsize=1)
    queues.put("k", message(1))
    large = queues.wait_put("k", message(2))
    small = queues.wait_put("k", message(3))
    queues.take("k")
    assert large.outcome is Outcome.OK
    queues.cancel(small)
    assert payloads(queues.take("k")) == [2]
    assert queues.take("k") == []


def test_a_batch_waits_until_its_weight_is_reached():
    queues = KeyedQueues()
    waiter = queues.wait_get("k", 10)
    queues.put("k", message("a", 4))
    queues.put("k", message("b", 5))
    assert waiter.outcome is Outcome.PENDING
    queues.put("k", message("c", 1))
    assert payloads(waiter.items) == ["a", "b", "c"]


def test_a_batch_ends_before_the_item_that_would_exceed_it():
    queues = KeyedQueues()
    waiter = queues.wait_get("k", 10)
    queues.put("k", message("a", 4))
    queues.put("k", message("b", 7))
    assert payloads(waiter.items) == ["a"]
    assert queues.qsize("k") == 1


def test_an_item_heavier_than_the_target_comes_alone():
    queues = KeyedQueues()
    queues.put("k", message("heavy", 50))
    queues.put("k", message("b", 1))
    assert payloads(queues.take("k", 10)) == ["heavy"]


def test_target_zero_gives_one_item():
    queues = KeyedQueues()
    queues.put("k", message("a", 3))
    queues.put("k", message("b", 0))
    assert payloads(queues.take("k", 0)) == ["a"]


def test_a_full_queue_gives_a_batch_what_it_has():
    queues = KeyedQueues(maxsize=2)
    waiter = queues.wait_get("k", 100)
    queues.put("k", message("a", 1))
    assert waiter.outcome is Outcome.PENDING
    queues.put("k", message("b", 1))
    assert payloads(waiter.items) == ["a", "b"]


def test_a_waiting_batch_lets_others_take_an_item():
    # A waiting batch that looked at the queue must not consume the wake-up of a single get.
    queues = KeyedQueues()
    batch = queues.wait_get("k", 10)
    single = queues.wait_get("k")
    queues.put("k", message("a", 4))
    assert payloads(single.items) == ["a"]
    assert batch.outcome is Outcome.PENDING
    queues.put("k", message("b", 10))
    assert payloads(batch.items) == ["b"]


def test_close_drains_then_ends_gets_and_fails_puts():
    queues = KeyedQueues(maxsize=1)
    queues.put("k", message(1))
    blocked = queues.wait_put("k", message(2))
    waiting = queues.wait_get("empty")
    queues.close()
    assert blocked.outcome is Outcome.CLOSED
    assert waiting.outcome is Outcome.CLOSED
    assert queues.put("k", message(3)) is Outcome.CLOSED
    assert payloads(queues.take("k", 100)) == [1]


def test_an_unbounded_key_warns_at_80_percent_and_waits_at_its_capacity():
    queues = KeyedQueues(capacity=10)
    outcomes = [queues.put("k", message(n)) for n in range(11)]
    assert outcomes == [Outcome.OK] * 7 + [Outcome.NEAR_CAPACITY] * 3 + [Outcome.FULL]


def test_an_empty_key_is_forgotten_unless_it_was_declared():
    queues = KeyedQueues()
    queues.put("k", message(1))
    queues.take("k")
    queues.cancel(queues.wait_get("waited"))
    assert queues.active_keys() == []
    queues.declare("bounded", 1)
    queues.put("bounded", message(1))
    queues.take("bounded")
    assert queues.maxsize("bounded") == 1


def test_dropping_a_key_ends_its_waiters():
    queues = KeyedQueues(maxsize=1)
    queues.put("k", message(1))
    waiter = queues.wait_put("k", message(2))
    queues.drop("k")
    assert waiter.outcome is Outcome.GONE
    assert queues.qsize("k") == 0


@settings(max_examples=200, deadline=None)
@given(
    maxsize=st.integers(0, 3),
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "get", "batch", "cancel"]), st.integers(0, 5)),
        max_size=60,
    ),
)
def test_nothing_is_lost_or_doubled_whatever_happens(maxsize, steps):
    queues = KeyedQueues(maxsize, capacity=4)
    sent, received, waiters, returned = 0, [], [], False
    withdrawn = set()
    for what, number in steps:
        if what == "put":
            item = message(sent, weight=number)
            if queues.put("k", item) is Outcome.FULL:
                waiters.append(queues.wait_put("k", item))
            sent += 1
        elif what in ("get", "batch"):
            target = number if what == "batch" else 0
            items = queues.take("k", target)
            if items:
                received += payloads(items)
            else:
                waiters.append(queues.wait_get("k", target))
        elif waiters:
            waiter = waiters.pop(number % len(waiters))
            if waiter.outcome is Outcome.PENDING and waiter.message is not None:
                withdrawn.add(waiter.message.payload)
            returned = returned or bool(waiter.items)
            queues.cancel(waiter)
    for waiter in waiters:
        received += payloads(waiter.items)
    rest = payloads(queues.peek_all("k"))
    rest += [w.message.payload for w in waiters if w.message is not None]
    assert sorted(received + rest + sorted(withdrawn)) == list(range(sent))
    # Only items that cancelled gets gave back may be out of order.
    assert returned or rest == sorted(rest)
