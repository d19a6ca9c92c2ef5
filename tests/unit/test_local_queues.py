"""Queues within one process: the order of operations that wait, and that nothing is lost.

The batches and the close are those of `tests/channel`.
"""

import math

import pytest
from hypothesis import given, settings, strategies as st

from shoal.deadline import Deadline
from shoal.errors import ChannelDecodeError, ChannelEmpty
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


@pytest.mark.parametrize("lease", [False, True])
def test_the_error_about_items_that_cannot_be_decoded_has_those_taken_with_them(lease):
    def decode(item, _):
        if item is None:
            raise ChannelDecodeError("not here")
        return item

    queues = LocalQueues(ChannelSettings("local"), decode=decode)
    for item in (None, "a", None, "b"):
        put(queues, item)
    with pytest.raises(ChannelDecodeError, match="not here") as failed:
        queues.take("k", Want("many", 4, lease=lease), FOREVER)
    assert [one.value if lease else one for one in failed.value.items] == ["a", "b"]
    assert failed.value.__notes__ == ["not here"]
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
