"""The `shoal status` command: its table, its JSON and its exit codes, for pages of any state."""

import json
import os

import pytest
from typer.testing import CliRunner

from shoal.cli import show_status
from shoal.cli.app import app
from shoal.observe import JobProcesses
from shoal.state import calling, hide_process, show_process
from support.processes import run_program
from support.state_pages import NOW, call, process, wait

TABLE = """\
Processes on this node: 6

Job: shoal@10.0.0.1:6379
 process   pid   state     call          wait
───────────────────────────────────────────────────────────────────────────
 driver     80   running   -             wait 2 h: env.step; env:2, env:10
 actor:0    90   running   train 2 min   get 2 min: the channel 'a', key 1
 actor:1    91   stopped   idle          -
 actor:2    92   dead      train 10 s    -
 env:2     102   running   step 42 s     recv 42 s: actor:0
 env:10    110   running   step 0.2 s    -
"""


@pytest.fixture
def table(monkeypatch):
    """Print the table of some processes at 80 columns."""

    def printed(*states, unseen=()):
        job = JobProcesses("shoal@10.0.0.1:6379", states, NOW, unseen)
        monkeypatch.setattr(show_status, "read_jobs", lambda *_: [job])
        done = CliRunner().invoke(app, ["status"], env={"COLUMNS": "80"})
        assert done.exit_code == 0, done.output
        assert all(len(line) <= 80 for line in done.output.splitlines())
        return done.output

    return printed


def test_each_process_has_a_row_with_its_call_and_its_wait(table):
    printed = table(
        process("env:10", call("step", 0.25), pid=110),
        process("env:2", call("step", 42, wait("recv", 41.7, "actor:0")), pid=102),
        process(
            "actor:0", call("train", 130, wait("get", 121, on="the channel 'a', key 1")), pid=90
        ),
        process("driver", wait("wait", 7500, "env:2", "env:10", on="env.step"), pid=80),
        process("actor:1", pid=91, status="stopped"),
        process("actor:2", call("train", 10), pid=92, status="dead"),
    )
    assert printed == TABLE


def test_many_processes_that_do_the_same_are_one_row(table):
    states = [process(f"env:{n}", call("step", n), pid=n) for n in range(64) if n != 7]
    states.append(process("env:7", pid=7, status="dead"))
    printed = table(*states)
    assert len(printed.splitlines()) == 7
    assert "env:0-6,8-63" in printed
    assert "63 pids" in printed
    assert "step 63 s" in printed  # the longest
    assert "env:7 " in printed


def test_up_to_twenty_processes_have_a_row_each(table):
    printed = table(*(process(f"env:{n}", pid=n) for n in range(20)))
    assert printed.count("idle") == 20


def test_several_activities_of_a_process_have_rows_below_each_other(table):
    printed = table(
        process("env:0", call("a", 3, wait("get", 2), wait("put", 1)), call("b", 1), hidden=4)
    )
    lines = [line.split() for line in printed.splitlines()[5:]]
    assert lines == [
        ["env:0", "100", "running", "a", "3.0", "s", "get", "2.0", "s"],
        ["put", "1.0", "s"],
        ["b", "1.0", "s", "-"],
        ["4", "more,", "not", "shown", "-"],
    ]


def test_peers_that_do_not_fit_are_counted(table):
    peers = [f"env:{n}" for n in range(3)]
    printed = table(process("actor:0", wait("broadcast", 5, *peers, num_peers=500)))
    assert "broadcast 5.0 s: env:0, env:1, env:2 and 497 more" in " ".join(printed.split())


def test_processes_of_several_nodes_show_their_nodes_and_what_is_unseen(table):
    unseen = ("node 8 (10.0.0.9) did not answer within 10 s", "Ray has declared node 9 dead")
    envs = [process(f"env:{n}", pid=n, node_rank=n % 8) for n in range(64) if n % 8 != 5]
    lines = table(process("driver", pid=9), *envs, unseen=unseen).splitlines()
    assert lines[0] == "Processes: 57 on 7 nodes"
    assert [line.split()[:3] for line in (lines[3], lines[5])] == [
        ["process", "node", "pid"],
        ["driver", "0", "9"],
    ]
    assert "0-4,6-7" in lines[6]
    assert [line.strip() for line in lines[-2:]] == list(unseen)


def test_a_child_is_marked_and_left_out_once_it_is_dead(table):
    printed = table(
        process("env:0", pid=1),
        process("env:0", call("load", 1), pid=2, parent=1),
        process("env:0", call("load", 1), pid=3, parent=1, status="dead"),
    )
    assert "env:0 (child)" in printed
    assert len(printed.splitlines()) == 7


def test_the_json_has_all_facts(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_SHM_DIR", str(tmp_path))
    show_process("shoal@10.0.0.1:6379", "actor:3", 1, num_nodes=1)
    with calling("train"):
        done = CliRunner().invoke(app, ["status", "--json"])
    hide_process()
    (job,) = json.loads(done.output)
    (found,) = job["processes"]
    (activity,) = found.pop("activities")
    assert (job["job"], job["unseen"]) == ("shoal@10.0.0.1:6379", [])
    assert found == {
        "address": "actor:3",
        "group": "actor",
        "rank_path": [3],
        "node_rank": 1,
        "pid": os.getpid(),
        "parent": 0,
        "status": "running",
        "loop_seconds": None,
        "hidden": 0,
    }
    assert activity.pop("seconds") >= 0
    assert activity.pop("thread") > 0
    assert activity == {
        "kind": "call",
        "operation": "train",
        "on": "",
        "peers": [],
        "num_peers": 0,
        "inside": [],
    }


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_without_a_job_it_says_so_and_exits_with_1(tmp_path, arguments):
    done = CliRunner().invoke(app, ["status", str(tmp_path), *arguments])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert f"no job of this user shows its state on this node (in {tmp_path})" in done.stderr


def test_it_imports_neither_ray_nor_torch(tmp_path):
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom shoal.cli.app import app\n"
        "CliRunner().invoke(app, ['status', sys.argv[1]])\n"
        "print([name for name in ('ray', 'torch') if name in sys.modules])"
    )
    assert run_program("-c", program, tmp_path, check=True).stdout == "[]\n"
