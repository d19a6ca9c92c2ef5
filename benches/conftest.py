"""Fixtures of all benchmarks, the timer of pytest-benchmark, and the tables."""

import os
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from subprocess import CalledProcessError

import pytest
import ray

import shoal
from harness.lines_tcp import Network
from harness.processes import cores
from harness.ray_job import Job
from harness.report import Measure, replay_clock
from harness.table import Tables
from shoal import _backend
from support.machines import connected

TABLES = pytest.StashKey[Tables]()


def pytest_addoption(parser):
    """Add the option that CI uses."""
    parser.addoption("--smoke", action="store_true", help="run each contender once only")


def pytest_configure(config):
    """Print our tables instead of those of pytest-benchmark, except in a comparison."""
    config.stash[TABLES] = Tables()
    if not (config.getoption("benchmark_compare") or config.getoption("benchmark_verbose")):
        config.option.benchmark_quiet = True
    # Warnings are errors: these would hide the results, or the failure that caused them.
    for said in ("Not saving anything", "Benchmark machine_info is", "Benchmark fixture was not"):
        config.addinivalue_line("filterwarnings", f"default:{said}")  # during a test
        warnings.filterwarnings("default", message=said)  # before and after


def pytest_collection_modifyitems(config, items):
    """Set the timer. With `--smoke`, leave out sizes for which a smaller one runs the same code."""
    for item in items:
        if "measure" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.benchmark(timer=replay_clock))
    if config.getoption("--smoke"):
        left_out = [item for item in items if item.get_closest_marker("measured")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(config):
    """Print the tables. Below them pytest lists the skipped contenders with the reasons."""
    notes = [f"on cores {cores()[0]} and {cores()[1]}; shoal's backend is {_backend.NAME}"]
    if cores()[0] == cores()[1]:
        notes.append("one core only: no process can spin, and the processes take turns in all rows")
    if config.getoption("--smoke"):
        notes.append("smoke: one short round, with memory that no process has touched yet")
    config.stash[TABLES].print(notes)


@pytest.fixture(scope="session", autouse=True)
def release_build():
    """Stop if the extension was built without optimisation, because its times mean nothing."""
    if _backend.build_profile == "debug":
        pytest.exit("shoal._rust is a debug build; run `make bench`, which builds a release")


@pytest.fixture
def measure(request, benchmark, pytestconfig, contender):  # a parameter of every test
    """A function that measures a row with all its contenders, and reports this test's contender."""
    smoke = pytestconfig.getoption("--smoke")
    return Measure(request, benchmark, pytestconfig.stash[TABLES], smoke=smoke)


@pytest.fixture(scope="session")
def cluster():
    """A job on a local Ray that has a temporary directory of its own."""
    with tempfile.TemporaryDirectory(prefix="shoal-b-", dir="/tmp") as folder:
        os.environ["RAY_TMPDIR"] = folder
        # Workers import their classes from the benchmarks and the harness.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        with shoal.Cluster(num_nodes=1, timeout=120) as made:
            yield made


@pytest.fixture(scope="module")
def start_job(cluster):
    """A function that starts jobs on the cluster's Ray; they end with the module."""
    with ExitStack() as stack:

        def start(nodes=(0, 0), **options):
            address = ray.get_runtime_context().gcs_address
            environment = options.pop("environment", {})
            job = Job({"RAY_ADDRESS": address, **environment}, nodes, **options)
            stack.callback(job.close)
            return job

        yield start


@pytest.fixture(scope="module")
def network():
    """Two network namespaces, if root can make and connect them here; otherwise the loopback."""
    with ExitStack() as stack:
        try:
            owner, user = stack.enter_context(connected("owner", "user"))
            made = Network("veth", owner.address, (owner.pid, user.pid))
        except (pytest.skip.Exception, AssertionError, CalledProcessError):
            made = Network()
        yield made
