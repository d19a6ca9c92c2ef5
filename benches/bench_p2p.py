"""Point to point and broadcasts, compared with a channel, bare gloo and the machine's limits.

The two workers of a job have a core each. They send by `Worker.send` and `recv`, by `send_tensor`
and `recv_tensor`, and through a channel. Larger jobs broadcast, and measure the cost of a peer.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.contenders import by_job, by_limit
from harness.lines import Load
from harness.lines_in_job import ByChannel
from harness.lines_p2p import BySend, BySendTensor, Gloo
from harness.processes import STAMPS
from harness.ray_job import Job
from harness.roles import Answer, Ask, Receive, ReceiveApart, Send, SendApart, time_of_all
from harness.roles_p2p import Broadcast, Contact, CopyFromMapping, CountGlooSends, last_end
from harness.row import Goal, Limit, Row, UnavailableError, Unit
from support.machines import RAY_PORT, RAY_TOKEN, connected

MIB = 2**20
# Nanoseconds between the arrival of a message and the next put: the receiver sleeps, or spins.
ASLEEP, SPINNING = 300_000, 5_000
SMALL, DICT = Load("bytes"), Load("dict")
TENSORS = {"1 MiB": Load("array", MIB, depth=4), "64 MiB": Load("array", 64 * MIB, depth=4)}
CHANNEL, SEND, TENSOR, GLOO = ByChannel.name, BySend.name, BySendTensor.name, Gloo.name
# For each contender, the function that makes its line from a load and a number.
LINES = {
    CHANNEL: ByChannel,
    SEND: lambda load, _number: BySend(load),
    TENSOR: lambda load, _number: BySendTensor(load),
}
WORD, FUTEX = Limit("raw word, spinning", "spin"), Limit("raw futex", "futex")
WRITE = "raw write, told by spinning"
RECEIVERS, LARGE = 4, Load("array", 256 * MIB)
MAPPING, BROADCAST = f"one write and {RECEIVERS} reads of a mapping", "Worker.broadcast"
MEASURED = pytest.mark.measured

# Messages by `send` are items of a channel without its other users, and so should cost as much.
NEAR_CHANNEL = Goal(f"≤ 1.3 of {CHANNEL}", times_reference=1.3)
# It has to find the receiver, by its group and rank, and a channel has no such thing to find.
STREAM_NEAR_CHANNEL = Goal(f"≥ 0.7 of {CHANNEL}", times_reference=1 / 0.7)
# `send_tensor` copies the tensor once more, into the tensor of the receiver.
TWO_COPIES = Goal(f"≤ 2.5 of {CHANNEL}", times_reference=2.5)
NEAR_MAPPING = Goal("≤ 1.3 of the mapping", times=1.3)
NEAR_GLOO = Goal(f"≤ 1.3 of {GLOO}", times=1.3)


@pytest.fixture(scope="module")
def pair(start_job):
    return start_job()


@pytest.fixture
def send(measure, pair):
    """Measure a row of messages."""

    def run(name, load, roles, contenders, limit=None, near=NEAR_CHANNEL, **more):
        row = Row(
            name, CHANNEL, {SEND: [near], TENSOR: [TWO_COPIES]},
            limit=limit and limit.name, load=load, roles=roles, **more,
        )  # fmt: skip
        openers = {limit.name: by_limit(limit)} if limit else {}
        for each in contenders:
            openers[each] = by_job(row, each, pair, lambda n, kind=LINES[each]: kind(load, n))
        measure(row, openers)

    return run


@pytest.mark.parametrize("contender", [WORD.name, CHANNEL, SEND])
def test_ping_pong(send):
    send(
        "64 B, one way, ping-pong",
        SMALL,
        lambda there, back: [Ask(there, back, SMALL), Answer(there, back)],
        (CHANNEL, SEND),
        WORD,
        least=10,
        most=100_000,
        lines=2,
    )


@pytest.mark.parametrize("contender", [FUTEX.name, CHANNEL, SEND])
def test_asleep(send):
    send(
        "64 B, one way, receiver asleep",
        SMALL,
        lambda line: [SendApart(line, SMALL, ASLEEP), ReceiveApart(line, SMALL)],
        (CHANNEL, SEND),
        limit=FUTEX,
        least=10,
        most=STAMPS,
    )


@pytest.mark.parametrize("contender", [CHANNEL, SEND])
@pytest.mark.parametrize("name", ["64 B", "dict of five values"])
def test_stream(send, name):
    load = SMALL if name == "64 B" else DICT
    send(
        f"{name}, stream",
        load,
        lambda line: [Send(line, load), Receive(line, load)],
        (CHANNEL, SEND),
        near=STREAM_NEAR_CHANNEL,
        read=time_of_all,
        unit=Unit.per_second(),
        least=50,
        most=200_000,
    )


@pytest.mark.parametrize("contender", [WRITE, CHANNEL, SEND, TENSOR])
@pytest.mark.parametrize("size", TENSORS)
def test_tensor(send, size):
    load = TENSORS[size]
    send(
        f"tensor of {size}, one way",
        load,
        lambda line: [SendApart(line, load, SPINNING), ReceiveApart(line, load)],
        (CHANNEL, SEND, TENSOR),
        limit=Limit(WRITE, "write", load.size),
        least=2,
        most=10_000,
    )


@pytest.mark.parametrize("contender", [MAPPING, BROADCAST])
def test_broadcast(measure, start_job):
    workers = 1 + RECEIVERS
    row = Row(
        f"broadcast of 256 MiB to {RECEIVERS} workers of a node",
        MAPPING,
        {BROADCAST: [NEAR_MAPPING]},
        limit=MAPPING,
        load=LARGE,
        most=20,
        processes=workers,
        read=last_end,
    )
    with TemporaryDirectory(prefix="shoal-bench-", dir="/dev/shm") as folder:
        roles = {
            MAPPING: CopyFromMapping(LARGE, str(Path(folder) / "mapping")),
            BROADCAST: Broadcast(LARGE, workers),
        }
        job = start_job((0,) * workers, channels=False)
        openers = {
            name: by_job(row, name, job, roles=lambda role=role: [role] * workers)
            for name, role in roles.items()
        }
        measure(row, openers)
        job.close()


@pytest.mark.parametrize("contender", [SEND])
@pytest.mark.parametrize(
    "peers", [1, pytest.param(10, marks=MEASURED), pytest.param(50, marks=MEASURED)]
)
def test_cost_of_a_peer(measure, start_job, peers):
    """Measure the first message to a new peer, and its answer."""
    row = Row(
        f"first contact with each of {peers} peers",
        SEND,
        rounds=1,
        processes=1 + peers,
        read=lambda answers, _count: [answers[0][0]],
        extra=lambda answers: {"more threads": answers[0][1], "more descriptors": answers[0][2]},
    )
    job = start_job((0,) * (1 + peers), channels=False)
    measure(row, {SEND: by_job(row, SEND, job, roles=lambda: [Contact(peers)] * (1 + peers))})
    job.close()


TORCH = {"SHOAL_TRANSPORT": "torch"}


@pytest.fixture(scope="module")
def folder():
    """A folder that the processes of all network namespaces see."""
    with TemporaryDirectory(prefix="shoal-bench-", dir="/tmp") as path:
        yield path


@pytest.fixture(scope="module")
def one_machine(start_job):
    return start_job(environment=TORCH, channels=False)


@pytest.fixture(scope="module")
def two_machines(folder):
    """A job with one worker in each of two network namespaces, if the kernel permits them."""
    here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with connected("first", "second") as (first, second):
        first.start_ray(PYTHONPATH=here)
        second.start_ray(first, PYTHONPATH=here)
        environment = {
            "RAY_ADDRESS": f"{first.address}:{RAY_PORT}", "RAY_TMPDIR": "/tmp", **RAY_TOKEN, **TORCH
        }  # fmt: skip
        job = Job(environment, (0, 1), prefix=first.command([]), folder=folder, channels=False)
        yield job
        job.close()


@pytest.mark.parametrize("contender", [GLOO, SEND, TENSOR])
@pytest.mark.parametrize("size", TENSORS)
@pytest.mark.parametrize("where", ["one machine", "two machines"])
def test_torch(measure, request, folder, where, size):
    load = TENSORS[size]
    job = request.getfixturevalue(where.replace(" ", "_"))
    row = Row(
        f"tensor of {size} by torch.distributed, {where}", GLOO,
        {SEND: [NEAR_GLOO], TENSOR: [NEAR_GLOO]}, limit=GLOO, load=load,
        roles=lambda line: [SendApart(line, load, SPINNING), ReceiveApart(line, load)],
        least=2, most=2_000,
    )  # fmt: skip
    bare = by_job(row, GLOO, job, lambda _number: Gloo(load, folder))
    ours = {kind.name: by_gloo(row, job, kind(load)) for kind in (BySend, BySendTensor)}
    measure(row, {GLOO: bare, **ours})


def by_gloo(row, job, line):
    """Make the contender of a line with `SHOAL_TRANSPORT=torch`, if its tensors go through gloo."""

    def open_(stack):
        sends, _ = job.play(line.name, f"check of {row.name}", [CountGlooSends(line)] * 2, 1)
        if not sends:
            raise UnavailableError(
                f"{line.name} with SHOAL_TRANSPORT=torch did not call ProcessGroupGloo.send: "
                "in this build point to point does not go through torch.distributed"
            )
        return by_job(row, line.name, job, lambda _number: line)(stack)

    return open_
