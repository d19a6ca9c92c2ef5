"""The device locks in `shoal status`: their table and their JSON."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from shoal.cli import show_status
from shoal.cli.app import app
from shoal.manager.lock_table import show_devices
from shoal.observe import JobProcesses
from support.state_pages import NOW, call, process, wait

TABLE = """\
Device locks
 devices   held by     pid     for   waiting
───────────────────────────────────────────────────────────────────
 0         trainer:0    90    63 s   rollout:0 60 s, infer:0 5.0 s
 1         trainer:0    90    63 s   rollout:0 60 s
 2         -             -       -   rollout:0 60 s
 4-7       trainer:1    91   2.4 s   -
"""


def asks(address, seconds, *devices, reason="", **others):
    """A process that waits for the lock of some devices, within a call."""
    waits = wait("lock", seconds, "trainer:0", on=f"the lock of {show_devices(devices)}{reason}")
    return process(address, call("step", 99, waits), **others)


def holds(address, seconds, *devices, **others):
    state = process(address, call("train", 99), **others)
    return replace(state, held_devices=devices, held_since=NOW - seconds)


STATES = [
    asks("infer:0", 5, 0, pid=80),
    asks("rollout:0", 60, 0, 1, 2, reason=": devices 0 and 1 are held by trainer:0", pid=85),
    asks("rollout:1", 70, 4, status="dead"),
    holds("trainer:0", 63, 0, 1, pid=90),
    holds("trainer:1", 2.4, 4, 5, 6, 7, pid=91),
    holds("trainer:2", 9, 3, status="dead"),
]


@pytest.fixture
def printed(monkeypatch):
    def run(*states, arguments=()):
        monkeypatch.setattr(show_status, "read_jobs", lambda *_: [JobProcesses("j", states, NOW)])
        done = CliRunner().invoke(app, ["status", *arguments], env={"COLUMNS": "80"})
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_each_lock_names_its_holder_and_those_that_wait_the_oldest_first(printed):
    output = printed(*STATES)
    assert output[output.index("Device locks") :] == TABLE
    assert all(len(line) <= 80 for line in output.splitlines())


def test_of_many_that_wait_four_are_named(printed):
    output = printed(holds("trainer:0", 63, 0), *(asks(f"env:{n}", 9 - n, 0) for n in range(6)))
    row = " ".join(output[output.index("Device locks") :].split())
    assert row.endswith("env:0 9.0 s, env:1 8.0 s, env:2 7.0 s, env:3 6.0 s and 2 more")


def test_without_locks_there_is_no_table(printed):
    assert "Device locks" not in printed(process("driver"))


def test_the_json_has_the_same(printed):
    (job,) = json.loads(printed(*STATES, arguments=["--json"]))
    assert job["locks"][0] == {
        "devices": [0],
        "holder": {"address": "trainer:0", "pid": 90, "node_rank": 0, "seconds": 63},
        "waiting": [
            {"address": "rollout:0", "pid": 85, "node_rank": 0, "seconds": 60},
            {"address": "infer:0", "pid": 80, "node_rank": 0, "seconds": 5},
        ],
    }
    assert [lock["devices"] for lock in job["locks"]] == [[0], [1], [2], [4, 5, 6, 7]]
    assert job["locks"][2]["holder"] is None
