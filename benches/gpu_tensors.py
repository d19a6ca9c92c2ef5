"""Prints a table of the times that tensors take between workers of one GPU (docs/performance.md).

usage: gpu_tensors.py [cpu]    cpu: tries the program without a GPU, with small tensors of the CPU

Two groups of four workers share the GPU. `SHOAL_TRANSPORT=shm` makes the second one send the tensors
through the CPU's memory. The rows of a size take turns, in random order, so that other load on the
machine meets all of them. The program fails if the tensors did not take the way that a row names.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import shoal
from shoal import Cluster, ComponentPlacement, Worker

KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "64 MiB": 64 * MIB, "1 GiB": GIB}
MEMBERS = 4
DIRECT, STAGED = "direct", "staged"
# Rounds before the measured ones: the first messages open connections and take memory.
WARM_UP = 2
# Seconds for the start of all workers, and for a round.
START, ROUND = 100, 60


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        name: Its first cell.
        group: The group of workers.
        method: The method of `Member` that its ranks call for one round.
        ranks: Number of these ranks, from 0 on.
        rounds: Number of measured rounds.
    """

    name: str
    group: str
    method: str
    ranks: int
    rounds: int


ROWS = (
    Row("`send` and its answer", DIRECT, "send_and_answer", 2, 11),
    Row("the same through the CPU's memory", STAGED, "send_and_answer", 2, 11),
    Row("`send_tensor` and its answer", DIRECT, "send_tensor_and_answer", 2, 11),
    Row("`broadcast` to three others", DIRECT, "give_all", MEMBERS, 7),
    Row("the same through the CPU's memory", STAGED, "give_all", MEMBERS, 7),
    Row("a copy on the device, by torch", DIRECT, "copy", 1, 11),
)


# The begin and the end of a worker's round, in seconds of the machine's clock.
Span = tuple[float, float]


class Member(Worker):
    """A worker of a group.

    In each round the others tell rank 0 when they wait for its tensor. Rank 0 begins after that.
    """

    def prepare(self, device: str, nbytes: int) -> None:
        """Make the tensors of a size, and free those of the size before."""
        torch = import_module("torch")
        self._device = device
        self._tensor = self._other = None
        if self._rank < 2:
            self._tensor = torch.zeros(nbytes // 4, dtype=torch.float32, device=device)
        if self._rank == 0:
            self._other = torch.zeros_like(self._tensor)
        self._synchronize()

    def machine(self) -> list[str]:
        """The device, the number of cores, and torch's version."""
        torch = import_module("torch")
        name = "CPU" if self._device == "cpu" else torch.cuda.get_device_name()
        return [name, f"{os.cpu_count()} cores", f"torch {torch.__version__}"]

    def ways(self) -> list[tuple[str, str]]:
        """The transport of rank 0's tensors to each other rank, and the reason for it."""
        others = range(1, MEMBERS)
        choices = [self.transport_to(self._group_name, rank, self._device) for rank in others]
        return [(choice.name, choice.reason) for choice in choices]

    def send_and_answer(self, number: int) -> Span | None:
        """Send a tensor from rank 0 to rank 1, which answers with one of its values."""
        return self._round_trip(number, self.send, lambda: self.recv(self._group_name, 0))

    def send_tensor_and_answer(self, number: int) -> Span | None:
        """Send the same into a tensor that rank 1 has."""

        def receive():
            self.recv_tensor(self._tensor, self._group_name, 0)
            return self._tensor

        return self._round_trip(number, self.send_tensor, receive)

    def _round_trip(self, number, send, receive) -> Span | None:
        if self._rank == 1:
            self.send("ready", self._group_name, 0)
            tensor = receive()
            self.send(tensor[0].item(), self._group_name, 0)
            self._check(tensor, number)
            return None
        self._fill(number)
        self.recv(self._group_name, 1)
        begin = time.perf_counter()
        send(self._tensor, self._group_name, 1)
        answer = self.recv(self._group_name, 1)
        span = begin, time.perf_counter()
        assert answer == number
        return span

    def give_all(self, number: int) -> Span:
        """Broadcast a tensor from rank 0; a worker ends when the tensor is on its device."""
        ranks = list(range(MEMBERS))
        mine = None
        if self._rank == 0:
            self._fill(number)
            mine = self._tensor
            for rank in ranks[1:]:
                self.recv(self._group_name, rank)
        else:
            self.send("ready", self._group_name, 0)
        begin = time.perf_counter()
        tensor = self.broadcast(mine, groups=[(self._group_name, ranks)], src=(self._group_name, 0))
        self._synchronize()
        span = begin, time.perf_counter()
        self._check(tensor, number)
        return span

    def copy(self, number: int) -> Span:
        """Copy a tensor to another one of this worker."""
        self._fill(number)
        begin = time.perf_counter()
        self._other.copy_(self._tensor)
        self._synchronize()
        span = begin, time.perf_counter()
        self._check(self._other, number)
        return span

    def _fill(self, number: int) -> None:
        """Put the number of the round at the beginning and the end of the tensor."""
        self._tensor[0] = self._tensor[-1] = number
        self._synchronize()

    def _check(self, tensor, number: int) -> None:
        assert tensor.device.type == self._device
        assert tensor[0].item() == tensor[-1].item() == number

    def _synchronize(self) -> None:
        if self._device == "cuda":
            import_module("torch").cuda.synchronize()


def measure(groups, row: Row, number: int) -> list[float]:
    """Play a round of a row; return the seconds from the begin at rank 0 to each rank's end."""
    group = groups[row.group].execute_on(range(row.ranks))
    spans = getattr(group, row.method)(number).wait(ROUND)
    begin, _ = spans[0]
    return [span[1] - begin for span in spans if span]


def medians(groups) -> list[float]:
    """Return the median of each row in seconds: that of the slowest rank."""
    rounds: dict[Row, list[list[float]]] = {row: [] for row in ROWS}
    for number in range(WARM_UP + max(row.rounds for row in ROWS)):
        for row in random.sample(ROWS, len(ROWS)):
            if number < WARM_UP + row.rounds:
                rounds[row].append(measure(groups, row, number))
    return [
        max(median(times) for times in zip(*rounds[row][WARM_UP:], strict=True)) for row in ROWS
    ]


def milliseconds(seconds: float) -> str:
    """Write a time with three digits."""
    number = seconds * 1e3
    return f"{number:,.0f} ms" if number >= 100 else f"{number:.3g} ms"


def cells(*texts: str) -> str:
    """Write a line of the table."""
    return "|" + "".join(f" {text} |" if text else " |" for text in texts)


def check_ways(ways: dict[str, list[tuple[str, str]]], device: str) -> None:
    """Stop the program if a group's tensors took another way than its rows say."""
    expected = {DIRECT: "shm" if device == "cpu" else "cuda_ipc", STAGED: "shm"}
    for group, found in ways.items():
        for name, reason in found:
            if name != expected[group]:
                sys.exit(
                    f"gpu_tensors.py: expected {expected[group]} in the group {group!r}; "
                    f"the tensors went by {name}: {reason}"
                )


def config(device: str) -> dict:
    """Return the configuration of the job: all workers on the first device, or on the node."""
    label = {"node_ranks": 0, "ignore_hardware": device == "cpu"}
    variables = {"node_ranks": 0, "env_vars": [{"SHOAL_TRANSPORT": "shm"}]}
    ranks = f"0:0-{MEMBERS - 1}"
    return {
        "num_nodes": 1,
        "node_groups": [
            {"label": DIRECT, **label},
            {"label": STAGED, **label, "env_configs": [variables]},
        ],
        "component_placement": {
            group: {"node_group": group, "placement": ranks} for group in (DIRECT, STAGED)
        },
    }


@contextmanager
def job(device: str) -> Iterator[dict]:
    """Run a job, on a Ray of its own; gives its two groups by name."""
    with TemporaryDirectory(prefix="shoal-g-", dir="/tmp") as folder:
        os.environ.setdefault("RAY_TMPDIR", folder)
        os.environ.setdefault("RAY_worker_niceness", "0")
        document = config(device)
        with Cluster(cluster_cfg=document, timeout=START) as cluster:
            placement = ComponentPlacement(document, cluster)
            groups = {
                name: Member.create_group().launch(cluster, placement.get_strategy(name), name)
                for name in (DIRECT, STAGED)
            }
            for group in groups.values():
                group.ready(START)
            yield groups


def main(device: str) -> None:
    """Measure, and print the table."""
    sizes = {"cuda": SIZES, "cpu": {name: SIZES[name] for name in ("64 KiB", "1 MiB")}}[device]
    columns = []
    with job(device) as groups:
        for nbytes in sizes.values():
            for prepared in [group.prepare(device, nbytes) for group in groups.values()]:
                prepared.wait(START)
            columns.append(medians(groups))
        ways = {name: group.execute_on(0).ways().wait(ROUND)[0] for name, group in groups.items()}
        machine = groups[DIRECT].execute_on(0).machine().wait(ROUND)[0]
    check_ways(ways, device)
    print(", ".join([*machine, f"shoal {shoal.__version__}"]))
    for group, found in ways.items():
        print(f"tensors of the group {group!r}: {found[0][0]} ({found[0][1]})")
    print("\n" + cells("", *sizes))
    print(cells(*["---"] * (1 + len(sizes))))
    for row, *times in zip(ROWS, *columns, strict=True):
        print(cells(row.name, *map(milliseconds, times)))


if __name__ == "__main__":
    if sys.argv[1:] == ["cpu"]:
        main("cpu")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    elif not import_module("torch").cuda.is_available():
        sys.exit("gpu_tensors.py: torch sees no GPU here; `gpu_tensors.py cpu` works without one")
    else:
        main("cuda")
