"""Leases of channel items when processes die: an item is delivered again."""

import os
import signal
import sys

import pytest
import ray

from shoal import Channel
from shoal.errors import PeerLostError
from support.channel_peers import pid_of_actor
from support.processes import DEADLINE_S

pytestmark = pytest.mark.ray


def hold(channel, key, items):
    # Leases that are dropped with the last handle of the process return to the queue. Globals of
    # this module do not outlive the call, because the function is pickled by value.
    held = vars(sys).setdefault("_held_by_test", [])
    for n in range(items):
        lease = channel.get(key, lease=True, timeout=DEADLINE_S)
        if n == 0:
            lease.ack()
        else:
            held.append(lease)
    return len(held)


def test_leases_of_a_killed_process_are_delivered_again(channel, key, victims):
    one = channel()
    one.put_many(range(4), key=key)
    victim = victims.hire()
    assert ray.get(victims.run(victim, hold, one, key, 3), timeout=DEADLINE_S) == 2
    assert one.qsize(key) == 1
    victims.kill(victim)
    again = [one.get(key, lease=True, timeout=DEADLINE_S) for _ in range(3)]
    assert [lease.value for lease in again if not lease.redelivered] == [3]
    assert sorted(lease.value for lease in again if lease.redelivered) == [1, 2]
    for lease in again:
        lease.ack()
    assert one.empty(key)


def test_a_lease_outlives_the_process_that_put_the_item(channel, key, victims):
    one = channel()
    victim = victims.hire()
    ray.get(victims.run(victim, Channel.put, one, "a", 0, key), timeout=DEADLINE_S)
    lease = one.get(key, lease=True, timeout=DEADLINE_S)
    victims.kill(victim)
    lease.give_back()
    assert one.get(key, timeout=DEADLINE_S) == "a"


def test_leased_items_survive_the_death_of_the_actor(channel, key, transport):
    one = channel(private=True)
    one.put_many(["a", "b"], key=key)
    lease = one.get(key, lease=True)
    os.kill(pid_of_actor(one), signal.SIGKILL)
    if transport == "shm":
        # The lease is in the shared memory and does not need the actor.
        lease.give_back()
        assert [one.get(key, timeout=5.0) for _ in range(2)] == ["b", "a"]
    else:
        # The actor's process kept the lease, so it ended with that process.
        got = [one.get(key, timeout=DEADLINE_S) for _ in range(2)]
        assert sorted(got) == ["a", "b"]
        with pytest.raises(PeerLostError, match="another process takes its place"):
            lease.ack()
    assert one.empty(key)
