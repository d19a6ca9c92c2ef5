"""A channel between two workers of one node, beside the queue that it consists of and Ray's own.

The workers of a job have a core each. The same two send by `shoal.shm`, which is what a channel is
measured by, through the channel, through the channel as if they were on two nodes, and through
`ray.util.queue`; those of a second job do so with the core in Python.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import ray

from crew import STAMPS, cores
from figures import Cost, Figures, Goal, Unit
from jobs import Job
from lines import Line, Load, Shoal
from named_lines import (
    NAMES,
    ByCalls,
    ByChannel,
    FillAndDrain,
    RayQueue,
    fresh_channel,
    fresh_session,
)
from roles import Answer, Ask, Receive, ReceiveApart, Send, SendApart
from rounds import Rounds, Row

KIB, MIB = 2**10, 2**20
# In nanoseconds, between a message's arrival and the next: long enough for the receiver to sleep.
ASLEEP = 300_000
BATCH, LARGE_BATCH = 64, 1024
SMALL = {"64 B": Load("bytes"), "1 KiB": Load("bytes", KIB), "dict of five values": Load("dict")}
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB}
TENSORS = {f"tensor of {name}": Load("array", size, depth=4) for name, size in SIZES.items()}
LOADS = {**SMALL, **TENSORS}
FULL = 64 * MIB


@dataclass(frozen=True)
class Contender:
    """Who sends: the core of its job, and how it makes the line of a name."""

    backend: str
    line: Callable[[Load, str], Line]


SHM, CHANNEL, RAY, QUEUE = Shoal.name, ByChannel.name, ByCalls.name, RayQueue.name
PURE = "channel, in pure Python"
CONTENDERS = {
    SHM: Contender("rust", lambda load, _name: Shoal(load)),
    CHANNEL: Contender("rust", ByChannel),
    RAY: Contender("rust", ByCalls),
    PURE: Contender("pure", ByChannel),
    QUEUE: Contender("rust", RayQueue),
}
# These have fewer rounds. None of them has to work for the table to be made.
SLOW = (RAY, PURE, QUEUE)
NEAR = Goal(f"≤ 1.3 of {SHM}", times=1.3)


class Table:
    """Runs rows of channels, in two jobs, and collects their figures."""

    def __init__(self, figures: Figures, jobs: dict[str, Job], *, smoke: bool) -> None:
        self.figures = figures
        self._rounds = Rounds(figures, None, smoke=smoke)
        self._jobs = jobs

    def run(self, row: Row, *more: Goal, ray: tuple[Goal, ...] = ()) -> None:
        """Run a row with all contenders.

        Args:
            row: The row; the goal of all is that the channel is near to the queue.
            more: Other goals of the channel.
            ray: Goals of the channel by calls.
        """
        with ExitStack() as stack:
            contenders = {}
            for name, contender in CONTENDERS.items():
                lines = [contender.line(row.load, called) for called in NAMES[: row.lines]]
                for line in lines:
                    stack.callback(line.close)
                contenders[name] = self.timed(row, name, row.roles(*lines))
            others = {name: ExitStack() for name in SLOW}
            goals = {CHANNEL: (NEAR, *more), RAY: ray}
            self._rounds.measure(row, contenders, others, goals, ours=CHANNEL, limit=SHM, slow=SLOW)

    def timed(self, row: Row, name: str, roles: list) -> Callable[[int], list]:
        """Make the rounds of a contender."""
        job = self._jobs[CONTENDERS[name].backend]
        return lambda count: row.read(job.play(name, row.what, roles, count), count)


@pytest.fixture(scope="module")
def table(cluster, pytestconfig):
    """Start both jobs; print the table after the last row."""
    both = cores()
    figures = Figures(f"Between two workers of one node, on cores {both[0]} and {both[1]}")
    if both[0] == both[1]:
        figures.note("one core only: nobody can spin, and all figures are of taking turns")
    smoke = pytestconfig.getoption("--smoke")
    if smoke:
        figures.note("smoke: one short round, with memory that nothing has touched yet")
    address = ray.get_runtime_context().gcs_address
    with ExitStack() as stack:
        jobs = {backend: Job(address, backend) for backend in ("rust", "pure")}
        for job in jobs.values():
            stack.callback(job.close)
            job.start()  # both at once
        yield Table(figures, jobs, smoke=smoke)
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        figures.print()


def first(answers, _count):
    """Read the samples that the first worker took."""
    return answers[0]


def all_together(answers, count):
    """Read the time of all messages, from the first put until the last get, of a message."""
    start, end = answers
    return [(end - start) / count]


def stream(name, batch=1):
    load = LOADS[name]
    small = name in SMALL
    unit = Unit.per_second(0 if small else load.size)
    # 64 MiB of distinct messages are enough.
    most = min(200_000, FULL // load.size) if small else 20_000

    def roles(line):
        return [Send(line, load, batch), Receive(line, load, batch)]

    what = f"{name}, stream by {batch}" if batch > 1 else f"{name}, stream"
    return Row(what, load, roles, all_together, unit, max(batch, 50) if small else 2, most)


@pytest.mark.parametrize("name", LOADS)
def test_one_way_spinning(table, name):
    load = LOADS[name]

    def roles(there, back):
        return [Ask(there, back, load), Answer(there, back)]

    what = f"{name}, one way, ping-pong"
    least = 20 if name in SMALL else 2
    row = Row(what, load, roles, first, Unit.time(), least, 100_000, lines=2)
    table.run(row, *([Goal("≤ 0.5 µs", cost=500)] if name == "64 B" else []))


@pytest.mark.parametrize("name", LOADS)
def test_one_way_asleep(table, name):
    load = LOADS[name]

    def roles(line):
        return [SendApart(line, load, ASLEEP), ReceiveApart(line, load)]

    least = 10 if name in SMALL else 2
    what = f"{name}, one way, receiver asleep"
    table.run(Row(what, load, roles, first, Unit.time(), least, STAMPS))


@pytest.mark.parametrize("name", LOADS)
def test_stream(table, name):
    table.run(stream(name))


@pytest.mark.parametrize("name", SMALL)
def test_stream_in_batches(table, name):
    table.run(stream(name, BATCH))


def test_stream_in_large_batches(table):
    """What a call between nodes costs is that of many items, where there are many."""
    goals = (Goal("≥ 50,000/s", cost=1e9 / 50_000),)
    table.run(stream("64 B", LARGE_BATCH), ray=goals)


@pytest.mark.parametrize("size", ["64 KiB", pytest.param("1 MiB", marks=pytest.mark.measured)])
def test_memory(table, size):
    """Once is enough: nothing here depends on the hour."""
    load = Load("array", SIZES[size])
    made = {SHM: fresh_session, CHANNEL: fresh_channel, PURE: fresh_channel}
    what = f"64 MiB in tensors of {size}"
    row = Row(what, load, list, first, Unit.share(), 1, 1)
    shares = {}
    for name, fresh in made.items():
        timed = table.timed(row, name, [FillAndDrain(fresh, load)])
        shares[name] = timed(FULL // load.size)
    for state, (at, goal) in {
        "full": (0, Goal("≤ 110 %", cost=1.1)),
        "drained": (1, Goal("≤ 1 %, the base", cost=0.01)),
    }.items():
        costs = {name: Cost(share[at], None) for name, share in shares.items()}
        table.figures.add(
            f"{what}, {state}: memory", costs, row.unit, {CHANNEL: [goal]}, ours=CHANNEL
        )
