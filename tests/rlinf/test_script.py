"""`python -m shoal.compat.rlinf SCRIPT`: runs the script as Python would, on shoal."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from shoal.compat.rlinf.listing import as_markdown
from support.processes import run_program

pytestmark = pytest.mark.process

SCRIPTS = Path(__file__).parent / "scripts"


def run(*arguments: object, cwd: Path, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    return run_program("-m", "shoal.compat.rlinf", *arguments, seconds=timeout, cwd=cwd)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    # These scripts run in another folder, where a relative PYTHONPATH would be wrong.
    folders = [str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    if folders:
        monkeypatch.setenv("PYTHONPATH", ":".join(folders))


REPORT = """
import json, sys
from rlinf.scheduler import WorkerAddress
import beside
class Own: pass
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path[0],
    "name": __name__,
    "file": __file__,
    "main": sys.modules["__main__"].Own is Own,
    "own": Own.__module__,
    "beside": beside.VALUE,
    "address": WorkerAddress.__module__,
}))
"""


def test_script_finds_what_python_would_give_it(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(REPORT)
    (folder / "beside.py").write_text("VALUE = 7\n")
    result = run("project/train.py", "--lr", "3", "-h", "--", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "argv": ["project/train.py", "--lr", "3", "-h", "--"],
        "path": str(folder),
        "name": "__main__",
        "file": "project/train.py",
        "main": True,
        "own": "__main__",
        "beside": 7,
        "address": "shoal",
    }


@pytest.mark.parametrize(
    ("source", "code"),
    [("import sys; sys.exit(3)", 3), ("raise SystemExit", 0), ("1 / 0", 1), ("", 0)],
)
def test_exit_code_is_the_script_s_own(tmp_path, source, code):
    (tmp_path / "script.py").write_text(source)
    result = run("script.py", cwd=tmp_path)
    assert result.returncode == code
    assert ("ZeroDivisionError" in result.stderr) == (code == 1)


def test_without_a_script_usage_is_shown(tmp_path):
    result = run(cwd=tmp_path)
    assert result.returncode == 2
    assert "python -m shoal.compat.rlinf SCRIPT [ARGS...]" in result.stderr


def test_names_are_listed(tmp_path):
    result = run("--names", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, as_markdown())


def test_script_that_does_not_exist_is_named_with_the_folder(tmp_path):
    result = run("nothing.py", cwd=tmp_path)
    assert result.returncode == 2
    assert "'nothing.py'" in result.stderr
    assert str(tmp_path) in result.stderr


@pytest.mark.ray
def test_job_written_for_the_old_names_runs_unchanged(tmp_path, ray_tmpdir):
    report = tmp_path / "report.json"
    result = run(SCRIPTS / "job.py", report, 3, cwd=tmp_path, timeout=110)
    assert result.returncode == 3, result.stderr
    assert json.loads(report.read_text()) == {
        "arguments": ["3"],
        "group": True,
        "opened": ["producers:0"],
        "produced": [0, 1],
        "numbers": [0, 0, 10, 10, 20, 20, 30, 30],
        "same class": True,
        "left": 0,
        "consumer": [
            {
                "base": "shoal.worker.worker",
                "address": True,
                "nodes": 1,
                "served": "shoal.compat.rlinf",
            }
        ],
    }


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_vendor_s_class_written_for_the_old_names_places_and_describes_workers(
    tmp_path, ray_tmpdir
):
    report = tmp_path / "report.json"
    result = run(SCRIPTS / "vendor.py", report, cwd=tmp_path, timeout=110)
    assert result.returncode == 0, result.stderr
    assert json.loads(report.read_text()) == [
        {
            "type": "ACME",
            "model": "ACME:A1",
            "variable": str(rank),
            "visible": [rank],
            "backend": "accl",
            "device": "acme",
            "profiled": [rank, "stop"],
        }
        for rank in range(2)
    ]


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_job_with_the_automatic_scheduler_moves_groups_between_two_instances(
    tmp_path, ray_tmpdir
):
    report = tmp_path / "report.json"
    result = run(SCRIPTS / "auto_scheduler.py", report, cwd=tmp_path, timeout=110)
    assert result.returncode == 0, result.stderr
    assert json.loads(report.read_text()) == {
        "finished": [{}, {"2": [1], "3": [1], "0": [0, 1], "1": [0, 1]}],
        "actor": [{"world_size": 2}, {"world_size": 1}],
    }


def test_an_emulated_network_given_as_a_mapping_delays_messages(tmp_path):
    report = tmp_path / "report.json"
    result = run(SCRIPTS / "emulated_network.py", report, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(report.read_text()) == [
        pytest.approx(1.5, abs=0.1),
        pytest.approx(0.5, abs=0.1),
        0.0,
    ]
