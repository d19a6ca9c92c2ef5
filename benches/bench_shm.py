"""`shoal.shm`, compared with rival queues and with the limits of the machine.

Two processes run, each on its own core. In the same run and by the same clock, the Rust example
`limits` measures how fast a word changes hands, a sleeping process is woken, and bytes are written
to shared memory. No process waits by a fixed pause: a receiver spins or sleeps as its queue does.
"""

import pytest

from harness.contenders import by_crew, by_limit
from harness.lines import Load, Shoal
from harness.lines_pubsub import Iceoryx, Kickmsg
from harness.lines_queues import FasterFifo, Multiprocessing, Pipe, Ray, Torch
from harness.processes import STAMPS
from harness.roles import (
    Answer,
    Ask,
    AwaitApart,
    Idle,
    Receive,
    ReceiveApart,
    Send,
    SendApart,
    time_of_all,
)
from harness.roles_alone import Attach, Calls, GetQueued, MakeAndKeep, MakeKeys, PutGet
from harness.row import Goal, Limit, Row, Unit

KIB, MIB = 2**10, 2**20
# Nanoseconds between the arrival of a message and the next put: the receiver sleeps, or spins.
ASLEEP, SPINNING = 300_000, 5_000
BATCH = 64
SMALL, DICT = Load("bytes"), Load("dict")
LARGE = {
    name: Load("array", size, depth=4)
    for name, size in {
        "64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB
    }.items()
}  # fmt: skip
# Queues with any number of producers and consumers; the other lines have one process at each end.
QUEUES = (Multiprocessing, Torch, FasterFifo)
RIVALS = {kind.name: kind for kind in (*QUEUES, Pipe, Iceoryx, Kickmsg)}
SPIN, FUTEX, EVENTFD = (
    Limit("raw word, spinning", "spin"),
    Limit("raw futex", "futex"),
    Limit("raw eventfd", "eventfd"),
)
# The time that Python itself needs for its part.
NO_CALLS, MAKING = "two calls that do nothing", "Python: bytes made and kept"
FLOORS = {NO_CALLS: Calls, MAKING: MakeAndKeep}
CASES = []


def case(name, load, roles, *, goal=None, limit=None, floor=None, rivals=tuple(RIVALS), **more):
    """Add a row and its contenders."""
    goals = {Shoal.name: [goal]} if goal else {}
    can = more.get("can")
    optional = [rival for rival in rivals if can is None or can in RIVALS[rival].can]
    names = [*filter(None, [limit and limit.name, floor, Shoal.name]), *optional]
    row = Row(
        name, Shoal.name, goals, load=load, roles=roles, optional=optional,
        limit=limit and limit.name, **more,
    )  # fmt: skip
    CASES.extend(pytest.param(row, limit, each, id=f"{name}-{each}") for each in names)


def alone(kind):
    """Make the roles of a row that is measured in a single process."""
    return lambda line: [kind(line)]


def apart(load, pause, receive=ReceiveApart):
    return lambda line: [SendApart(line, load, pause), receive(line, load)]


def stream(load, batch=1, pairs=1):
    return lambda line: (
        [Send(line, load, batch) for _ in range(pairs)]
        + [Receive(line, load, batch, alone=pairs == 1) for _ in range(pairs)]
    )


def either(answers, count):
    """Return the samples of a single process, or else the time of all messages."""
    return answers[0] if len(answers) == 1 else time_of_all(answers, count)


def flow(name, load, batch=1, goal=None, **more):
    """Add a stream."""
    name = f"{name}, stream by {batch}" if batch > 1 else f"{name}, stream"
    more = {"least": max(batch, 100), "most": 200_000, "unit": Unit.per_second()} | more
    if batch > 1:
        more |= {"least": batch, "most": 8000 * batch, "can": "many"}
    case(name, load, stream(load, batch), read=either, goal=goal, **more)


case(
    "64 B, one way, ping-pong", SMALL,
    lambda there, back: [Ask(there, back, SMALL), Answer(there, back)],
    goal=Goal("≤ 0.4 µs", cost=400), limit=SPIN, least=50, most=100_000, lines=2,
)  # fmt: skip
case(
    "64 B, one way, receiver asleep", SMALL, apart(SMALL, ASLEEP),
    goal=Goal("≤ 1.1 of raw futex", times=1.1), limit=FUTEX, least=10, most=STAMPS,
)  # fmt: skip
case(
    "64 B, one way, idle loop of asyncio", SMALL, apart(SMALL, ASLEEP, AwaitApart),
    goal=Goal("≤ 2 of raw eventfd", times=2), limit=EVENTFD, least=10, most=STAMPS, can="await",
)  # fmt: skip
flow("64 B, distinct, 10,000 kept", SMALL, goal=Goal("≥ 3 M/s", cost=1e3 / 3))
flow(
    "64 B, distinct, 10,000 kept", SMALL, BATCH, goal=Goal("≥ 12 M/s", cost=1e3 / 12), floor=MAKING
)
flow("dict of five values", DICT, goal=Goal("≥ 1.3 M/s", cost=1e3 / 1.3))
flow("dict of five values", DICT, BATCH)
case(
    "64 B, 4 producers and 4 consumers", SMALL, stream(SMALL, pairs=4), read=time_of_all,
    goal=Goal("≥ 3 M/s", cost=1e3 / 3), rivals=[kind.name for kind in QUEUES], least=50,
    most=50_000, unit=Unit.per_second(), processes=8, anywhere=True,
)  # fmt: skip
for size, goal in {
    "64 KiB": Goal("≤ 5 µs", cost=5e3),
    "1 MiB": Goal("≤ 40 µs", cost=40e3),
    "16 MiB": Goal("≤ 1.1 of raw write", times=1.1),
    "64 MiB": Goal("≤ 1.1 of raw write", times=1.1),
}.items():
    load = LARGE[size]
    case(
        f"tensor of {size}, one way", load, apart(load, SPINNING), goal=goal, least=2, most=10_000,
        limit=Limit("raw write, told by spinning", "write", load.size),
    )  # fmt: skip
for size, load in LARGE.items():
    flow(
        f"tensors of {size}", load, least=2, most=20_000, unit=Unit.per_second(load.size),
        limit=Limit("raw write", "fill", load.size),
        goal=Goal("≥ 0.95 of raw write", times=1 / 0.95) if load.size >= MIB else None,
    )  # fmt: skip
    case(
        f"get of a queued tensor of {size}", load, alone(GetQueued), rivals=(), least=2, most=5000,
        goal=Goal("≤ 5 µs", cost=5e3), processes=1,
    )  # fmt: skip
for name, load in {"64 B": SMALL, "dict of five values": DICT}.items():
    case(
        f"{name}, put and get in one process", load, alone(PutGet), rivals=(), floor=NO_CALLS,
        least=100, most=500_000, processes=1,
    )  # fmt: skip
case(
    "a new queue", SMALL, alone(MakeKeys), rivals=(), least=2, most=20, processes=1,
    goal=Goal("≤ 200 µs", cost=200e3),
)  # fmt: skip
case(
    "attach to a session", SMALL, alone(Attach), rivals=(), least=2, most=100, processes=1,
    goal=Goal("≤ 5 ms", cost=5e6),
)  # fmt: skip
case(
    "500 ms of waiting", SMALL, alone(Idle), least=500, most=500, can="wait", processes=1,
    read=lambda answers, _count: [answers[0][0]], extra=lambda answers: {"core, %": answers[0][1]},
    goal=Goal("≤ 0.2 % of a core", cost=0.2, of="core, %"),
)  # fmt: skip


@pytest.mark.parametrize(("row", "limit", "contender"), CASES)
def test_shm(measure, row, limit):
    openers = {limit.name: by_limit(limit)} if limit else {}
    for name, role in FLOORS.items():
        openers[name] = by_crew(row, Shoal, alone(role))
    openers[Shoal.name] = by_crew(row, Shoal)
    measure(row, openers | {name: by_crew(row, kind) for name, kind in RIVALS.items()})


@pytest.mark.parametrize("contender", [Shoal.name, Ray.name])
@pytest.mark.parametrize("what", ["dict", "1 MiB"])
def test_beside_ray(measure, cluster, what):
    load = DICT if what == "dict" else LARGE[what]
    row = Row(
        f"{what}, one way, beside Ray", Shoal.name, load=load, roles=apart(load, SPINNING),
        least=4, most=50, optional=[Ray.name],
    )  # fmt: skip
    measure(row, {kind.name: by_crew(row, kind) for kind in (Shoal, Ray)})
