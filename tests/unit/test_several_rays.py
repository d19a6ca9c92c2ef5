"""`Cluster()` on a machine with several Rays: it does not join an arbitrary one."""

import pytest
from ray._private import services

from shoal.cluster import bringup
from shoal.errors import ClusterError


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Let Rays run at addresses; one may be that which `ray start` has recorded."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))

    def run(*addresses, recorded=None):
        monkeypatch.setattr(services, "find_gcs_addresses", lambda: set(addresses))
        if recorded:
            (tmp_path / "ray").mkdir()
            (tmp_path / "ray" / "ray_current_cluster").write_text(recorded)

    return run


def test_several_are_listed(running):
    running("10.0.0.1:2", "10.0.0.1:1")
    with pytest.raises(ClusterError, match=r"10\.0\.0\.1:1, 10\.0\.0\.1:2; set RAY_ADDRESS"):
        bringup.refuse_several()


@pytest.mark.parametrize(
    ("addresses", "recorded", "named"),
    [(["a:1"], None, None), (["a:1", "b:2"], "b:2", None), (["a:1", "b:2"], None, "a:1")],
    ids=["only one", "recorded", "named"],
)
def test_one_is_joined(running, monkeypatch, addresses, recorded, named):
    running(*addresses, recorded=recorded)
    if named:
        monkeypatch.setenv("RAY_ADDRESS", named)
    bringup.refuse_several()
