"""What a process that waits for long logs of the processes that it waits for."""

import math
import os
import time

import pytest

from shoal.deadline import Deadline, LongWait
from shoal.observe import long_waits
from shoal.state import (
    Activity,
    find_jobs,
    hide_process,
    job_folder,
    show_process,
)
from support.state_pages import process

NO_LIMIT = Deadline(math.inf)


def call(operation, seconds, *inside):
    return Activity("call", operation, "", (), 0, time.monotonic() - seconds, 7, tuple(inside))


def recv(seconds, peer):
    return Activity("wait", "recv", "", (peer,), 1, time.monotonic() - seconds, 7)


@pytest.fixture(autouse=True)
def page(page_folder):
    """This process is a worker of a job."""
    show_process("job", "env:0", 0)
    yield
    hide_process()
    assert list(page_folder.iterdir()) == []


@pytest.fixture
def others(monkeypatch):
    """Let the pages of the node show some processes."""

    def show(*states):
        monkeypatch.setattr(long_waits, "read_pages", lambda _: list(states))

    return show


def line_of(caplog, seconds=11.0, **options):
    """The log line of a wait that has taken some seconds."""
    caplog.clear()
    with LongWait(lambda: "env:0: recv waits", NO_LIMIT, seconds, **options) as wait:
        wait.tick()
    return caplog.messages[0]


def remark_on(caplog, **options):
    return line_of(caplog, **options).removeprefix("env:0: recv waits: waiting for 11 s (no limit)")


def test_a_log_line_says_what_the_awaited_process_does(caplog, others):
    def remark():
        return remark_on(caplog, operation="recv", peers=lambda: ["actor:0"])

    others(process("actor:0", call("update", 63)))
    assert remark() == "; actor:0 has been in `update` for 63 s"
    others(process("actor:0", status="dead"))
    assert remark() == "; actor:0 is dead"
    others(process("actor:0", call("f", 70, recv(60, "b:0"))), process("b:0", call("train", 61)))
    assert remark() == "; actor:0 waits 60 s in `recv` for b:0; b:0 has been in `train` for 61 s"
    others(
        process("actor:0", call("f", 70, recv(60, "b:0"))),
        process("b:0", call("g", 70, recv(61, "actor:0"))),
    )
    assert remark() == (
        "; in a circle: actor:0 waits 60 s in `recv` for b:0; b:0 waits 61 s in `recv` for actor:0"
    )


def test_a_log_line_says_for_what_the_awaited_ranks_wait_that_nothing_explains(caplog, others):
    now = time.monotonic()
    gets = Activity("wait", "get", "", (), 0, now - 60, 7, channel="items")
    latest = Activity("wait", "latest", "the weights 'w'", (), 0, now - 50, 7)
    others(
        process("driver"),
        *(process(f"a:{rank}", call("f", 70, gets)) for rank in range(3)),
        process("a:3", call("f", 70, latest)),
    )
    assert remark_on(caplog, peers=lambda: ["a:0", "a:1", "a:2"]) == (
        "; a:0 waits 60 s in get for an item of channel 'items'; a:1 and a:2 wait in `get`"
    )
    assert (
        remark_on(caplog, peers=lambda: ["a:3"]) == "; a:3 waits 50 s in `latest` (the weights 'w')"
    )


def test_a_log_line_names_waits_for_each_other_that_another_process_may_end(caplog, others):
    workers = [
        process(f"a:{n}", call("f", 70, recv(60, f"a:{1 - n}")), most_calls=9) for n in range(2)
    ]
    others(process("driver"), *workers)
    assert remark_on(caplog, peers=lambda: ["a:0"]) == (
        "; a:0 waits 60 s in `recv` for a:1; a:1 waits 60 s in `recv` for a:0"
    )


def test_a_log_line_says_what_the_other_side_of_a_channel_does(caplog, others):
    others(process("actor:0", uses="-a"))
    assert remark_on(caplog, operation="put", channel="a") == "; actor:0 is in no call"
    assert remark_on(caplog, operation="get", channel="a") == ""  # one may put later


def test_a_line_of_a_wait_within_another_one_is_about_the_outer_one(caplog, others):
    others(process("actor:0", call("update", 63)))
    with LongWait(str, NO_LIMIT, operation="recv", peers=lambda: ["actor:0"]):
        assert remark_on(caplog, peers=lambda: ["WorkerManager"]).endswith("for 63 s")


@pytest.fixture
def reports(monkeypatch):
    """Make each report of a hang at once, and note when one was made."""
    made = []
    monkeypatch.setattr(long_waits, "run_in_thread", lambda report: made.append(report()))
    monkeypatch.setattr(long_waits, "_BETWEEN_S", 0.0)
    monkeypatch.setenv("SHOAL_HANG", "5")
    return made


def test_nothing_is_said_of_what_is_not_known(caplog, others, monkeypatch):
    others()
    assert remark_on(caplog, operation="get") == ""
    assert remark_on(caplog, peers=lambda: ["WorkerManager"]) == ""
    others(None)  # a page that cannot be understood
    assert remark_on(caplog, peers=lambda: ["actor:0"]) == ""
    monkeypatch.setenv("SHOAL_HANG", "soon")
    assert remark_on(caplog, peers=lambda: ["actor:0"]) == ""
    hide_process()
    assert remark_on(caplog, peers=lambda: ["actor:0"]) == ""


@pytest.mark.usefixtures("reports")
def test_a_hang_is_reported_once_in_a_job(caplog, others):
    others(
        process("env:0", call("play", 90, recv(65, "actor:0"))),
        process("actor:0", call("update", 63)),
    )

    def lines():
        return [line for line in caplog.messages if "SHOAL_HANG" in line]

    with LongWait(str, NO_LIMIT, 4.0) as wait:
        wait.tick()
        assert wait.step() <= 1.0  # it is called in time
    assert lines() == []
    for _ in range(2):
        with LongWait(str, NO_LIMIT, 6.0) as wait:
            wait.tick()
            assert wait.step() > 1.0
    assert lines() == [
        f"driver (pid {os.getpid()}): waits for more than 5 s (SHOAL_HANG). Who waits for whom in this job "
        "(`shoal doctor`):\n- env:0 waits for actor:0, which has been in `update` for 63 s. env:0 "
        "waits 65 s in `recv`."
    ]
    assert (job_folder() / "reported-working").exists()


def test_a_report_that_finds_nothing_is_left_to_a_later_wait(others, reports):
    others()
    with LongWait(str, NO_LIMIT, 6.0) as wait:
        wait.tick()
        wait.tick()
    assert len(reports) == 1
    assert not (job_folder() / "reported-working").exists()
    assert list(find_jobs()) == ["job"]
