"""`import shoal` is cheap: it imports only the standard library and takes almost no time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import run_program

pytestmark = pytest.mark.nightly

PROMISED_S = 0.1
# The fastest of five runs is the cost of the import; the rest is other load on the machine.
RUNS = 5

_NEW_MODULES = """
import sys
before = set(sys.modules)
import {module}
import json
print(json.dumps(sorted(set(sys.modules) - before - {{"json"}})))
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_program(*arguments, cwd=folder, check=True)


def foreign_modules(module: str, folder: Path) -> set[str]:
    """Import a module in a new interpreter; return the modules it loads beyond Python and shoal."""
    output = run("-c", _NEW_MODULES.format(module=module), folder=folder).stdout
    tops = {name.partition(".")[0] for name in json.loads(output)}
    return tops - sys.stdlib_module_names - {"shoal"}


def test_import_shoal_loads_only_the_standard_library(tmp_path):
    assert foreign_modules("shoal", tmp_path) == set()


def test_foreign_modules_sees_what_is_not_of_the_standard_library(tmp_path):
    assert "numpy" in foreign_modules("numpy", tmp_path)


@pytest.mark.timed
def test_import_shoal_takes_next_to_no_time(tmp_path):
    times = []
    for _ in range(RUNS):
        report = run("-X", "importtime", "-c", "import shoal", folder=tmp_path).stderr
        line = next(row for row in report.splitlines() if row.endswith("| shoal"))
        times.append(int(line.split("|")[1]) / 1e6)
    assert min(times) < PROMISED_S, times


@pytest.mark.parametrize("version", ["2.46.1", "1.99"])
def test_a_ray_that_is_too_old_is_refused_with_what_to_install(tmp_path, version):
    info = tmp_path / f"ray-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n")
    program = """
import sys
sys.path.insert(0, sys.argv[1])
for kind in ImportError, AssertionError:
    try:
        import shoal
    except kind as error:
        print(type(error).__name__, error)
"""
    printed = run("-c", program, str(tmp_path), folder=tmp_path).stdout.splitlines()
    expected = f"DependencyError shoal needs ray 2.47 or newer, and ray {version} is installed here"
    assert len(printed) == 2
    assert all(line.startswith(expected) and "ray>=2.47" in line for line in printed), printed


def test_without_ray_only_what_needs_it_is_refused(tmp_path):
    program = """
import importlib.metadata as metadata
import sys
sys.modules["ray"] = None  # as if it were not installed
version = metadata.version
def without_ray(name):
    if name == "ray":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = without_ray
import shoal
import shoal.shm
print(shoal.WorkerAddress("group", 1))
try:
    shoal.Worker
except ImportError as error:
    print(type(error).__name__, error)
"""
    printed = run("-c", program, folder=tmp_path).stdout.splitlines()
    refusal = "DependencyError shoal needs ray 2.47 or newer, and ray is not installed here; run: "
    assert len(printed) == 2
    assert "group:1" in printed[0]
    assert printed[1].startswith(refusal), printed
