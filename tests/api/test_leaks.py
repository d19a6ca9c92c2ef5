"""The leak guard reports what a test run leaves behind, and nothing that other processes own."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from support import leaks

pytestmark = pytest.mark.process

_SLEEP = [sys.executable, "-c", "import sys, time; print(flush=True); time.sleep(60)"]


def start(program: list[str], mark: str | None) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if mark is not None:
        environment[leaks.MARK_VARIABLE] = mark
    process = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()  # the process is running
    return process


@pytest.fixture
def mark():
    return uuid.uuid4().hex


@pytest.fixture
def shared_file():
    path = Path(f"/dev/shm/shoal-test-{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


def test_marked_process_is_found_until_it_ends(mark):
    with start(_SLEEP, mark) as process:
        found = leaks.wait_for_end(mark, 0.0)
        process.kill()
    assert [thing.pid for thing in found] == [process.pid]
    assert leaks.wait_for_end(mark, 5.0) == []


def test_process_of_another_run_is_not_found(mark):
    with start(_SLEEP, uuid.uuid4().hex) as process:
        found = leaks.marked_processes(mark)
        process.kill()
    assert found == []


def test_new_shared_memory_is_found(mark, shared_file):
    before = leaks.lasting_paths()
    shared_file.touch()
    assert shared_file in leaks.new_paths(before, mark, 0.0)
    assert shared_file not in leaks.new_paths(leaks.lasting_paths(), mark, 0.0)


def test_shared_memory_in_use_by_another_run_is_not_found(mark, shared_file):
    before = leaks.lasting_paths()
    shared_file.touch()
    program = [
        *_SLEEP[:2],
        f"import time; f = open({str(shared_file)!r}); print(flush=True); time.sleep(60)",
    ]
    with start(program, uuid.uuid4().hex) as process:
        found = leaks.new_paths(before, mark, 0.0)
        process.kill()
    assert shared_file not in found


def test_program_fails_with_what_is_left(mark, tmp_path, shared_file):
    program = [sys.executable, leaks.__file__]
    record = tmp_path / "before"
    subprocess.run([*program, "record", str(record)], timeout=30, check=True)
    shared_file.touch()
    check = [*program, "check", str(record), "--mark", mark, "--grace", "0.5"]
    result = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert f"left behind: {shared_file}" in result.stderr


_SESSION = """
import subprocess, sys
from pathlib import Path
import leaks
leaks.GRACE_S = 0.5
pytest_plugins = ["leaks"]
"""


@pytest.mark.parametrize(
    ("body", "status", "shown"),
    [
        ("subprocess.Popen(['sleep', '60'])", 1, "sleep 60"),
        ("Path(SHARED).touch()", 1, "shoal-test"),
        ("subprocess.run(['sleep', '0'])", 0, "1 passed"),
    ],
)
def test_session_that_leaves_something_fails(body, status, shown, tmp_path, shared_file):
    (tmp_path / "conftest.py").write_text(_SESSION)
    (tmp_path / "test_it.py").write_text(
        f"import subprocess\nfrom pathlib import Path\nSHARED = {str(shared_file)!r}\n"
        f"def test_it():\n    {body}\n"
    )
    program = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    result = subprocess.run(
        [*program, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(leaks.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == status, result.stdout
    assert shown in result.stdout
