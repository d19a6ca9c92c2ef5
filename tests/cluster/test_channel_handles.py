"""Channel handles: pickled to workers, inherited by forked children, used by threads."""

import asyncio
import pickle

import pytest
import ray

from shoal import Channel
from support.in_thread import in_thread
from support.processes import DEADLINE_S, in_a_child

pytestmark = pytest.mark.ray
shm = pytest.mark.parametrize("transport", ["shm"], indirect=True)
over_a_lane = pytest.mark.parametrize("transport", ["lane"], indirect=True)


def pass_on(channel, key, other):
    channel.put(("seen by a worker", channel.transport), key=key)
    return other.get(key, timeout=DEADLINE_S), channel


def test_handles_are_small_and_travel_to_workers_and_back(channel, key, peers, transport):
    one, other = channel(), channel(maxsize=3)
    assert len(pickle.dumps(one)) < 2048
    assert one.transport == transport
    other.put("from the driver", key=key)
    got, back = peers.run(0, pass_on, one, key, other)
    assert got == "from the driver"
    assert back.get(key, timeout=DEADLINE_S) == ("seen by a worker", transport)
    assert (back.name, back.maxsize) == (one.name, 0)


@ray.remote(num_cpus=0)
class Answers:
    def answer(self):
        return 42


def use(channel, key):
    held = channel.get(key, timeout=DEADLINE_S)
    return ray.get(held["ref"]), ray.get(held["actor"].answer.remote())


def test_references_and_actor_handles_can_be_used_where_they_arrive(channel, key, peers):
    one = channel()
    one.put({"ref": ray.put("stored"), "actor": Answers.remote()}, key=key)
    assert peers.run(0, use, one, key) == ("stored", 42)


# Forked children.


def both_ways(channel, key):
    assert channel.get((key, "there"), timeout=DEADLINE_S) == "for the child"
    channel.put("for the parent", key=(key, "back"))
    return channel.qsize((key, "there"))


def both_ways_in_a_loop(channel, key):
    async def talk():
        assert (
            await channel.get((key, "there"), async_op=True, timeout=DEADLINE_S) == "for the child"
        )
        await channel.put("for the parent", key=(key, "back"), async_op=True)

    asyncio.run(talk())
    return 0


def with_a_child(channel, key, function, *, busy=False):
    """Use a handle, fork, and let the child use the inherited handle."""
    pending = channel.get((key, "busy"), async_op=True) if busy else None
    channel.put("for the child", key=(key, "there"))
    said = in_a_child(function, channel, key)
    got = channel.get((key, "back"), timeout=5.0) if said == "0" else None
    if pending is not None:
        channel.put("mine", key=(key, "busy"))
        assert pending.wait(timeout=DEADLINE_S) == "mine"
    return said, got


@shm
@pytest.mark.parametrize("how", [both_ways, both_ways_in_a_loop])
def test_a_child_of_a_worker_uses_the_handle_that_it_inherited(channel, key, peers, how):
    assert peers.run(0, with_a_child, channel(), key, how) == ("0", "for the parent")


def with_a_child_while_busy(channel, key):
    return with_a_child(channel, key, both_ways_in_a_loop, busy=True)


@shm
def test_a_forked_child_does_not_get_the_pending_items_of_its_parent(channel, key, peers):
    assert peers.run(0, with_a_child_while_busy, channel(), key) == ("0", "for the parent")


def get_and_say(channel, key):
    try:
        return channel.get(key, timeout=2.0)
    except Exception as error:  # noqa: BLE001  (the test looks at it)
        return f"{type(error).__name__}: {error}"


@over_a_lane
def test_a_child_uses_a_lane_that_its_parent_has_found(channel, key):
    one = channel()
    one.put("a", key=key)
    assert in_a_child(get_and_say, one, key) == "'a'"


@over_a_lane
def test_a_child_is_told_that_it_cannot_ask_where_the_actor_is(channel, key):
    """That needs Ray's connection, which a forked child cannot share."""
    one = channel()
    said = in_a_child(get_and_say, one, key)
    assert "was forked from process" in said
    assert "spawn" in said


# Threads.


def test_many_threads_find_their_way_to_a_fresh_handle_at_once(channel, key):
    one = Channel.connect(channel().name)
    for put in [in_thread(one.put, n, key=key) for n in range(8)]:
        put.result(DEADLINE_S)
    assert sorted(one.drain(key)) == list(range(8))
