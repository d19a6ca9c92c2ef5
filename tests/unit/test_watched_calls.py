"""Calls that no code waits for: their failures are watched until the cluster ends."""

from collections import deque
from types import SimpleNamespace

import pytest

from shoal import Cluster
from shoal.worker import failures


@pytest.mark.parametrize("is_ending", [False, True])
def test_calls_are_not_watched_while_the_cluster_ends(monkeypatch, is_ending):
    watched = []
    call = SimpleNamespace(name="g.step", watch_if_left_alone=lambda: watched.append("g.step"))
    # As in the middle of Ray's own shutdown, when a call of Ray would end the process.
    monkeypatch.setattr(failures, "runtime", lambda: SimpleNamespace(is_initialized=lambda: True))
    cluster = SimpleNamespace(is_ending=is_ending)
    monkeypatch.setattr(Cluster, "_instance", cluster, raising=False)
    monkeypatch.setattr(failures, "_new", deque([call]))
    failures._watch_new()
    assert bool(watched) is not is_ending


@pytest.mark.parametrize("is_ending", [False, True])
def test_results_that_are_dropped_while_the_cluster_ends_are_not_watched(monkeypatch, is_ending):
    monkeypatch.setattr(failures, "_watch_later", lambda _: None)
    monkeypatch.setattr(failures, "runtime", lambda: SimpleNamespace(is_initialized=lambda: True))
    cluster = SimpleNamespace(is_ending=is_ending)
    monkeypatch.setattr(Cluster, "_instance", cluster, raising=False)
    call = failures.GroupCall("g", "step", ["reference"], [0])
    watched = []
    monkeypatch.setattr(call, "watch", lambda: watched.append("g.step"))
    call.drop()
    assert bool(watched) is not is_ending
