"""Memory policies of channels: puts into a channel whose memory is used up."""

import threading

import numpy as np
import pytest

from shoal.errors import ChannelMemoryError, ShoalTimeoutError
from support.processes import DEADLINE_S

MB = 2**20
BOUND = 4 * MB


def block(size=MB, value=1):
    return np.full(size, value, np.uint8)


def fill(channel, key, most=16):
    """Put until nothing more fits; returns the number of items."""
    for count in range(most):
        try:
            channel.put_nowait(block(), key=key)
        except Exception:  # noqa: BLE001  (the class depends on the policy)
            return count
    return most


@pytest.fixture
def emptied(channel):
    made = []

    def make(key, **options):
        one = channel(max_bytes=BOUND, **options)
        made.append((one, key))
        return one

    yield make
    for one, key in made:
        one.drain(key)


def test_an_item_that_never_fits_fails_at_once_where_puts_wait(emptied, key):
    one = emptied(key)
    with pytest.raises(ChannelMemoryError, match="never fits"):
        one.put(block(2 * BOUND), key=key)
    with pytest.raises(ChannelMemoryError):
        one.put(block(2 * BOUND), key=key, async_op=True).wait(timeout=DEADLINE_S)
    one.put("small", key=key)
    assert one.drain(key) == ["small"]


def test_a_put_waits_for_memory_and_goes_on_once_there_is_some(emptied, key):
    one = emptied(key)
    held = fill(one, key)
    with pytest.raises(ShoalTimeoutError):
        one.put(block(), key=key, timeout=0.2)
    putting = threading.Thread(target=one.put, args=(block(value=7), 0, key))
    putting.start()
    got = [int(one.get(key, timeout=DEADLINE_S)[0]) for _ in range(held + 1)]
    putting.join(DEADLINE_S)
    assert got == [1] * held + [7]


def test_put_many_without_memory_says_how_many_are_in_the_channel(emptied, key):
    one = emptied(key, memory_policy="error")
    with pytest.raises(ChannelMemoryError) as caught:
        one.put_many([block() for _ in range(16)], key=key, timeout=DEADLINE_S)
    assert caught.value.done == one.qsize(key) > 0


def test_spilling_goes_on_on_disk_in_order(emptied, key):
    one = emptied(key, memory_policy="spill")
    for n in range(12):
        one.put(block(value=n), key=key, timeout=DEADLINE_S)
    for n in range(12):
        item = one.get(key, timeout=DEADLINE_S)
        assert (item.size, int(item.min()), int(item.max())) == (MB, n, n)


def test_items_dropped_by_the_policy_free_their_memory(emptied, key):
    one = emptied(key, maxsize=2, policy="drop_oldest")
    for n in range(12):
        one.put(block(value=n), key=key, timeout=DEADLINE_S)
    assert [int(item[0]) for item in one.drain(key)] == [10, 11]


def test_nothing_is_dropped_for_memory(emptied, key):
    """Where memory is used up, the memory policy applies, not `drop_oldest`."""
    one = emptied(key, policy="drop_oldest", memory_policy="error")
    held = fill(one, key)
    with pytest.raises(ChannelMemoryError):
        one.put(block(), key=key, timeout=DEADLINE_S)
    assert one.qsize(key) == held > 0


def test_memory_comes_back_when_items_are_gone(emptied, key):
    one = emptied(key)
    for _ in range(3):
        assert fill(one, key) >= 2
        for _ in range(one.qsize(key)):
            one.get(key)
        assert one.stats(key).bytes == 0
