"""A job written for RLinf, which `test_script.py` runs; it and `stages` do not mention shoal.

Arguments: the file for the results, then the exit code.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import rlinf.scheduler
import stages
from rlinf.scheduler import (
    Channel,
    Cluster,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    Worker,
)
from rlinf.scheduler.worker.worker_group import WorkerGroup

FACTOR = 10


@dataclass
class Number:
    value: int


def scaled(value: int) -> Number:
    return Number(value * FACTOR)


class Producer(Worker):
    """Defined in the script: workers get it by value, with the names of the script that it uses."""

    def __init__(self, amount: int):
        super().__init__()
        self._amount = amount

    def open(self, name: str) -> str:
        self._channel = self.create_channel(name, maxsize=4)
        return self._worker_name

    def produce(self, name: str) -> int:
        channel = self.connect_channel(name)
        if not isinstance(channel, rlinf.scheduler.Channel):
            raise TypeError(f"{type(channel)} is not the Channel that this script knows")
        for value in range(self._amount):
            channel.put(scaled(value), weight=1, key="numbers")
        return self._rank


def placement(cluster: Cluster):
    if cluster.num_accelerators:
        return PackedPlacementStrategy(0, 0, num_hardware_per_process=1)
    return NodePlacementStrategy([0])


def main() -> None:
    cluster = Cluster(num_nodes=1)
    producers = Producer.create_group(4).launch(
        cluster, NodePlacementStrategy([0, 0]), name="producers"
    )
    consumers = stages.Consumer.create_group().launch(
        cluster=cluster, placement_strategy=placement(cluster), name="consumers"
    )
    results = Channel.create("results")
    opened = producers.execute_on([0]).open("work").wait()
    produced = producers.produce("work")  # twice four numbers: a channel of four cannot hold them
    taken = []
    for _ in range(2):
        consumed = consumers.consume("work", results)
        taken += results.get_batch(1)
        consumed.wait()
    numbers = sorted(n.value for first, pair, last in taken for n in (first, *pair, last))
    report = {
        "arguments": sys.argv[2:],
        "group": isinstance(producers, WorkerGroup),
        "opened": opened,
        "produced": produced.wait(),
        "numbers": numbers,
        "consumer": consumers.describe().wait(),
        "same class": all(type(first) is Number for first, *_ in taken),
        "left": results.qsize(),
    }
    Path(sys.argv[1]).write_text(json.dumps(report), encoding="utf-8")
    sys.exit(int(sys.argv[2]))


if __name__ == "__main__":
    main()
