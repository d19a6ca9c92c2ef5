"""Leases of channel items: an item is delivered again unless its consumer acknowledges it."""

import asyncio
import contextlib

import pytest

from shoal.errors import ChannelEmpty, ShoalTimeoutError, ShoalValueError
from support.processes import DEADLINE_S, until

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)


@everywhere
def test_an_acknowledged_item_is_gone(channel, key):
    one = channel()
    one.put("a", key=key)
    lease = one.get(key, lease=True)
    assert (lease.value, lease.redelivered) == ("a", False)
    assert one.empty(key)
    lease.ack()
    lease.ack()
    assert one.empty(key)
    assert lease.value == "a"


@everywhere
def test_an_item_given_back_returns_to_the_end_of_its_queue(channel, key):
    one = channel()
    one.put_many(["a", "b"], [3, 4], key=key)
    lease = one.get(key, lease=True)
    lease.give_back()
    lease.give_back()
    lease.ack()
    with pytest.raises(ShoalValueError, match="given back"):
        _ = lease.value
    assert [held.weight for held in one.peek_all(key)] == [4, 3]
    assert one.get(key, timeout=DEADLINE_S) == "b"
    again = one.get_nowait(key, lease=True)
    assert (again.value, again.redelivered) == ("a", True)
    again.ack()
    assert one.empty(key)


@everywhere
def test_a_block_acknowledges_unless_an_error_leaves_it(channel, key):
    one = channel()
    one.put_many(["a", "b"], key=key)
    with one.get(key, lease=True) as lease:
        assert lease.value == "a"
    with contextlib.suppress(KeyError), one.get(key, lease=True) as lease:
        raise KeyError
    assert one.empty(key)  # still on lease
    lease.give_back()
    assert one.get(key, timeout=DEADLINE_S) == "b"
    assert one.empty(key)


@everywhere
def test_a_lease_can_be_waited_for_and_missed(channel, key):
    one = channel()
    with pytest.raises(ChannelEmpty):
        one.get_nowait(key, lease=True)
    with pytest.raises(ShoalTimeoutError):
        one.get(key, lease=True, timeout=0.1)
    pending = one.get(key, lease=True, async_op=True)
    one.put("a", key=key)
    lease = pending.wait(timeout=DEADLINE_S)
    assert lease.value == "a"
    lease.give_back()

    async def take():
        return (await one.get(key, lease=True, async_op=True, timeout=DEADLINE_S)).value

    assert asyncio.run(take()) == "a"


@everywhere
def test_giving_back_wakes_a_waiting_get(channel, key):
    one = channel()
    one.put("a", key=key)
    lease = one.get(key, lease=True)
    pending = one.get(key, async_op=True)
    assert not pending.done()
    lease.give_back()
    assert pending.wait(timeout=DEADLINE_S) == "a"


@everywhere
def test_a_closed_channel_takes_back_leased_items(channel, key):
    one = channel(private=True)
    one.put_many(["a", "b"], key=key)
    lease = one.get(key, lease=True)
    one.close()
    lease.give_back()
    assert [one.get(key, timeout=DEADLINE_S) for _ in range(2)] == ["b", "a"]


@everywhere
def test_leases_are_many_and_end_in_any_order(channel, key):
    one = channel()
    one.put_many(range(20), key=key)
    leases = [one.get(key, lease=True) for _ in range(20)]
    for lease in reversed(leases):
        (lease.ack if lease.value % 2 else lease.give_back)()
    until(lambda: one.qsize(key) == 10)
    assert sorted(one.drain(key)) == list(range(0, 20, 2))
