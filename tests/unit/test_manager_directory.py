"""`ManagerDirectory`: how it waits for a worker, with a double of the manager's actor."""

import time
from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError

from shoal import WorkerAddress, WorkerInfo, deadline
from shoal._ray import use_runtime
from shoal.collective import directory
from shoal.collective.directory import ManagerDirectory
from shoal.deadline import Deadline

ADDRESS = WorkerAddress.from_name("plaeyrs:0")
INFO = WorkerInfo(ADDRESS, 0, 1, 0)


class Answer:
    """A value that a call of the actor returns, some seconds from now."""

    def __init__(self, value, seconds=0.0):
        self.value, self.at = value, time.monotonic() + seconds

    def get(self, timeout):
        time.sleep(max(0.0, min(timeout, self.at - time.monotonic())))
        if time.monotonic() < self.at:
            raise GetTimeoutError
        return self.value


@pytest.fixture
def answers(monkeypatch):
    """The answers of the manager's actor by method."""
    monkeypatch.setenv("CLUSTER_NAMESPACE", "job")
    found = {"get_group_sizes": Answer({"players": 2})}
    calls = {
        name: SimpleNamespace(remote=lambda *_, name=name: found[name])
        for name in ("wait_worker_info", "get_group_sizes")
    }
    manager = SimpleNamespace(actor=SimpleNamespace(**calls))
    use_runtime(
        SimpleNamespace(manager=lambda _: manager, get=lambda ref, timeout: ref.get(timeout))
    )
    yield found
    use_runtime(None)


def test_a_long_wait_names_the_limit_of_the_call_and_the_groups(answers, monkeypatch, caplog):
    monkeypatch.setattr(deadline, "TIMING", deadline.WaitTiming(first_logs_s=(0.1, 60.0)))
    monkeypatch.setattr(directory, "_LONG_S", 0.0)
    answers["wait_worker_info"] = Answer(None, 0.3)
    assert ManagerDirectory().wait_for(ADDRESS, "recv from plaeyrs:0", Deadline(10800)) is None
    (line,) = caplog.messages
    assert (
        "recv from plaeyrs:0 (no group plaeyrs was launched; there is players; did you mean "
        "'players'?) waits for plaeyrs:0, which is not registered yet: waiting for "
    ) in line
    assert "s (limit 10800 s)" in line


def test_an_answer_may_come_shortly_after_the_deadline(answers):
    answers["wait_worker_info"] = Answer(INFO, 0.1)
    assert ManagerDirectory().wait_for(ADDRESS, "recv", Deadline(0)) is INFO


def test_a_manager_that_does_not_answer_ends_the_wait(answers, monkeypatch):
    monkeypatch.setattr(directory, "_SPARE_S", 0.01)
    monkeypatch.setattr(directory, "_ASK_S", 0.01)
    answers["wait_worker_info"] = answers["get_group_sizes"] = Answer(None, 60)
    assert ManagerDirectory().wait_for(ADDRESS, "recv", Deadline(0.01)) is None
    assert ManagerDirectory().group_sizes() == {}
