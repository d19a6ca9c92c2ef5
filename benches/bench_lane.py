"""Puts into a channel of another node and gets from it over the lane, compared with bare TCP in Python.

The producer and the consumer are processes on a core each; the lane's server is in a third process,
as a channel's actor is. One of the two is on the actor's node, in its shared memory. All are on one
machine: its loopback is the network.
"""

import pytest

from harness.contenders import by_crew
from harness.lines import Load
from harness.lines_tcp import BareTcp, Lane, LaneGets
from harness.processes import STAMPS
from harness.roles import Receive, ReceiveApart, Send, SendApart, time_of_all
from harness.row import Goal, Row, Unit

MIB = 2**20
# Nanoseconds between the arrival of a message and the next put: the receiver falls asleep.
ASLEEP = 300_000
BATCH = 64
SMALL = Load("bytes")
LARGE = {f"{mib} MiB": Load("array", mib * MIB, depth=4) for mib in (1, 16, 64)}
LANES = {"put": Lane, "get": LaneGets}

all_contenders = pytest.mark.parametrize("contender", [BareTcp.name, Lane.name])
both = pytest.mark.parametrize("far", LANES)


@pytest.fixture
def run(measure, far):
    """Measure a row with both contenders; `far` is the operation of the process on another node."""

    def run(name, load, roles, goal, **more):
        row = Row(
            f"{far}: {name}", BareTcp.name, {Lane.name: [goal]}, limit=BareTcp.name, load=load,
            roles=roles, **more,
        )  # fmt: skip
        kinds = {BareTcp.name: BareTcp, Lane.name: LANES[far]}
        measure(row, {name: by_crew(row, kind) for name, kind in kinds.items()})

    return run


@all_contenders
@both
def test_one_way(run):
    run(
        "64 B, one way, receiver asleep",
        SMALL,
        lambda line: [SendApart(line, SMALL, ASLEEP), ReceiveApart(line, SMALL)],
        Goal("≤ 4 of bare TCP", times=4),
        least=10,
        most=STAMPS,
    )


@all_contenders
@both
@pytest.mark.parametrize("batch", [1, BATCH])
def test_stream(run, batch):
    goal = Goal("≥ 15,000/s", cost=1e9 / 15_000) if batch == 1 else Goal("≥ 1 M/s", cost=1_000)
    run(
        f"64 B, by {batch}",
        SMALL,
        lambda line: [Send(line, SMALL, batch), Receive(line, SMALL, batch)],
        goal,
        read=time_of_all,
        unit=Unit.per_second(0),
        least=batch,
        most=100_000 // BATCH * BATCH,
    )


@all_contenders
@both
@pytest.mark.parametrize("size", LARGE)
def test_large(run, size):
    load = LARGE[size]
    run(
        f"array of {size}, stream",
        load,
        lambda line: [Send(line, load), Receive(line, load)],
        Goal("≥ 0.8 of bare TCP", times=1.25),
        read=time_of_all,
        unit=Unit.per_second(load.size),
        least=2,
        most=1_000,
    )
