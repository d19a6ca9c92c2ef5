"""A pytest plugin with the fixture `shoal_cluster`: `pytest_plugins = ["shoal.testing.plugin"]`.

It is not registered as an entry point, so that projects that do not ask for it do not load it.
"""

from collections.abc import Iterator

import pytest

from shoal.testing import LocalCluster, local_cluster

__all__ = ["shoal_cluster"]


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the fixture."""
    config.addinivalue_line(
        "markers",
        "shoal_cluster(num_nodes, accelerators, ...): arguments of `shoal.testing.local_cluster` "
        "for the fixture `shoal_cluster`",
    )


@pytest.fixture
def shoal_cluster(request: pytest.FixtureRequest) -> "Iterator[LocalCluster]":
    """A cluster within the test's process, of one node unless the marker says otherwise."""
    marker = request.node.get_closest_marker("shoal_cluster")
    args, kwargs = ((), {}) if marker is None else (marker.args, marker.kwargs)
    with local_cluster(*args, **kwargs) as cluster:
        yield cluster
