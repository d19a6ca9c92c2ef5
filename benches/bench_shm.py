"""`shoal.shm` beside its rivals and beside what the machine allows.

Two processes, each on a core of its own. In the same run and by the same clock, the Rust example
`limits` measures how fast a word changes hands, a sleeping process is woken, and bytes are written
to shared memory. Nothing is waited for with a pause: who waits spins or sleeps as its queue does.
"""

import pytest

import alone
from crew import STAMPS, cores
from figures import Figures, Goal, Unit
from limits import Limits, build
from lines import Load
from rivals import QUEUES, RIVALS, Ray
from roles import Answer, Ask, AwaitApart, Idle, Receive, ReceiveApart, Send, SendApart
from rounds import Floor, Limit, Rounds, Row
from shoal import _backend

KIB, MIB = 2**10, 2**20
# In nanoseconds, between a message's arrival and the next: the receiver sleeps, or spins again.
ASLEEP, SPINNING = 300_000, 5_000
BATCH = 64
SMALL = Load("bytes")
DICT = Load("dict")
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB}


@pytest.fixture(scope="module")
def rounds(pytestconfig):
    """Run rows; print their table after the last one."""
    both = cores()
    where = f"Between processes, on cores {both[0]} and {both[1]}"
    figures = Figures(f"{where}; shoal's backend is {_backend.NAME}")
    if both[0] == both[1]:
        figures.note("one core only: nobody can spin, and all figures are of taking turns")
    smoke = pytestconfig.getoption("--smoke")
    if smoke:
        figures.note("smoke: one short round, with memory that nothing has touched yet")
    program = build()
    if program is None:
        figures.note("limits: not measured, because there is no cargo")
    limits = Limits(program, both) if program else None
    yield Rounds(figures, limits, smoke=smoke)
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        figures.print()


def first(answers, _count):
    """Read the samples that the first process took."""
    return answers[0]


def either(answers, count):
    """Read the time of all messages, or of what Python alone needs for one."""
    return answers[0] if len(answers) == 1 else all_together(answers, count)


def all_together(answers, count):
    """Read the time of all messages: from the first start until the last end, of a message."""
    half = len(answers) // 2
    return [(max(answers[half:]) - min(answers[:half])) / (count * half)]


def role(kind):
    """Make the one role of a row that one process measures alone."""
    return lambda line: [kind(line)]


def ping_pong(load):
    return lambda there, back: [Ask(there, back, load), Answer(there, back)]


def apart(load, pause, receive=ReceiveApart):
    return lambda line: [SendApart(line, load, pause), receive(line, load)]


def stream(load, batch=1, pairs=1):
    return lambda line: (
        [Send(line, load, batch) for _ in range(pairs)]
        + [Receive(line, load, batch, alone=pairs == 1) for _ in range(pairs)]
    )


def one_way(name, size, goal):
    load = Load("array", size, depth=4)
    limit = Limit("raw write, told by spinning", "write", size)
    what = f"tensor of {name}, one way"
    roles = apart(load, SPINNING)
    return Row(what, load, roles, first, Unit.time(), 2, 10_000, limit=limit, goal=goal)


def flow(name, size, goal):
    load = Load("array", size, depth=4)
    limit = Limit("raw write", "fill", size)
    unit = Unit.per_second(size)
    what = f"tensors of {name}, stream"
    return Row(what, load, stream(load), all_together, unit, 2, 20_000, limit=limit, goal=goal)


def single(name, load, goal):
    unit = Unit.per_second()
    what = f"{name}, stream"
    return Row(what, load, stream(load), all_together, unit, 100, 200_000, goal=goal)


def test_one_way_spinning(rounds):
    goal = Goal("≤ 0.4 µs", cost=400)
    limit = Limit("raw word, spinning", "spin")
    row = Row(
        "64 B, one way, ping-pong",
        SMALL,
        ping_pong(SMALL),
        first,
        Unit.time(),
        least=50,
        most=100_000,
        lines=2,
        limit=limit,
        goal=goal,
    )
    rounds.run(row, RIVALS)


def test_one_way_asleep(rounds):
    goal = Goal("≤ 1.1 of raw futex", times=1.1)
    limit = Limit("raw futex", "futex")
    roles = apart(SMALL, ASLEEP)
    what = "64 B, one way, receiver asleep"
    row = Row(what, SMALL, roles, first, Unit.time(), 10, STAMPS, limit=limit, goal=goal)
    rounds.run(row, RIVALS)


def test_one_way_asyncio(rounds):
    goal = Goal("≤ 2 of raw eventfd", times=2)
    limit = Limit("raw eventfd", "eventfd")
    roles = apart(SMALL, ASLEEP, AwaitApart)
    what = "64 B, one way, idle loop of asyncio"
    row = Row(
        what, SMALL, roles, first, Unit.time(), 10, STAMPS, can="await", limit=limit, goal=goal
    )
    rounds.run(row, RIVALS)


def test_stream(rounds):
    rounds.run(single("64 B, distinct, 10,000 kept", SMALL, Goal("≥ 3 M/s", cost=1e3 / 3)), RIVALS)


def test_stream_in_batches(rounds):
    goal = Goal("≥ 12 M/s", cost=1e3 / 12)
    roles = stream(SMALL, BATCH)
    floor = Floor("Python: bytes made and kept", role(alone.MakeAndKeep))
    what = f"64 B, distinct, 10,000 kept, stream by {BATCH}"
    unit = Unit.per_second()
    row = Row(
        what,
        SMALL,
        roles,
        either,
        unit,
        BATCH,
        8000 * BATCH,
        can="many",
        floor=floor,
        goal=goal,
    )
    rounds.run(row, RIVALS)


def test_dict_stream(rounds):
    rounds.run(single("dict of five values", DICT, Goal("≥ 1.3 M/s", cost=1e3 / 1.3)), RIVALS)


def test_dict_stream_in_batches(rounds):
    roles = stream(DICT, BATCH)
    what = f"dict of five values, stream by {BATCH}"
    unit = Unit.per_second()
    row = Row(what, DICT, roles, all_together, unit, BATCH, 4000 * BATCH, can="many")
    rounds.run(row, RIVALS)


def test_four_and_four(rounds):
    goal = Goal("≥ 3 M/s", cost=1e3 / 3)
    roles = stream(SMALL, pairs=4)
    what = "64 B, 4 producers and 4 consumers"
    unit = Unit.per_second()
    row = Row(what, SMALL, roles, all_together, unit, 50, 50_000, goal=goal, anywhere=True)
    rounds.run(row, QUEUES)


ONE_WAY_GOALS = {
    "64 KiB": Goal("≤ 5 µs", cost=5e3),
    "1 MiB": Goal("≤ 40 µs", cost=40e3),
    "16 MiB": Goal("≤ 1.1 of raw write", times=1.1),
    "64 MiB": Goal("≤ 1.1 of raw write", times=1.1),
}


@pytest.mark.parametrize("name", SIZES)
def test_tensor_one_way(rounds, name):
    rounds.run(one_way(name, SIZES[name], ONE_WAY_GOALS[name]), RIVALS)


@pytest.mark.parametrize("name", SIZES)
def test_tensor_stream(rounds, name):
    goal = Goal("≥ 0.95 of raw write", times=1 / 0.95) if SIZES[name] >= MIB else None
    rounds.run(flow(name, SIZES[name], goal), RIVALS)


@pytest.mark.parametrize("name", SIZES)
def test_get_queued(rounds, name):
    load = Load("array", SIZES[name], depth=4)
    what = f"get of a queued tensor of {name}"
    goal = Goal("≤ 5 µs", cost=5e3)
    row = Row(what, load, role(alone.GetQueued), first, Unit.time(), 2, 5000, goal=goal)
    rounds.run(row)


@pytest.mark.parametrize("name", ["64 B", "dict of five values"])
def test_put_and_get(rounds, name):
    load = SMALL if name == "64 B" else DICT
    what = f"{name}, put and get in one process"
    floor = Floor("two calls that do nothing", role(alone.Calls))
    row = Row(what, load, role(alone.PutGet), first, Unit.time(), 100, 500_000, floor=floor)
    rounds.run(row)


def test_new_key(rounds):
    goal = Goal("≤ 200 µs", cost=200e3)
    row = Row("a new queue", SMALL, role(alone.MakeKeys), first, Unit.time(), 2, 20, goal=goal)
    rounds.run(row)


def test_attach(rounds):
    goal = Goal("≤ 5 ms", cost=5e6)
    row = Row(
        "attach to a session", SMALL, role(alone.Attach), first, Unit.time(), 2, 100, goal=goal
    )
    rounds.run(row)


def test_idle(rounds):
    goal = Goal("≤ 0.2 %", cost=0.002)
    what = "a core, used by who waits"
    row = Row(what, SMALL, role(Idle), first, Unit.share(), 500, 500, can="wait", goal=goal)
    rounds.run(row, RIVALS)


@pytest.mark.parametrize("what", ["dict", "1 MiB"])
def test_beside_ray(rounds, cluster, what):
    load = DICT if what == "dict" else Load("array", MIB, depth=4)
    row = Row(
        f"{what}, one way, beside Ray", load, apart(load, SPINNING), first, Unit.time(), 4, 50
    )
    rounds.run(row, [Ray])
