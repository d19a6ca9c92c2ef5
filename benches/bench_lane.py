"""Puts into a channel of another node and gets from it over the lane, beside bare TCP in Python.

The producer and the consumer are processes on a core each; the lane's server is in a third process,
as a channel's actor is. One of the two is on the actor's node, in its shared memory. The other is in
another network namespace, connected by a veth, if root can make these here. Otherwise the network
is the loopback of the machine. Each row says which.
"""

import pytest

from harness.contenders import by_crew
from harness.lines import Load
from harness.lines_tcp import BareTcp, Echo, Lane, LaneGets, Zmq
from harness.processes import STAMPS
from harness.roles import Receive, ReceiveApart, Send, SendApart, time_of_all
from harness.roles_cost import SIDES, CpuTime, SendAfterPause, Share, fairness, time_of_shares
from harness.row import Goal, Row, Unit

MIB, GIB = 2**20, 2**30
# Nanoseconds between the arrival of a message and the next put: the receiver falls asleep.
ASLEEP = 300_000
# Seconds without a message: one more than until the server closes the connection.
PAUSE = 11
BATCH, PAIRS = 64, 8
SMALL, DICT = Load("bytes"), Load("dict")
LARGE = {f"{mib} MiB": Load("array", mib * MIB, depth=4) for mib in (1, 16, 64)}
LANES = {"put": Lane, "get": LaneGets}
# The goal of arrays, and of each stream of small messages, as a share of the rival's rate, by the
# operation of the process on another node.
SHARES = {"put": 0.9, "get": 0.8}
STREAMS = {
    "64 B, one by one": (SMALL, 1, {"put": 0.8, "get": 0.4}),
    f"64 B, by {BATCH}": (SMALL, BATCH, {"put": 0.5, "get": 0.3}),
    f"dict of five values, by {BATCH}": (DICT, BATCH, {"put": 0.2}),
}
ONE_PAIR, ALL_PAIRS = "lane, one pair", f"lane, {PAIRS} pairs"
CORE, CONNECTIONS = "core, %", "connections of the producer"

both = pytest.mark.parametrize("far", LANES)


def contenders(*kinds):
    return pytest.mark.parametrize("contender", [kind.name for kind in kinds])


@pytest.fixture
def run(measure, network, far):
    """Measure a row with its rivals; `far` is the operation of the process on another node."""

    def run(name, load, roles, *goals, rivals=(BareTcp, Zmq), own_time=False, **more):
        kinds = [*rivals, LANES[far]]
        first = kinds[0].name
        row = Row(
            f"{far} over {network.name}: {name}", first, {Lane.name: goals}, limit=first,
            load=load, roles=roles, optional=[Zmq.name], **more,
        )  # fmt: skip
        options = {"own_time": own_time, "network": network}
        measure(row, {kind.name: by_crew(row, kind, **options) for kind in kinds})

    return run


def share_of(rival, share):
    return Goal(f"≥ {share} of {rival.name}", times=1 / share)


@contenders(BareTcp, Zmq, Lane)
@both
def test_one_way(run):
    run(
        "64 B, one way, receiver asleep",
        SMALL,
        lambda line: [SendApart(line, SMALL, ASLEEP), ReceiveApart(line, SMALL)],
        Goal("≤ 1.5 of bare TCP", times=1.5),
        least=10,
        most=STAMPS,
    )


@contenders(Echo, Zmq, Lane)
@both
@pytest.mark.parametrize("name", STREAMS)
def test_stream(run, far, name):
    """The load of the line is sent, because an echo has its own."""
    load, batch, shares = STREAMS[name]
    run(
        name,
        load,
        lambda line: [Send(line, line.load, batch), Receive(line, line.load, batch)],
        *([share_of(Echo, shares[far])] if far in shares else []),
        rivals=(Echo, Zmq),
        read=time_of_all,
        unit=Unit.per_second(),
        least=batch,
        most=100_000 // BATCH * BATCH,
    )


@contenders(BareTcp, Zmq, Lane)
@both
@pytest.mark.parametrize("size", LARGE)
def test_large(run, far, size):
    load = LARGE[size]
    run(
        f"array of {size}, stream",
        load,
        lambda line: [Send(line, load), Receive(line, load)],
        share_of(BareTcp, SHARES[far]),
        read=time_of_all,
        unit=Unit.per_second(load.size),
        least=2,
        most=1_000,
    )


@contenders(BareTcp, Zmq, Lane)
@both
def test_processor_time(run):
    """Add up the time of all processes, with the one of the lane's server."""
    load = LARGE["16 MiB"]
    run(
        "processor time of 1 GiB in arrays of 16 MiB",
        load,
        lambda line: [CpuTime(Send(line, load)), CpuTime(Receive(line, load))],
        Goal("≤ 1.5 of bare TCP", times=1.5),
        own_time=True,
        read=lambda answers, _count: [processor_time(answers)],
        least=GIB // load.size,
        most=GIB // load.size,
    )


@contenders(Lane)
@both
def test_after_pause(run, far):
    """Count the core's use by both ends of the connection; it is idle unless a consumer waits in it."""
    idle = [
        Goal("≤ 0.1 % of a core", cost=0.1, of=CORE),
        Goal("closed after 10 s", cost=0.5, of=CONNECTIONS),
    ]
    user = list(LANES).index(far)
    run(
        f"64 B, one way, after {PAUSE} s",
        SMALL,
        lambda line: [CpuTime(SendAfterPause(line, PAUSE)), CpuTime(ReceiveApart(line, SMALL))],
        Goal("≤ 1 ms", cost=1e6),
        *(idle if far == "put" else []),
        rivals=(),
        own_time=True,
        read=lambda answers, _count: [answers[0][0][0]],
        extra=lambda answers: {
            CORE: processor_time([answers[user], answers[-1]]) / (PAUSE * 1e7),
            **({CONNECTIONS: answers[0][0][1]} if far == "put" else {}),
        },
        rounds=3,
    )


def processor_time(answers):
    """Add up the nanoseconds of processes: answers of `CpuTime`, and last that of this process."""
    *timed, own = answers
    return sum(spent for _answer, spent in timed) + own


@pytest.mark.parametrize("contender", [ONE_PAIR, ALL_PAIRS])
@both
def test_pairs(measure, network, far):
    goals = [Goal(f"≥ 0.9 of {ONE_PAIR}", times=1 / 0.9)]
    goals += [Goal(f"{side}: ≤ 1.5", cost=1.5, of=side) for side in SIDES]
    row = Row(
        f"{far} over {network.name}: 64 B, {PAIRS} producers and {PAIRS} consumers", ONE_PAIR,
        {ALL_PAIRS: goals}, limit=ONE_PAIR, load=SMALL, read=time_of_shares, extra=fairness,
        unit=Unit.per_second(), least=20_000, most=20_000, processes=2 * PAIRS, anywhere=True,
    )  # fmt: skip

    def pairs(number):
        sides = [True] * number + [False] * number
        return lambda line: [Share(line, puts, number) for puts in sides]

    measure(
        row,
        {
            name: by_crew(row, LANES[far], pairs(number), network=network)
            for name, number in ((ONE_PAIR, 1), (ALL_PAIRS, PAIRS))
        },
    )
