"""A channel beside ray.util.queue: one object put and got, from the driver.

Both run once in each round, in random order, so that a machine that is busy slows both alike; the ratio of
the medians is what counts.
"""

import random
import statistics
import time

import numpy as np
import pytest

ray = pytest.importorskip("ray")

from ray.util.queue import Queue  # noqa: E402  (after the skip)

from shoal import Cluster  # noqa: E402  (as above)
from shoal.channel import Channel  # noqa: E402  (as above)

PAYLOADS = {
    "100 B": b"x" * 100,
    "small dict": {"obs": [0.1, 0.2, 0.3, 0.4], "step": 3, "done": False},
    "10 kB dict": {"obs": np.zeros(1250), "step": 3, "done": False},
    "1 MiB": np.zeros(2**20, dtype=np.uint8),
    "16 MiB": np.zeros(2**24, dtype=np.uint8),
}
ROUNDS = {"100 B": 400, "small dict": 800, "10 kB dict": 300, "1 MiB": 40, "16 MiB": 10}


@pytest.fixture(scope="module")
def rivals():
    with Cluster(num_nodes=1):
        channel, queue = Channel.create("bench"), Queue(actor_options={"num_cpus": 0})
        yield {"channel": channel, "ray.util.queue": queue}
        queue.shutdown()


@pytest.mark.parametrize("name", PAYLOADS)
def test_put_and_get_beside_ray_queue(rivals, name, record_property, capsys):
    item, times = PAYLOADS[name], {rival: [] for rival in rivals}
    for round_number in range(ROUNDS[name] + 2):
        for rival, queue in random.sample(list(rivals.items()), len(rivals)):
            start = time.perf_counter()
            queue.put(item)
            queue.get()
            if round_number >= 2:
                times[rival].append(time.perf_counter() - start)
    medians = {rival: statistics.median(spent) * 1e3 for rival, spent in times.items()}
    ratio = medians["channel"] / medians["ray.util.queue"]
    record_property("ratio", ratio)
    with capsys.disabled():
        listed = ", ".join(f"{rival} {spent:.2f} ms" for rival, spent in medians.items())
        print(f"\n{name}: {listed}, ratio {ratio:.2f}")
    if name == "small dict":
        assert ratio < 1, f"a small object: {listed}"


def test_asynchronous_puts(rivals, benchmark):
    channel = rivals["channel"]

    def puts():
        works = [channel.put(n, async_op=True) for n in range(1000)]
        for work in works:
            work.wait(timeout=60)

    benchmark.pedantic(puts, rounds=5)
    assert channel.qsize() == 5000
