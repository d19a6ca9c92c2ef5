"""A channel beside `ray.util.queue`: objects put and got by the driver.

One by one, each put and each get is a call that is waited for. In a batch, 1,000 small objects are
put by asynchronous puts, or by the rival's own batch call, and taken out at once.
"""

import numpy as np
import pytest
import ray
from ray.util.queue import Queue

from shoal import Channel
from side_by_side import Contender

ITEMS = {
    "dict of five values": ({"a": 1, "b": 2.0, "c": "x", "d": None, "e": True}, 1000),
    "100 B": (b"x" * 100, 500),
    "dict with an array of 10 kB": ({"obs": np.zeros(1250), "done": False}, 300),
    "array of 1 MiB": (np.zeros(2**20, dtype=np.uint8), 40),
    "array of 16 MiB": (np.zeros(2**24, dtype=np.uint8), 10),
}
BATCH = 1000


@pytest.fixture(scope="module")
def channel(cluster):
    made = Channel.create("bench")
    yield made
    made.close()


@pytest.fixture(scope="module")
def queue(cluster):
    made = Queue(actor_options={"num_cpus": 0})
    yield made
    made.shutdown()


@pytest.mark.parametrize("name", ITEMS)
def test_one_by_one(race, channel, queue, name):
    item, rounds = ITEMS[name]

    def through(made):
        def run():
            made.put(item)
            return made.get()

        return Contender(run)

    rivals = {"ray.util.queue": through(queue), "shoal channel": through(channel)}
    race.run(f"put and get: {name}", rivals, rounds, warmup=20)


def test_in_a_batch(race, channel, queue):
    items = [ITEMS["dict of five values"][0]] * BATCH

    def through_channel():
        works = [channel.put(item, weight=1, async_op=True) for item in items]
        for work in works:
            work.wait(timeout=60)
        assert len(channel.get_batch(BATCH, timeout=60)) == BATCH

    def through_queue():
        queue.put_nowait_batch(items)
        assert len(queue.get_nowait_batch(BATCH)) == BATCH

    def through_queue_one_by_one():
        for item in items:
            queue.put(item)
        for _ in items:
            queue.get()

    rivals = {
        "ray.util.queue, one by one": Contender(through_queue_one_by_one),
        "ray.util.queue, its batch calls": Contender(through_queue),
        "shoal channel, async_op and get_batch": Contender(through_channel),
    }
    race.run(f"{BATCH} small objects", rivals, rounds=5)
    assert ray.is_initialized()
