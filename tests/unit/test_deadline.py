"""Deadlines, their defaults from the environment, and the log lines of long waits."""

import logging
import math

import pytest

from shoal import deadline
from shoal.deadline import Deadline, LongWait, default_timeout
from shoal.errors import ShoalValueError


class Clock:
    """A clock that moves when told."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(deadline, "time", made)
    return made


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.delenv("SHOAL_TIMEOUT", raising=False)
    monkeypatch.delenv("RLINF_TIMEOUT", raising=False)


def test_the_default_is_three_hours():
    assert default_timeout() == 3 * 3600
    assert Deadline(None).timeout == 3 * 3600


def test_shoal_timeout_is_in_seconds_and_the_older_name_in_minutes(monkeypatch):
    monkeypatch.setenv("RLINF_TIMEOUT", "2")
    assert default_timeout() == 120
    monkeypatch.setenv("SHOAL_TIMEOUT", "7.5")
    assert default_timeout() == 7.5


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan"])
def test_an_invalid_variable_is_named(monkeypatch, text):
    monkeypatch.setenv("SHOAL_TIMEOUT", text)
    with pytest.raises(ShoalValueError, match=r"SHOAL_TIMEOUT=.*positive number of seconds"):
        default_timeout()
    monkeypatch.delenv("SHOAL_TIMEOUT")
    monkeypatch.setenv("RLINF_TIMEOUT", text)
    with pytest.raises(ShoalValueError, match=r"RLINF_TIMEOUT=.*positive number of minutes"):
        default_timeout()


def test_none_may_have_another_default():
    assert math.isinf(Deadline(None, default=math.inf).timeout)


@pytest.mark.parametrize("timeout", [-0.1, math.nan, "5", True, [1]])
def test_an_invalid_timeout_is_refused(timeout):
    with pytest.raises(ShoalValueError, match="timeout="):
        Deadline(timeout)


def test_a_deadline_counts_down_and_stops_at_zero(clock):
    limit = Deadline(10)
    clock.now += 4
    assert (limit.elapsed, limit.remaining, limit.expired) == (4, 6, False)
    clock.now += 7
    assert (limit.remaining, limit.expired) == (0, True)


def test_an_infinite_deadline_never_expires(clock):
    limit = Deadline(math.inf)
    clock.now += 1e9
    assert limit.remaining == math.inf
    assert limit.remaining_or_none() is None
    assert not limit.expired
    assert Deadline(0).remaining_or_none() == 0
    assert Deadline(0).expired


def lines_until(clock, seconds, wait):
    """Wait in the steps that `wait` asks for; return the times of its log lines."""
    start, logged = clock.now, []
    while clock.now - start < seconds:
        step = wait.step(at_most=seconds - (clock.now - start))
        clock.now += step
        before = wait.next_at
        wait.tick()
        if wait.next_at != before:
            logged.append(clock.now - start)
    return logged


def test_a_long_wait_is_logged_at_10_s_at_60_s_and_every_10_minutes(clock, caplog):
    wait = LongWait(lambda: "a waits for b", Deadline(math.inf))
    with caplog.at_level(logging.WARNING, "shoal"):
        assert lines_until(clock, 1900, wait) == [10, 60, 600, 1200, 1800]
    assert caplog.messages[0] == "a waits for b: waiting for 10 s (no limit)"
    assert len(caplog.messages) == 5


def test_a_wait_that_slept_too_long_logs_once(clock, caplog):
    wait = LongWait(lambda: "a waits for b", Deadline(5000))
    clock.now += 700
    with caplog.at_level(logging.WARNING, "shoal"):
        wait.tick()
        wait.tick()
    assert caplog.messages == ["a waits for b: waiting for 700 s (limit 5000 s)"]


def test_a_step_ends_with_the_deadline(clock):
    assert LongWait(str, Deadline(0.03)).step() == 0.03
    assert LongWait(str, Deadline(math.inf)).step(at_most=0.02) == 0.02
