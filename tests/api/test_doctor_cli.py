"""The `shoal doctor` command: its sentences and its exit codes."""

from dataclasses import replace
from functools import partial

import pytest
from typer.testing import CliRunner

from shoal.cli import show_doctor
from shoal.cli.app import app
from shoal.observe import JobProcesses
from support.state_pages import NOW, call, process, wait

state = partial(process, num_nodes=1)


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
        state("rollout:1", call("play", 90, wait("recv", 65, "actor:0"))),
        *(
            state(f"rollout:{n}", call("play", 90, wait("broadcast", 60, "rollout:1")))
            for n in (0, 2, 3)
        ),
    ]
    driver = state(
        "driver", wait("wait", 80, *(f"rollout:{n}" for n in range(4)), on="rollout.play")
    )
    job = driver, *rollouts, state("actor:0", call("update", 63))
    text = (
        "- rollout:1 waits for actor:0, which has been in `update` for 63 s; the other 3 ranks "
        "wait in `broadcast`; driver waits for rollout.play. rollout:1 waits 65 s in `recv`."
    )
    assert doctor(*job) == ([text], 0)
    assert doctor(*job, SHOAL_HANG="60") == ([text], 1)


def test_it_names_a_circle_and_who_waits_for_it(doctor):
    b = state("b:0", call("step", 70, wait("lock", 61, "a:0", on="the lock 'x'")))
    driver = state("driver", wait("wait", 80, "a:0"))
    lines, code = doctor(state("a:0", call("step", 70, wait("recv", 63, "b:0"))), b, driver)
    assert lines == [
        "- A circle, in which none can go on: a:0 waits 63 s in `recv` for b:0; b:0 waits 61 s in "
        "`lock` (the lock 'x') for a:0; driver waits in `wait`."
    ]
    assert code == 1
    calls = [
        state(f"{one}:0", call("f", 70, wait("wait", 63, f"{other}:0", on=f"{other}.f")))
        for one, other in ("ab", "ba")
    ]
    assert doctor(*calls)[0] == [
        "- A circle, in which none can go on: a:0 waits 63 s for b.f on b:0; b:0 waits 63 s for a.f "
        "on a:0."
    ]
    young = state("a:0", call("step", 70, wait("recv", 3, "b:0")))
    assert doctor(young, b)[0] == ["- Nothing stands still."]  # a message may be on its way


@pytest.mark.parametrize(
    ("culprit", "text", "code"),
    [
        (state("b:0", call("train", 5), status="dead"), "is dead; it died in `train`", 1),
        (state("b:0", status="stopped"), "is stopped", 1),
        (state("b:0"), "is in no call", 0),
        (
            replace(state("b:0", call("load", 40), most_calls=1000), loop_beat=NOW - 39),
            "has been in `load` for 40 s; its event loop stands still for 39 s",
            0,
        ),
        (state("c:0"), "cannot be seen on any node: it has not begun, or has ended", 0),
    ],
)
def test_it_says_why_a_process_does_not_answer(doctor, culprit, text, code):
    waiting = state("a:0", call("step", 70, wait("recv", 20, "b:0")))
    line = f"- a:0 waits for b:0, which {text}. a:0 waits 20 s in `recv`."
    assert doctor(state("driver"), waiting, culprit) == ([line], code)


def test_it_names_ranks_that_do_the_same_together(doctor):
    ranks = [state(f"a:{n}", call("train", 60 + n), status="dead") for n in range(2)]
    driver = state("driver", wait("wait", 70, "a:0", "a:1", on="a.train"))
    text = "- driver waits for a:1 and a:0, which {}. driver waits 70 s for a.train."
    assert doctor(driver, *ranks)[0] == [text.format("are dead; they died in `train`")]
    ranks = [state(f"a:{n}", call("train", 60 + n)) for n in range(2)]
    assert doctor(driver, *ranks)[0] == [text.format("have been in `train` for up to 61 s")]


@pytest.mark.parametrize(
    ("users", "text", "code"),
    [
        ([state("actor:1", status="dead", uses="-a")], "from which actor:1 gets; it is dead", 1),
        ([state("actor:1", uses="-a")], "from which actor:1 gets; it is in no call", 1),
        (
            [state("actor:1", call("f", 60), uses="-a")],
            "from which actor:1 gets; it has been in `f` for 60 s",
            0,
        ),
        (
            [state(f"actor:{n}", uses="-a") for n in range(2)],
            "from which actor:0 and actor:1 get; they are in no call",
            1,
        ),
        (
            [state(f"actor:{n}", call("f", 60 + n), uses="-a") for n in range(2)],
            "from which actor:1 and actor:0 get; actor:1 has been in `f` for 61 s",
            0,
        ),
        ([state("actor:1", uses="-b")], "", 1),
    ],
)
def test_it_says_what_the_other_side_of_a_channel_does(doctor, users, text, code):
    driver = state("driver", wait("wait", 70, "rollout:0", on="rollout.play"))
    rollout = state("rollout:0", call("play", 70, wait("put_many", 63, channel="a")), uses="+a")
    reason = f", {text}" if text else "; no process that is seen has got from it"
    line = (
        f"- rollout:0 waits 63 s in put_many for room in channel 'a'{reason}; driver waits for "
        "rollout.play."
    )
    assert doctor(driver, rollout, *users) == ([line], code)


def test_it_names_a_circle_over_two_channels_and_one_that_another_process_may_end(doctor):
    two = [
        state("a:0", call("f", 70, wait("get", 63, channel="x")), uses="-x +y"),
        state("b:0", call("f", 70, wait("get", 62, channel="y")), uses="-y +x"),
    ]
    round_trip = (
        "a:0 waits 63 s in get for an item of channel 'x', into which b:0 puts; b:0 waits 62 s in "
        "get for an item of channel 'y', into which a:0 puts"
    )
    driver = state("driver", wait("wait", 80, "a:0", on="a.f"))
    assert doctor(driver, *two) == (
        [f"- A circle, in which none can go on: {round_trip}; driver waits for a.f."],
        1,
    )
    assert doctor(state("driver"), *two) == (
        [f"- These wait for each other, if no other process ends it: {round_trip}."],
        0,
    )


def test_a_wait_that_ends_by_itself_is_named_all_the_same(doctor):
    polls = [
        state(f"a:{n}", call("f", 70, wait("recv", 8, f"a:{1 - n}", left=30))) for n in range(2)
    ]
    lines, code = doctor(state("driver"), *polls)
    assert lines[0].startswith("- These wait for each other, if no other process ends it: a:0")
    assert code == 0
    assert doctor(state("driver"), *polls, SHOAL_HANG="20")[1] == 1


def test_a_node_that_does_not_answer_is_wrong_and_may_have_the_process(doctor):
    waiting = state("a:0", call("step", 70, wait("recv", 20, "b:0")))
    silent = "node 2 (10.0.0.3) did not answer within 10 s"
    away = "cannot be seen here: it is on a node that is not seen, has not begun, or has ended"
    lines = [f"- a:0 waits for b:0, which {away}. a:0 waits 20 s in `recv`.", f"- {silent}"]
    assert doctor(waiting, unseen=(silent,)) == (lines, 1)


def test_a_circle_over_channels_is_one_only_if_all_nodes_were_seen(doctor):
    states = [
        state("driver", wait("wait", 80, "a:0", on="a.f")),
        state("a:0", call("f", 70, wait("get", 63, channel="x")), uses="-x +y"),
        state("b:0", call("f", 70, wait("get", 62, channel="y")), uses="-y +x"),
    ]
    assert doctor(*states)[0][0].startswith("- A circle, in which none can go on")
    silent = "node 1 (10.0.0.3) did not answer within 10 s"
    lines, _ = doctor(*states, unseen=(silent,))
    assert lines[0].startswith("- These wait for each other, if no other process ends it")
    assert lines[1:] == [f"- {silent}"]


def test_a_wait_that_names_no_process_is_wrong_once_it_is_long(doctor):
    waiting = state("a:0", call("step", 400, wait("get", 350, on="the channel 'x', key 0")))
    text = "- a:0 waits 6 min in `get` (the channel 'x', key 0), which names no process."
    assert doctor(waiting) == ([text], 1)
    assert doctor(waiting, SHOAL_HANG="400") == (["- Nothing stands still."], 0)


def test_a_wait_for_weights_is_shown_at_once_but_is_no_alarm(doctor):
    driver = state("driver", wait("wait", 8, "a:0", on="a.step"))
    waiting = state("a:0", call("step", 20, wait("latest", 9, on="the weights 'w'")))
    lines = [
        "- a:0 waits 9.0 s in `latest` (the weights 'w'), which names no process.",
        "- driver waits 8.0 s for a.step on a:0.",
    ]
    assert doctor(driver, waiting, state("b:0", call("train", 9))) == (lines, 0)


def test_short_waits_and_idle_processes_are_no_alarm(doctor):
    lines, code = doctor(
        state("driver"),
        state("a:0", call("step", 2, wait("recv", 0.5, "b:0"))),
        state("b:0", call("step", 2, wait("recv", 0.4, "a:0"))),
    )
    assert (lines, code) == (["- Nothing stands still."], 0)


def test_without_a_job_it_prints_nothing(tmp_path):
    done = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    text = f"no job of this user shows its state on this node (in {tmp_path})\n"
    assert (done.stderr, done.stdout, done.exit_code) == (text, "", 1)


def test_a_limit_that_is_no_number_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["doctor", str(tmp_path)], env={"SHOAL_HANG": "soon"})
    assert done.stderr == "SHOAL_HANG='soon': expected a positive number of seconds\n"
    assert done.exit_code == 2
