"""What all benchmarks share: one cluster on a release build, and the facts of the machine."""

import os
import platform
import tempfile
from pathlib import Path

import pytest

import shoal
from shoal import _backend


@pytest.fixture(scope="session", autouse=True)
def release_build():
    """Stop where the extension was built without optimisation: its times mean nothing."""
    if _backend.build_profile == "debug":
        pytest.exit("shoal._rust is a debug build; run `make bench`, which builds a release")


@pytest.fixture(scope="session")
def cluster():
    """A job on a local Ray with a temporary directory of its own."""
    with tempfile.TemporaryDirectory(prefix="shoal-b-", dir="/tmp") as folder:
        os.environ["RAY_TMPDIR"] = folder
        with shoal.Cluster(num_nodes=1, timeout=120) as made:
            yield made


def pytest_benchmark_update_machine_info(config, machine_info):
    """Add what the times depend on."""
    machine_info["cores"] = len(os.sched_getaffinity(0))
    machine_info["kernel"] = platform.release()
    machine_info["shoal_backend"] = shoal.backend()
    machine_info["cpu_model"] = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "unknown",
    )
