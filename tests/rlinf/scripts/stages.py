"""A user's module beside `job.py`, which workers import by name."""

import sys

from rlinf.scheduler import Channel, Worker, WorkerAddress
from rlinf.scheduler.cluster.cluster import Cluster


class Consumer(Worker):
    """Takes the producers' items, by every call that the interface offers."""

    def consume(self, name: str, results: Channel) -> None:
        channel = self.connect_channel(name)
        first = channel.get(queue_name="numbers")
        pair = channel.get_batch(2, key="numbers")
        async_one = channel.get(key="numbers", async_op=True).wait()
        results.put((first, pair, async_one), weight=1)

    def describe(self) -> dict[str, object]:
        return {
            "base": Worker.__module__,
            "address": isinstance(self.worker_address, WorkerAddress),
            "nodes": Cluster().num_nodes,
            "served": sys.modules["rlinf.scheduler"].__spec__.origin,
        }
