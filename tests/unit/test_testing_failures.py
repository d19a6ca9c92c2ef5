"""Failures of calls on a group: logged when they arrive, named by other waits, and ends of a job."""

import asyncio
import gc
import logging
import os
import threading
from pathlib import Path

import pytest

from shoal import Channel, NodePlacementStrategy, Worker
from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError, ShoalValueError, WorkerGroupError
from shoal.testing import local_cluster
from shoal.worker import failures
from support.in_thread import in_thread
from support.processes import run_program, until

TWO = NodePlacementStrategy([0, 0])


class Fails(Worker):
    def __init__(self, fails=False):
        super().__init__()
        if fails:
            raise ValueError("constructor")
        self._go_on = threading.Event()

    def fail(self, message="no"):
        raise KeyError(message)

    def fail_on_0(self):
        if self._rank == 0:
            raise KeyError("only 0")
        return self._go_on.wait(30)

    def fail_later(self):
        self._go_on.wait(30)
        raise KeyError("late")

    def wait_for_go(self):
        return self._go_on.wait(30)

    def go_on(self):
        self._go_on.set()

    def _close(self):
        raise ValueError("at the end")


@pytest.fixture(autouse=True)
def _no_earlier_failures():
    # Otherwise a traceback that an earlier test of this process has shown is left out.
    failures._shown.clear()


@pytest.fixture
def pair(cluster):
    return Fails.create_group().launch(cluster, TWO, "pair", max_concurrency=2)


@pytest.fixture
def log(caplog):
    with caplog.at_level(logging.WARNING, "shoal"):
        yield caplog


def errors(log):
    return [r.getMessage() for r in log.records if r.levelno == logging.ERROR]


def wait_line(log):
    """Return the log line of a wait that has taken long."""
    log.clear()
    LongWait(lambda: "driver: other.step waits for other rank 0", Deadline(30), 11).tick()
    return log.records[-1].getMessage()


def test_a_failure_is_logged_when_it_arrives_although_the_handle_is_held(pair, log):
    handle = pair.fail("unseen")
    until(lambda: len(errors(log)) == 2)
    first, second = sorted(errors(log))
    where = f"({__file__}:"
    assert first.startswith(f"pair.fail failed on rank 0 (pair:0): KeyError: 'unseen' {where}")
    assert second.startswith("pair.fail failed on rank 1 (pair:1): KeyError: 'unseen' ")
    assert " in fail)" in first
    # Equal tracebacks are shown once.
    assert "".join(errors(log)).count("Traceback (most recent call last)") == 1
    with pytest.raises(WorkerGroupError):
        handle.wait()
    assert len(errors(log)) == 2


def test_a_long_wait_names_the_failures_that_were_not_raised(pair, log):
    handle = pair.execute_on(1).fail("unseen")
    until(lambda: errors(log))
    assert (
        "failed before, and not raised so far: pair.fail failed on rank 1 (pair:1): KeyError: 'unseen'"
    ) in wait_line(log)
    waiting = pair.execute_on(0).wait_for_go()
    with pytest.raises(
        ShoalTimeoutError, match=r" 0 s; failed before, and not raised so far: pair\.f"
    ):
        waiting.wait(timeout=0)
    pair.go_on().wait()
    with pytest.raises(KeyError):
        handle.wait()
    assert "failed before" not in wait_line(log)
    more = [pair.execute_on(0).fail(f"number {number}") for number in range(5)]
    until(lambda: len(errors(log)) == 5)
    assert wait_line(log).endswith(", and 2 more")
    del more
    pair.close()
    assert "failed before" not in wait_line(log)


def test_the_deadline_of_a_wait_says_what_a_log_line_would_say(pair, timing, monkeypatch):
    timing("worker", polls_s=0.1)
    remarks = [lambda wait: f"{wait.activity().peers} waits in `recv`"]
    monkeypatch.setattr("shoal.long_wait_hooks._remarks", remarks)
    waiting = pair.execute_on(1).wait_for_go()
    with pytest.raises(ShoalTimeoutError, match=r" 0\.1 s; \('pair:1',\) waits in `recv`$"):
        waiting.wait(timeout=0.1)
    with pytest.raises(ShoalTimeoutError, match=r" 0\.1 s; \('pair:1',\) waits in `recv`$"):
        asyncio.run(waiting.async_wait(timeout=0.1))
    with pytest.raises(ShoalTimeoutError, match=r" 0\.01 s$"):
        waiting.wait(timeout=0.01)
    pair.go_on().wait()


def test_a_failure_that_is_waited_for_is_only_raised(pair, log):
    with pytest.raises(KeyError):
        pair.execute_on(0).fail().wait()
    with pytest.raises(KeyError):
        asyncio.run(pair.execute_on(0).fail().async_wait())
    assert errors(log) == []


def test_a_wait_for_all_ranks_waits_for_them_and_logs_the_first_failure_at_once(pair, log, timing):
    timing("worker", grace_s=0.0)  # without `all` it would not wait for the other rank
    waiting = in_thread(pair.fail_on_0().wait, all=True)
    until(lambda: errors(log))
    assert "pair.fail_on_0 failed on rank 0" in errors(log)[0]
    assert "failed before, and not raised so far: pair.fail_on_0 failed on rank 0" in wait_line(log)
    pair.go_on().wait()
    with pytest.raises(WorkerGroupError) as caught:
        waiting.result(30)
    assert "failed before" not in wait_line(log)
    assert caught.value.ranks == (0,)
    assert "still ran" not in str(caught.value)


def test_a_wait_rests_while_it_leaves_time_to_the_ranks_that_have_not_failed(
    pair, timing, monkeypatch
):
    timing("deadline", first_logs_s=(0.0, 60.0))  # a line is due
    timing("worker", grace_s=0.3)
    looks, await_end = [], failures.GroupCall.await_end
    monkeypatch.setattr(
        failures.GroupCall, "await_end", lambda *args: looks.append(await_end(*args))
    )
    with pytest.raises(WorkerGroupError, match="pair rank 1 still ran"):
        pair.fail_on_0().wait()
    assert len(looks) < 10
    pair.go_on().wait()


def test_a_failure_after_a_wait_that_timed_out_is_logged(pair, log):
    call = pair.execute_on(0).fail_later()
    with pytest.raises(ShoalTimeoutError):
        call.wait(timeout=0.1)
    pair.go_on().wait()
    until(lambda: errors(log))
    assert "pair.fail_later failed on rank 0" in errors(log)[0]


@pytest.mark.nightly
def test_the_end_of_a_group_is_no_failure(pair, log):
    handle = pair.wait_for_go()
    pair.close()
    assert errors(log) == []  # neither the calls that it ended, nor `_close`, which is a warning
    assert "closing pair: " in log.text
    assert "ValueError: at the end" in log.text
    del handle


def test_the_failure_of_a_constructor_is_logged_once(cluster, log):
    group = Fails.create_group(fails=True).launch(cluster, name="broken")
    until(lambda: errors(log))
    handle = group.fail()
    until(lambda: len(errors(log)) == 2)
    assert errors(log)[0].startswith(
        "constructing broken failed on rank 0 (broken:0): ValueError: constructor ("
    )
    text = "broken.fail: constructing broken failed on rank 0 (broken:0): ValueError: constructor ("
    assert errors(log)[1].startswith(text)
    assert "".join(errors(log)).count("Traceback") == 1
    del handle


class NeverUp(Worker):
    def __init__(self):
        super().__init__()
        Channel.create("up").put(None)
        Channel.create("never").get()


def test_a_worker_whose_constructor_does_not_return_releases_its_memory(place, monkeypatch):
    monkeypatch.setenv("SHOAL_SHM_DIR", place)
    gc.disable()  # a worker is part of a cycle
    try:
        with local_cluster() as cluster:
            failed = Fails.create_group(fails=True).launch(cluster, name="failed")
            with pytest.raises(ValueError, match="constructor"):
                failed.ready()
            assert list(Path(place).iterdir()) == []
            ended = NeverUp.create_group().launch(cluster, name="ended")
            Channel.create("up").get(timeout=30)
            assert list(Path(place).iterdir()) != []
            ended.close()
            assert list(Path(place).iterdir()) == []
    finally:
        gc.enable()


def test_values_of_a_dropped_call_are_not_kept(pair):
    handle = pair.wait_for_go()
    call = handle._call
    del handle
    pair.go_on().wait()
    until(lambda: not call.pending())
    assert set(call.replies.values()) == {None}


# The end of the job.

PROGRAM = """
import sys, threading, time
{first}
from shoal import Channel, NodePlacementStrategy, Worker
from shoal.testing import local_cluster

class Fails(Worker):
    def fail(self):
        raise ValueError("the cause")
    def sleep(self):
        time.sleep(60)

with local_cluster() as cluster:
    failing = Fails.create_group().launch(cluster, name="failing")
    sleeping = Fails.create_group().launch(cluster, name="sleeping")
    try:
        call = failing.fail()
        {then}
    except Exception as error:
        print("raised", type(error).__name__)
    finally:
        print("finally")
"""


def run_job(then, first="", **variables):
    program = PROGRAM.format(then=then, first=first)
    return run_program("-c", program, seconds=60, env={**os.environ, **variables})


CAUSE = (
    "shoal: the job was stopped: failing.fail failed on rank 0 (failing:0): ValueError: the cause"
)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("then", ["sleeping.sleep().wait()", "call.wait()", "time.sleep(60)"])
def test_a_failure_stops_the_driver_where_that_is_chosen(then):
    ended = run_job(then, SHOAL_ON_FAILURE="stop")
    assert ended.returncode == 255, ended.stderr
    assert ended.stdout == "finally\n"
    assert ended.stderr.splitlines()[-1].startswith(CAUSE)
    assert ended.stderr.count("Traceback") == 1


@pytest.mark.nightly
@pytest.mark.process
def test_under_the_layer_for_rlinf_a_failure_stops_the_driver():
    install = "from shoal.compat.rlinf import install; install()"
    ended = run_job("time.sleep(60)", install)
    assert (ended.returncode, ended.stdout) == (255, "finally\n"), ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(CAUSE)
    ended = run_job("call.wait()", install, SHOAL_ON_FAILURE="raise")
    assert (ended.returncode, ended.stdout) == (0, "raised ValueError\nfinally\n"), ended.stderr


def test_a_wrong_choice_is_an_error_at_once(monkeypatch):
    monkeypatch.setenv("SHOAL_ON_FAILURE", "ignore")
    with (
        pytest.raises(ShoalValueError, match="SHOAL_ON_FAILURE='ignore': expected raise or stop"),
        local_cluster(),
    ):
        pass
