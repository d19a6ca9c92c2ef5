"""`.ci/gpu`: what it runs of an archive, and its report.

The archive here has two small tests, and a program in the place of the benchmark.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.nightly, pytest.mark.process]

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest
from carried import VALUE


@pytest.mark.gpu
def test_needs_a_device():
    pytest.skip(f"no device for {VALUE}")


def test_is_for_other_machines():
    raise AssertionError
"""
CONFIG = "[tool.pytest.ini_options]\nmarkers = ['gpu: a', 'ray: b']\n"


@pytest.fixture
def project(tmp_path):
    pytest.importorskip("torch")  # what it says of the machine comes from there
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "gpu", tmp_path / ".ci")
    stage = tmp_path / "stage"
    for name, text in {
        "site/carried.py": "VALUE = 'what was carried'",
        "tests/test_some.py": TESTS,
        "benches/gpu_tensors.py": "import carried; print('| a table of', carried.VALUE)",
        "pyproject.toml": CONFIG,
    }.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_text(text)
    (tmp_path / "target" / "gpu").mkdir(parents=True)
    pack(tmp_path)
    return tmp_path


def pack(project):
    with tarfile.open(project / "target" / "gpu" / "bundle.tar.xz", "w:xz") as archive:
        for path in (project / "stage").iterdir():
            archive.add(path, path.name)


def run(project, *programs, **environment):
    return subprocess.run(
        [project / ".ci" / "gpu", *programs],
        env=os.environ | {"PYTHON": sys.executable, "OUT": ""} | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_each_part_runs_and_is_in_the_report(project):
    programs = {"good": "import sys, carried; print(*sys.argv[1:])", "bad": "raise SystemExit(3)"}
    programs["slow"] = "import time; time.sleep(60)"
    for name, text in programs.items():
        (project / f"{name}.py").write_text(text)
    result = run(project, "good.py one two", "bad.py", "slow.py", PROGRAM_S="2")
    assert result.returncode == 1, result.stderr
    results = project / "target" / "gpu" / "results"
    report = (results / "report.txt").read_text()
    assert report in result.stdout
    for line in (
        "== machine: passed",
        "== tests: passed",
        "no device for what was carried",
        "1 skipped, 1 deselected",
        "== good: passed",
        "one two",
        "== bad: FAILED: exit code 3",
        "== slow: FAILED: stopped after its limit of 2 s",
    ):
        assert line in report
    assert (results / "good.log").read_text() == "one two\n"


@pytest.mark.parametrize("sees_a_gpu", [False, True])
def test_the_benchmark_runs_where_torch_sees_a_gpu(project, sees_a_gpu):
    torch = project / "stage" / "site" / "torch.py"
    torch.write_text(f"class cuda:\n    is_available = staticmethod(lambda: {sees_a_gpu})\n")
    pack(project)
    report = run(project).stdout
    assert ("== gpu_tensors: passed" in report) == sees_a_gpu
    assert ("| a table of what was carried" in report) == sees_a_gpu
    assert ("== gpu_tensors: not run, because torch sees no GPU" in report) != sees_a_gpu


def test_without_an_archive_it_says_how_to_make_one(project):
    (project / "target" / "gpu" / "bundle.tar.xz").unlink()
    result = run(project)
    assert result.returncode == 2
    assert "bundle.tar.xz is missing; make it with: make gpu-bundle" in result.stderr
