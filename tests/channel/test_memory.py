"""Memory policies of channels: puts into a channel whose memory is used up."""

import numpy as np
import pytest

from shoal.errors import ChannelMemoryError, ShoalTimeoutError
from support.in_thread import in_thread
from support.processes import DEADLINE_S

MB = 2**20
BOUND = 4 * MB


def block(value=1):
    return np.full(MB, value, np.uint8)


def test_a_put_waits_for_memory_and_goes_on_once_there_is_some(channel, key):
    one = channel(max_bytes=BOUND)
    with pytest.raises(ShoalTimeoutError) as full:
        one.put_many([block() for _ in range(16)], key=key, timeout=0.2)
    held = full.value.done
    assert held == one.qsize(key) > 0
    putting = in_thread(one.put, block(7), key=key, timeout=DEADLINE_S)
    got = [int(one.get(key, timeout=DEADLINE_S)[0]) for _ in range(held + 1)]
    putting.result(DEADLINE_S)
    assert got == [1] * held + [7]


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_puts_without_memory_fail_and_drop_nothing(channel, key, policy):
    """Where memory is used up, the memory policy applies, not `drop_oldest`."""
    one = channel(max_bytes=BOUND, policy=policy, memory_policy="error")
    with pytest.raises(ChannelMemoryError) as caught:
        one.put_many([block() for _ in range(16)], key=key, timeout=DEADLINE_S)
    assert caught.value.done == one.qsize(key) > 0
    with pytest.raises(ChannelMemoryError):
        one.put(block(), key=key, timeout=DEADLINE_S)
    assert one.qsize(key) == caught.value.done
