"""The second pass runs failed tests once more, and excuses only those that pass then."""

import os
import subprocess
from pathlib import Path

import pytest

from support import second_pass
from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.process]

_TESTS = Path(second_pass.__file__).parents[1]
_CONFTEST = """
import pytest
pytest_plugins = ["support.second_pass"]

def pytest_addoption(parser):
    parser.addoption("--backend", default="rust")
"""
_FLAKY = """
from pathlib import Path
def test_it():
    seen = Path(__file__).with_name("seen")
    passes = seen.exists()
    seen.touch()
    assert passes
"""
_LEAK = f"""
import pytest
@pytest.fixture
def guard():
    yield
    pytest.fail("{second_pass.LEFT_BEHIND} something")

def test_it(guard):
    pass
"""


def run(program: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        second_pass.VARIABLE: str(folder / "failed"),
        "PYTHONPATH": str(_TESTS),
    }
    return run_program(*program, cwd=folder, env=environment)


@pytest.mark.parametrize(
    ("body", "status", "flaky", "shown"),
    [
        ("def test_it(): pass", 0, "", ""),
        (_FLAKY, 0, "rust test_it.py::test_it\n", "second pass: 1 tests failed"),
        ("def test_it(): assert False", 1, "", "failed twice\n  rust test_it.py::test_it"),
        ("import nothing_of_this_name", 1, "", "test_it.py cannot be collected"),
        (_LEAK, 1, "", "no flake: the tests left behind"),
        (f"import pytest\n@pytest.mark.parametrize('n', range({second_pass.MOST_FLAKES + 1}))\n"
         "def test_it(n): assert False", 1, "", "no second pass"),
    ],
    ids=["passes", "flaky", "broken", "not importable", "leak", "too many"],
)  # fmt: skip
def test_only_a_test_that_passes_alone_is_excused(tmp_path, body, status, flaky, shown):
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {_TESTS}\n")
    (tmp_path / "test_it.py").write_text(body)
    first = run(["-m", "pytest", "-p", "no:cacheprovider"], tmp_path)
    assert (first.returncode == 0) == (not shown), first.stdout
    second = run([second_pass.__file__, "failed", "flaky"], tmp_path)
    assert second.returncode == status, second.stdout + second.stderr
    assert shown in second.stdout
    reported = tmp_path / "flaky"
    assert (reported.read_text() if reported.exists() else "") == flaky
