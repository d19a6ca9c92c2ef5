"""The channels in `shoal status`: their table and their JSON, for simulated and for real memory."""

import json
import os
import signal
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal import _backend
from shoal.cli import show_channels, show_status
from shoal.cli.app import app
from shoal.errors import ChannelError, ChannelNotFoundError
from shoal.observe import JobProcesses, read_channels, with_rates
from shoal.shm.keys import canonical
from shoal.state import Activity, ChannelUse, ProcessState
from support.processes import killed, programs, run_program

NOW = 1000.0

TABLE = """\
Channels
 channel    key        items     bytes     put/got   per s   oldest   waiting
──────────────────────────────────────────────────────────────────────────────
 far        -              -         -           -       -        -   -
 rollouts   -            8/8   118 MiB   1200/1192     0/0    2 min   2 put
            ('x', 2)       0       0 B         0/0     0/0        -   1 get
            1              0       0 B         3/3     0/0        -   closed
 tasks      -              -         -           -       -        -   -
  far: put by actor:0; got by none here; its items are on another node
  rollouts: put by rollout:0-2; got by driver, actor:0
  tasks: put by actor:0; got by driver; it cannot be read
"""


HERE = Path("a page of this node")


def state(address, *uses, wait=None, page=HERE):
    waits = () if wait is None else (wait,)
    return ProcessState(address, 100, 1, 0, 0, "running", waits, 0, channels=uses, page=page)


def queue(key, **numbers):
    nothing = dict.fromkeys(
        ("messages", "bytes", "puts", "gets", "producers_waiting", "consumers_waiting"), 0
    )
    return {
        "key": key if isinstance(key, bytes) else canonical(key),
        "maxsize": 0,
        "closed": False,
        "oldest_s": 0.0,
        **nothing,
        **numbers,
    }


MEMORY = {
    "/rollouts": [
        queue("default_queue", messages=8, bytes=123_456_789, puts=1200, gets=1192, oldest_s=121,
              maxsize=8, producers_waiting=1),
        queue(1, puts=3, gets=3, closed=True),
        queue(("x", 2), consumers_waiting=1),
        queue(b"\0routes", messages=3),
    ],
    "/tasks": ChannelError("it cannot be read"),
    "/removed": ChannelNotFoundError("it is gone"),
}  # fmt: skip


@pytest.fixture
def printed(monkeypatch):
    """Print the channels of some processes, whose memory is `MEMORY`, at 80 columns."""

    def listed(token):
        found = MEMORY[token]
        if isinstance(found, list):
            return found
        raise found

    def run(*states, arguments=(), memory=listed):
        monkeypatch.setattr(show_status, "_BETWEEN_S", 0)
        monkeypatch.setattr(show_status, "read_jobs", lambda *_: [JobProcesses("j", states, NOW)])
        monkeypatch.setattr(
            show_status, "read_channels", partial(read_channels, list_queues=memory)
        )
        done = CliRunner().invoke(app, ["status", *arguments], env={"COLUMNS": "80"})
        assert done.exit_code == 0, done.output
        return done.output

    return run


def rollout(rank):
    on = "the channel 'rollouts', key 'default_queue'"
    wait = Activity("wait", "put", on, (), 0, NOW - 30, 7, channel="rollouts")
    return state(f"rollout:{rank}", ChannelUse("rollouts", "/rollouts", True, False), wait=wait)


STATES = [
    rollout(1),
    replace(rollout(2), status="dead"),  # it waits no more
    rollout(0),
    state(
        "actor:0",
        ChannelUse("rollouts", "/rollouts", False, True),
        ChannelUse("far", "", True, False),
        ChannelUse("removed", "/removed", True, True),
        ChannelUse("tasks", "/tasks", True, False),
    ),
    state(
        "driver",
        ChannelUse("tasks", "/tasks", False, True),
        ChannelUse("rollouts", "", False, True),
    ),
]


def test_each_key_has_a_row_and_each_channel_names_its_processes(printed):
    output = printed(*STATES)
    assert output[output.index("Channels") :] == TABLE
    assert all(len(line) <= 80 for line in output.splitlines())


def test_of_many_keys_those_that_matter_are_shown(printed):
    keys = [queue(n, messages=n) for n in range(100)]
    keys.append(queue("waits", consumers_waiting=1))
    use = ChannelUse("rollouts", "/rollouts", True, True)
    output = printed(state("driver", use), memory=lambda _: keys)
    rows = [line.split() for line in output[output.index(" rollouts") :].splitlines()]
    assert rows[0][1] == "'waits'"
    assert [row[0] for row in rows[1:10]] == [str(n) for n in range(99, 90, -1)]
    assert rows[10] == ["91", "more", str(sum(range(91)))]


@pytest.mark.parametrize(
    ("here", "there", "line"),
    [
        (None, "/of_there", "its items are on another node"),
        ("", "/of_there", "its items are on another node"),
        (None, "", "no process of this node has used it"),
        ("/gone", "", None),
        ("/gone", "/of_there", "its items are on another node"),
        ("/rollouts", "/of_there", "other items are on another node"),
        ("/rollouts", "/rollouts", ""),
    ],
)
def test_a_channel_of_another_node_was_not_removed(here, there, line):
    def listed(token):
        if token in MEMORY and token != "/removed":
            return MEMORY[token]
        raise ChannelNotFoundError(token)

    states = [state("there:0", ChannelUse("a", there, True, False), page=Path())]
    if here is not None:
        states.append(state("here:0", ChannelUse("a", here, False, True)))
    found = [channel.unread for channel in read_channels(states, listed)]
    assert found == ([] if line is None else [(line,) if line else ()])


def read(at, *queues):
    """The channel `rollouts` with some queues, read at a time."""
    use = ChannelUse("rollouts", "/rollouts", True, False)
    return [
        replace(one, read_at=at) for one in read_channels([state("a:0", use)], lambda _: queues)
    ]


def test_a_rate_is_what_two_reads_differ_in():
    before = read(10, queue(1, puts=100, gets=90), queue("made again", puts=9, gets=9))
    after = read(12, queue(1, puts=107, gets=90), queue("made again", puts=1), queue("new", puts=4))
    (found,) = with_rates(after, before)
    rates = {one.key: (one.puts_per_s, one.gets_per_s) for one in found.queues}
    assert rates == {"1": (3.5, 0), "'made again'": (None, None), "'new'": (None, None)}


@pytest.mark.parametrize(
    ("per_s", "written"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (9.96, "10"),
        (128, "128"),
        (1234, "1.2k"),
        (34_567, "35k"),
        (2e6, "2.0M"),
    ],
)
def test_a_rate_is_short(per_s, written):
    assert show_channels.rate(per_s) == written


def test_without_channels_there_is_no_table(printed):
    assert "Channels" not in printed(state("driver"))


def test_the_json_has_all_numbers(printed):
    (job,) = json.loads(printed(*STATES, arguments=["--json"]))
    far, rollouts, tasks = job["channels"]
    assert far["unread"] == ["its items are on another node"]
    assert tasks["unread"] == ["it cannot be read"]
    assert rollouts["producers"] == ["rollout:0", "rollout:1", "rollout:2"]
    assert rollouts["consumers"] == ["driver", "actor:0"]
    assert rollouts["queues"][0] == {
        "key": "'default_queue'",
        "maxsize": 8,
        "closed": False,
        "items": 8,
        "bytes": 123_456_789,
        "puts": 1200,
        "gets": 1192,
        "puts_per_second": 0,
        "gets_per_second": 0,
        "oldest_seconds": 121,
        "waiting_producers": 2,
        "waiting_consumers": 0,
    }
    assert [queue["key"] for queue in rollouts["queues"]] == ["'default_queue'", "1", "('x', 2)"]


# Real memory.

MAKES = """
import signal
from shoal import shm
from shoal.state import show_process, use_channel
session = shm.Session.create()
session.queue(("a", 1), maxsize=5).put_many(["left", "x" * 100_000])
show_process("job", "actor:0", 0)
use_channel("c", session.token, "put")
print(session.token, flush=True)
signal.pause()
"""


def status(place, *arguments, core):
    environment = {**os.environ, "SHOAL_SHM_DIR": place, "SHOAL_BACKEND": core}
    return run_program("-m", "shoal", "status", *arguments, env=environment, check=True).stdout


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/dev/shm") as folder:
        yield folder


@pytest.fixture
def start(place):
    """Start a process of one core that makes a channel; return it and the channel's token."""

    def begin(core):
        environment = {**os.environ, "SHOAL_SHM_DIR": place, "SHOAL_BACKEND": core}
        makes = make("-c", MAKES, env=environment)
        return makes, makes.stdout.readline().strip()

    with programs() as make:
        yield begin


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("core", ["rust", "pure"])
def test_memory_is_read_whose_processes_are_stopped_or_dead(start, place, core, stop):
    makes, token = start(core)
    makes.send_signal(stop)
    os.waitid(os.P_PID, makes.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    for _ in range(2):  # looking has changed nothing
        (job,) = json.loads(status(place, "--json", core=core))
        (channel,) = job["channels"]
        (found,) = channel["queues"]
        assert (found["key"], found["items"], found["maxsize"]) == ("('a', 1)", 2, 5)
        assert found["bytes"] > 100_000
    other = "pure" if core == "rust" else "rust"
    assert f"was made by the {core} backend" in " ".join(status(place, core=other).split())
    assert Path(token).exists()
    killed(makes)
    assert _backend.load(core).shm_gc(place) == [token]
