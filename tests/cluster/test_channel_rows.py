"""Known defects of other channel implementations, which shoal must not have: a test for each."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import ray

from shoal import Channel, Worker, _backend
from shoal.errors import (
    ChannelDecodeError,
    ChannelExistsError,
    ShoalTimeoutError,
)
from support.channel_peers import Peers, pid_of_actor
from support.processes import DEADLINE_S, until

everywhere = pytest.mark.parametrize("transport", ["local", "shm", "lane"], indirect=True)
shm = pytest.mark.parametrize("transport", ["shm"], indirect=True)
pytestmark = pytest.mark.ray

BIG = 4_000_000


def put_for_ever(channel, key):
    while True:
        channel.put(np.ones(BIG), key=key)


def test_a_put_that_never_arrives_blocks_no_other(channel, key, victims):
    one = channel(maxsize=3)
    victim = victims.hire()
    victims.run(victim, put_for_ever, one, (key, "A"))
    until(lambda: one.full((key, "A")))
    os.kill(victims._pids[victim], signal.SIGSTOP)  # during a put, or waiting in one
    one.put("b", key=(key, "B"), timeout=5.0)
    assert one.get((key, "B"), timeout=5.0) == "b"
    assert one.qsize((key, "A")) >= 3
    victims.kill(victim)
    for _ in range(3):
        assert one.get((key, "A"), timeout=5.0)[0] == 1


class Unreadable:
    """Can be pickled but not unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def put_unreadable(channel, key, call):
    if call == "put_many":
        channel.put_many([Unreadable(), Unreadable()], key=key)
    else:
        for _ in range(2):
            work = channel.put(Unreadable(), key=key, async_op=call == "async")
            if work is not None:
                work.wait(timeout=DEADLINE_S)
    return channel.transport, os.getpid()


def not_rebuilt(channel, key):
    texts = []
    for get in (channel.get, lambda key, **options: channel.get_many(1, key, **options)):
        with pytest.raises(ChannelDecodeError) as caught:
            get(key, timeout=DEADLINE_S)
        texts.append(str(caught.value))
    return channel.transport, texts


@pytest.mark.parametrize("by", ["shm", "lane"])
@pytest.mark.parametrize("call", ["put", "put_many", "async"])
def test_an_item_that_cannot_be_rebuilt_names_its_producer(
    channel, key, peers, transport, call, by
):
    """The error names the producer, not the actor through which calls pass."""
    one = channel()
    used, pid = Peers(peers._group, by).run(0, put_unreadable, one, key, call)
    assert used == by
    used, texts = peers.run(1, not_rebuilt, one, key)
    assert used == transport
    where = f"channel-peers:1: the channel '{one.name}', key '{key}'"
    text = f"{where}: a message from process {pid} cannot be rebuilt here: ValueError: invalid"
    assert [each[: len(text)] for each in texts] == [text, text]


def fill(channel, key):
    works = [channel.put(n, key=(key, "A"), async_op=True) for n in range(5)]
    channel.put("b", key=(key, "B"), timeout=DEADLINE_S)
    assert channel.qsize((key, "B")) == 1
    return sum(work.done() for work in works)


def test_a_full_key_does_not_hold_up_another_one(channel, key, peers):
    one = channel(maxsize=1)
    assert peers.run(0, fill, one, key) <= 1
    assert one.get((key, "B"), timeout=DEADLINE_S) == "b"
    assert one.get((key, "A"), timeout=DEADLINE_S) == 0
    rest = []
    while len(rest) < 4:
        rest.append(one.get((key, "A"), timeout=DEADLINE_S))
    assert rest == [1, 2, 3, 4]


@shm
def test_items_of_one_node_do_not_pass_through_another_process(channel, key, peers):
    one = channel(private=True)
    actor = pid_of_actor(one)
    peers.run(0, Channel.put, one, "warm", 0, key)
    assert peers.run(1, Channel.get, one, key) == "warm"
    os.kill(actor, signal.SIGSTOP)  # a call to it would wait
    try:
        got = peers.start(1, get_all, one, key, 200)
        peers.run(0, put_all, one, key, 200)
        assert got.wait()[0] == list(range(200))
    finally:
        os.kill(actor, signal.SIGCONT)


def put_all(channel, key, count):
    for n in range(count):
        channel.put(n, key=key, timeout=DEADLINE_S)


def get_all(channel, key, count):
    return [channel.get(key, timeout=DEADLINE_S) for _ in range(count)]


@pytest.mark.timed
@everywhere
def test_waiting_costs_no_cpu_and_no_threads(channel, key, transport):
    one = channel(maxsize=1)
    one.put("a", key=(key, "full"))
    pending = [one.get((key, n), async_op=True) for n in range(20)]
    threads = threading.active_count()
    before = time.process_time()
    for wait in (lambda: one.get((key, "empty"), timeout=0.4),
                 lambda: one.put("b", key=(key, "full"), timeout=0.4)):  # fmt: skip
        with pytest.raises(ShoalTimeoutError):
            wait()
    assert time.process_time() - before < 0.4  # of 0.8 s
    over_the_lane = len(pending) if transport == "lane" else 0  # each get waits in a thread
    assert threading.active_count() <= threads + 1 + over_the_lane
    for work in pending:
        work.cancel()
    assert one.drain((key, "full")) == ["a"]


@pytest.mark.nightly
def test_items_outlive_their_producer_and_their_actor(channel, key, victims):
    one = channel(private=True)
    victim = victims.hire()
    ray.get(victims.run(victim, put_all, one, key, 50), timeout=DEADLINE_S)
    victims.kill(victim)
    os.kill(pid_of_actor(one), signal.SIGKILL)
    assert get_all(one, key, 50) == list(range(50))


def test_a_consumer_that_dies_while_it_waits_takes_nothing(channel, key, victims):
    one = channel()
    victim = victims.hire()
    victims.run(victim, get_all, one, key, 1)
    until(lambda: one.stats(key).waiting_consumers >= 1)
    victims.kill(victim)
    put_all(one, key, 2)
    assert get_all(one, key, 2) == [0, 1]


class Idle(Worker):
    """A group that is not a channel."""


def test_a_channel_is_not_taken_for_a_group_of_its_name(launch, cluster):
    launch(Idle, name="nochannel")
    with pytest.raises(ChannelExistsError, match="worker group"):
        Channel.create("nochannel")
    with pytest.raises(ChannelExistsError):
        Channel.connect("nochannel")


@shm
def test_arrays_are_not_copied_on_their_way_out(channel, key):
    one = channel()
    one.put({"a": np.ones(BIG), "b": [np.zeros(BIG, np.uint8)]}, key=key)
    got = one.get(key)
    for array in (got["a"], got["b"][0]):
        assert not array.flags.owndata
        assert array.flags.writeable
        if _backend.NAME == "rust":  # the pure core copies
            start = array.__array_interface__["data"][0]
            assert mapped_from(start).startswith("/dev/shm")


def mapped_from(address):
    with open("/proc/self/maps") as maps:  # noqa: PTH123  (not a file on disk)
        for line in maps:
            span, *_, path = line.split(None, 5) if line.count(" ") > 4 else (*line.split(), "")
            low, high = (int(end, 16) for end in span.split("-"))
            if low <= address < high:
                return path.strip()
    return ""
