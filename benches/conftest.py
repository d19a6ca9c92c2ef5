"""What all benchmarks share: one cluster, a release build, and the table at the end."""

import os
import tempfile
from pathlib import Path

import pytest

import shoal
from shoal import _backend
from side_by_side import Race


def pytest_addoption(parser):
    """Add the option that CI uses."""
    parser.addoption("--smoke", action="store_true", help="run each contender once only")


def pytest_collection_modifyitems(config, items):
    """Leave out what only a measurement needs: sizes of which a smaller one runs the same code."""
    if config.getoption("--smoke"):
        left_out = [item for item in items if item.get_closest_marker("measured")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session", autouse=True)
def release_build():
    """Stop where the extension was built without optimisation: its times mean nothing."""
    if _backend.build_profile == "debug":
        pytest.exit("shoal._rust is a debug build; run `make bench`, which builds a release")


@pytest.fixture(scope="session")
def race(pytestconfig):
    """Time contenders; print the table after the last benchmark."""
    made = Race(smoke=pytestconfig.getoption("--smoke"))
    yield made
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        made.print()


@pytest.fixture(scope="session")
def cluster():
    """A job on a local Ray with a temporary directory of its own."""
    with tempfile.TemporaryDirectory(prefix="shoal-b-", dir="/tmp") as folder:
        os.environ["RAY_TMPDIR"] = folder
        # The workers' classes stand in the benchmarks, which import `side_by_side`.
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        with shoal.Cluster(num_nodes=1, timeout=120) as made:
            yield made
