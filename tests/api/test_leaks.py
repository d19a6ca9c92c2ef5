"""The leak guard finds what it is there for, and nothing of others."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import leaks

pytestmark = pytest.mark.process

_SLEEP = [sys.executable, "-c", "import sys, time; print(flush=True); time.sleep(60)"]


def start(program: list[str], mark: str | None) -> subprocess.Popen[str]:
    environment = dict(os.environ)
    if mark is not None:
        environment[leaks.MARK_VARIABLE] = mark
    process = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()  # it runs
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
    assert shared_file in leaks.new_paths(before, mark)
    assert shared_file not in leaks.new_paths(leaks.lasting_paths(), mark)


def test_shared_memory_in_use_by_another_run_is_not_found(mark, shared_file):
    before = leaks.lasting_paths()
    shared_file.touch()
    program = [
        *_SLEEP[:2],
        f"import time; f = open({str(shared_file)!r}); print(flush=True); time.sleep(60)",
    ]
    with start(program, uuid.uuid4().hex) as process:
        found = leaks.new_paths(before, mark)
        process.kill()
    assert shared_file not in found


def test_program_fails_with_what_is_left(mark, tmp_path, shared_file):
    program = [sys.executable, leaks.__file__]
    record = tmp_path / "before"
    subprocess.run([*program, "record", str(record)], timeout=30, check=True)
    shared_file.touch()
    check = [*program, "check", str(record), "--mark", mark]
    result = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert f"left behind: {shared_file}" in result.stderr
