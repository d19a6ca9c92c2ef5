"""A channel between two workers of one node, compared with a bare queue and with Ray's queue.

Each worker of a job has its own core. The two workers send through `shoal.shm`, which is the
reference, through the channel, through the channel as if they were on two nodes, and through
`ray.util.queue`. The workers of a second job send through a channel with the core in Python.
"""

from contextlib import ExitStack

import pytest
import ray

from harness.contenders import by_job
from harness.lines import Load, Shoal
from harness.lines_in_job import AsyncOverLane, ByChannel, OverLane, RayQueue
from harness.processes import STAMPS
from harness.ray_job import Job
from harness.roles import Answer, Ask, Receive, ReceiveApart, Send, SendApart, time_of_all
from harness.roles_memory import FillAndDrain, fresh_channel, fresh_session
from harness.roles_reserve import BuildAndPut
from harness.row import Goal, Row, Unit

KIB, MIB = 2**10, 2**20
# Nanoseconds between the arrival of a message and the next put: the receiver falls asleep.
ASLEEP = 300_000
BATCH, LARGE_BATCH = 64, 1024
SMALL = {"64 B": Load("bytes"), "1 KiB": Load("bytes", KIB), "dict of five values": Load("dict")}
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB}
TENSORS = {f"tensor of {name}": Load("array", size, depth=4) for name, size in SIZES.items()}
LOADS = {**SMALL, **TENSORS}
FULL = 64 * MIB

SHM, CHANNEL, LANE, QUEUE = Shoal.name, ByChannel.name, OverLane.name, RayQueue.name
PURE = "channel, in pure Python"
# Each contender: the core of its job, and the function that makes its line.
CONTENDERS = {
    SHM: ("rust", lambda load, _number: Shoal(load)),
    CHANNEL: ("rust", ByChannel),
    LANE: ("rust", OverLane),
    PURE: ("pure", ByChannel),
    QUEUE: ("rust", RayQueue),
}
# Contenders that have fewer rounds, and whose failure does not fail the benchmark.
SLOW = (LANE, PURE, QUEUE)
FRESH = {SHM: fresh_session, CHANNEL: fresh_channel, PURE: fresh_channel}
# Contenders of the row of arrays that a producer builds: where it builds them.
BUILT = {
    "in a new array, put": "new array",
    "in one array, put": "same array",
    "reserve": "reserves",
}
NEAR = Goal(f"≤ 1.3 of {SHM}", times=1.3)

all_contenders = pytest.mark.parametrize("contender", CONTENDERS)


@pytest.fixture(scope="module")
def jobs(cluster):
    """The two jobs by their core, started at the same time."""
    address = ray.get_runtime_context().gcs_address
    with ExitStack() as stack:
        made = {
            core: Job({"RAY_ADDRESS": address, "SHOAL_BACKEND": core}) for core in ("rust", "pure")
        }
        for job in made.values():
            stack.callback(job.close)
            job.start()
        yield made


@pytest.fixture
def send(measure, jobs):
    """Measure a row of messages with all contenders."""

    def run(name, load, roles, *goals, over_lane=(), **more):
        row = Row(
            name, SHM, {CHANNEL: (NEAR, *goals), LANE: over_lane}, limit=SHM, slow=SLOW,
            optional=SLOW, load=load, roles=roles, **more,
        )  # fmt: skip
        openers = {}
        for contender, (core, line) in CONTENDERS.items():
            openers[contender] = by_job(
                row, contender, jobs[core], lambda n, line=line: line(load, n)
            )
        measure(row, openers)

    return run


@pytest.fixture
def stream(send):
    """Measure a stream."""

    def run(name, batch=1, **more):
        load, small = LOADS[name], name in SMALL
        send(
            f"{name}, stream by {batch}" if batch > 1 else f"{name}, stream",
            load,
            lambda line: [Send(line, load, batch), Receive(line, load, batch)],
            read=time_of_all,
            unit=Unit.per_second(0 if small else load.size),
            least=max(batch, 50) if small else 2,
            # At most 64 MiB of distinct messages.
            most=min(200_000, FULL // load.size) if small else 20_000,
            **more,
        )

    return run


@all_contenders
@pytest.mark.parametrize("name", LOADS)
def test_one_way_spinning(send, name):
    load = LOADS[name]
    goals = [Goal("≤ 0.5 µs", cost=500)] if name == "64 B" else []
    send(
        f"{name}, one way, ping-pong",
        load,
        lambda there, back: [Ask(there, back, load), Answer(there, back)],
        *goals,
        least=20 if name in SMALL else 2,
        most=100_000,
        lines=2,
    )


@all_contenders
@pytest.mark.parametrize("name", LOADS)
def test_one_way_asleep(send, name):
    load = LOADS[name]
    send(
        f"{name}, one way, receiver asleep",
        load,
        lambda line: [SendApart(line, load, ASLEEP), ReceiveApart(line, load)],
        least=10 if name in SMALL else 2,
        most=STAMPS,
    )


@all_contenders
@pytest.mark.parametrize("name", LOADS)
def test_stream(stream, name):
    stream(name)


@all_contenders
@pytest.mark.parametrize("name", SMALL)
def test_stream_in_batches(stream, name):
    stream(name, BATCH)


@all_contenders
def test_stream_in_large_batches(stream):
    """Calls between nodes take about as long for many items as for one: large batches pay off."""
    stream("64 B", LARGE_BATCH, over_lane=[Goal("≥ 50,000/s", cost=1e9 / 50_000)])


@pytest.mark.parametrize("contender", [LANE, AsyncOverLane.name])
def test_stream_without_waiting(measure, jobs):
    """Put over the lane without waiting for the acknowledgements."""
    load = SMALL["64 B"]
    row = Row(
        f"64 B, stream over the lane, taken by {BATCH}", LANE,
        {AsyncOverLane.name: [Goal("≥ 150,000/s", cost=1e9 / 150_000)]}, limit=LANE, load=load,
        roles=lambda line: [Send(line, load), Receive(line, load, BATCH)], read=time_of_all,
        unit=Unit.per_second(), least=2_000, most=200_000,
    )  # fmt: skip
    openers = {
        line.name: by_job(row, line.name, jobs["rust"], lambda n, line=line: line(load, n))
        for line in (OverLane, AsyncOverLane)
    }
    measure(row, openers)


@pytest.mark.parametrize("contender", FRESH)
@pytest.mark.parametrize("size", ["64 KiB", pytest.param("1 MiB", marks=pytest.mark.measured)])
def test_memory(measure, jobs, size):
    """Put 64 MiB and get them. One round is enough, because the memory does not vary."""
    load = Load("array", SIZES[size])
    goals = [
        Goal("full ≤ 110 %", cost=110, of="full, % of payload"),
        Goal("drained ≤ 1 %, the base", cost=1, of="drained, % of payload"),
    ]
    row = Row(
        f"64 MiB in tensors of {size}: put and get of one", SHM, {CHANNEL: goals}, rounds=1,
        load=load, processes=1, read=lambda answers, _count: [answers[0][0]],
        extra=lambda answers: dict(
            zip(("full, % of payload", "drained, % of payload"), answers[0][1:], strict=True)
        ),
    )  # fmt: skip
    openers = {}
    for contender, fresh in FRESH.items():
        role = FillAndDrain(fresh, load, FULL // load.size)
        openers[contender] = by_job(
            row, contender, jobs[CONTENDERS[contender][0]], roles=lambda role=role: [role]
        )
    measure(row, openers)


@pytest.mark.parametrize("contender", BUILT)
def test_building(measure, jobs):
    """Build 64 MiB and put them: `reserve` saves the copy of the put."""
    load = TENSORS["tensor of 64 MiB"]
    reference, *_, reserve = BUILT
    row = Row(
        "64 MiB built by a copy, and put", reference, {reserve: [Goal("≤ 0.75", times=0.75)]},
        limit=reference, load=load, processes=1, least=2, most=100,
    )  # fmt: skip
    openers = {
        contender: by_job(
            row, contender, jobs["rust"], roles=lambda where=where: [BuildAndPut(where, load.size)]
        )
        for contender, where in BUILT.items()
    }
    measure(row, openers)
