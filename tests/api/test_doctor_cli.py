"""The `shoal doctor` command: its sentences and its exit codes."""

import pytest
from typer.testing import CliRunner

from shoal.cli import show_doctor
from shoal.cli.app import app
from shoal.observe import JobProcesses
from shoal.state import Activity, ProcessState

NOW = 1000.0


def call(operation, seconds, *inside):
    return Activity("call", operation, "", (), 0, NOW - seconds, 7, tuple(inside))


def wait(operation, seconds, *peers, on=""):
    return Activity("wait", operation, on, peers, len(peers), NOW - seconds, 7)


def state(address, *activities, status="running"):
    return ProcessState(address, hash(address), 1, 0, 0, status, activities, 0)


@pytest.fixture
def doctor(monkeypatch):
    """Examine a job of some processes; return the lines of the output, and the exit code."""

    def run(*states, unseen=(), **env):
        job = JobProcesses("job", states, NOW, unseen)
        monkeypatch.setattr(show_doctor, "_BETWEEN_S", 0)
        monkeypatch.setattr(show_doctor, "read_jobs", lambda *_: [job])
        done = CliRunner().invoke(app, ["doctor"], env=env)
        lines = done.output.splitlines()
        return lines[1:], done.exit_code

    return run


def test_it_names_the_process_that_the_others_wait_for(doctor):
    rollouts = [
        state(f"rollout:{n}", call("play", 70, wait("recv", 60 + n, "actor:0"))) for n in range(6)
    ]
    driver = state("driver", wait("wait", 80, *(f"rollout:{n}" for n in range(6))))
    lines, code = doctor(driver, *rollouts, state("actor:0", call("update", 63)))
    assert lines == [
        "- actor:0 has been in `update` for 63 s. rollout:5, rollout:4, rollout:3, rollout:2 and 2 more "
        "wait for it, in recv 65 s. driver waits for these."
    ]
    assert code == 0
    assert doctor(driver, *rollouts, state("actor:0", call("update", 63)), SHOAL_HANG="60")[1] == 1


def test_it_names_a_circle_and_who_waits_for_it(doctor):
    lines, code = doctor(
        state("a:0", call("step", 70, wait("recv", 63, "b:0"))),
        state("b:0", call("step", 70, wait("lock", 61, "a:0", on="the lock 'x'"))),
        state("driver", wait("wait", 80, "a:0")),
    )
    assert lines == [
        "- A circle, in which none can go on: a:0 waits 63 s in recv for b:0, b:0 waits 61 s in lock "
        "(the lock 'x') for a:0. driver waits for these."
    ]
    assert code == 1


@pytest.mark.parametrize(
    ("culprit", "text", "code"),
    [
        (state("b:0", call("train", 5), status="dead"), "b:0 is dead; it died in `train`.", 1),
        (state("b:0", status="stopped"), "b:0 is stopped.", 1),
        (state("b:0"), "b:0 is in no call.", 0),
        (state("c:0"), "b:0 has no state page: it has ended, or has not begun.", 0),
    ],
)
def test_it_says_why_a_process_does_not_answer(doctor, culprit, text, code):
    waiting = state("a:0", call("step", 70, wait("recv", 20, "b:0")))
    assert doctor(waiting, culprit) == ([f"- {text} a:0 waits for it, in recv 20 s."], code)


def test_a_node_that_does_not_answer_is_wrong_and_may_have_the_process(doctor):
    waiting = state("a:0", call("step", 70, wait("recv", 20, "b:0")))
    silent = "node 2 (10.0.0.3) did not answer within 10 s"
    away = "b:0 has no state page here: it has ended, or is on a node that is not shown."
    lines = [f"- {away} a:0 waits for it, in recv 20 s.", f"- {silent}"]
    assert doctor(waiting, unseen=(silent,)) == (lines, 1)


def test_a_wait_that_names_no_process_is_wrong_once_it_is_long(doctor):
    waiting = state("a:0", call("step", 400, wait("get", 350, on="the channel 'x', key 0")))
    text = "- a:0 waits 6 min in get (the channel 'x', key 0), which names no process."
    assert doctor(waiting) == ([text], 1)
    assert doctor(waiting, SHOAL_HANG="400") == (["- Nothing stands still."], 0)


def test_short_waits_and_idle_processes_are_no_alarm(doctor):
    lines, code = doctor(
        state("driver"),
        state("a:0", call("step", 2, wait("recv", 0.5, "b:0"))),
        state("b:0", call("step", 2, wait("recv", 0.4, "a:0"))),
    )
    assert (lines, code) == (["- Nothing stands still."], 0)


def test_without_a_job_it_prints_nothing(tmp_path):
    done = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert (done.output, done.exit_code) == (
        "no job of this user shows its state on this node\n",
        0,
    )


def test_a_limit_that_is_no_number_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["doctor", str(tmp_path)], env={"SHOAL_HANG": "soon"})
    assert done.stderr == "SHOAL_HANG='soon': expected a positive number of seconds\n"
    assert done.exit_code == 2
