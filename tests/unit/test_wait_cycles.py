"""`PeerWait`: the error at its deadline names the cycle of waits."""

import time
from types import SimpleNamespace

import pytest

from shoal.collective import waits
from shoal.collective.waits import PeerWait
from shoal.deadline import Deadline
from shoal.errors import ShoalTimeoutError
from shoal.manager import WorkerManager

CYCLE = "too late (a cycle: a:0 waits for b:0, which waits for a:0)"


@pytest.fixture
def manager(monkeypatch):
    """A manager that knows that b:0 waits for a:0."""
    monkeypatch.setattr(waits, "_NOTE_AFTER_S", 0.0)
    made = WorkerManager()
    made.note_wait("b:0", 1, ("a:0",))
    return made


def wait_of(manager, seconds=0.1):
    directory = SimpleNamespace(
        note_wait=manager.note_wait,
        end_wait=manager.end_wait,
        wait_cycle=manager.find_wait_cycle,
    )
    describe = "a:0: recv from b:0: waits for b:0".format
    return PeerWait(directory, "a:0", "recv", ["b:0"], describe, Deadline(seconds))


def time_out(wait, between=lambda: None):
    with wait:
        while not wait.deadline.expired:
            time.sleep(wait.step())
            wait.tick()
        between()
        raise ShoalTimeoutError("too late")


def time_out_within(outer, wait):
    with outer:
        outer.tick()
        time_out(wait)


def fail_before(wait):
    with wait:
        wait.tick()
        raise ShoalTimeoutError("another")


def error_of(function, *args):
    with pytest.raises(ShoalTimeoutError) as caught:
        function(*args)
    return str(caught.value)


def test_the_error_names_the_cycle_and_the_wait_leaves_no_record(manager):
    assert error_of(time_out, wait_of(manager)) == CYCLE
    assert list(manager._waits) == ["b:0"]


def test_a_peer_that_ends_its_wait_first_is_named_all_the_same(manager):
    assert error_of(time_out, wait_of(manager), lambda: manager.end_wait("b:0", 1)) == CYCLE


def test_waits_within_waits_name_their_cycle_once(manager):
    assert error_of(time_out_within, wait_of(manager), wait_of(manager)) == CYCLE


def test_an_error_without_a_cycle_or_before_the_deadline_stays_as_it_is(manager):
    assert error_of(fail_before, wait_of(manager, 60)) == "another"
    manager.end_wait("b:0", 1)
    assert error_of(time_out, wait_of(manager)) == "too late"
