"""`Cluster()` on a machine with several Rays: it does not join an arbitrary one."""

import pytest
from ray._private import services

from shoal.cluster import bringup
from shoal.deadline import Deadline
from shoal.errors import ClusterError


def running(monkeypatch, *addresses, recorded=None):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Other tests of the session may have a cluster.
    monkeypatch.setattr(bringup.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: set(addresses))
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: recorded)


def test_several_are_listed(monkeypatch):
    running(monkeypatch, "10.0.0.1:2", "10.0.0.1:1")
    with pytest.raises(ClusterError, match=r"10\.0\.0\.1:1, 10\.0\.0\.1:2; set RAY_ADDRESS"):
        bringup.connect("auto", "shoal", "shoal", Deadline(30))


@pytest.mark.parametrize(
    ("addresses", "recorded", "named"),
    [(["a:1"], None, None), (["a:1", "b:2"], "b:2", None), (["a:1", "b:2"], None, "a:1")],
    ids=["only one", "recorded", "named"],
)
def test_one_is_joined(monkeypatch, addresses, recorded, named):
    running(monkeypatch, *addresses, recorded=recorded)
    if named:
        monkeypatch.setenv("RAY_ADDRESS", named)
    connected = []

    def init(**arguments):
        connected.append(arguments["address"])
        raise ConnectionError

    monkeypatch.setattr(bringup, "check_answers", lambda _: None)
    monkeypatch.setattr(bringup.ray, "init", init)
    with pytest.raises(ConnectionError):
        bringup.connect("auto", "shoal", "shoal", Deadline(30))
    assert connected == ["auto"]
