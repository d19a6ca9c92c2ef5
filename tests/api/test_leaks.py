"""The leak guard reports what a test run leaves behind, and nothing that other processes own."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from support import leaks
from support.processes import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.process]

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
def folder(tmp_path):
    made = tmp_path / "memory"
    made.mkdir()
    return made


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


def test_memory_that_is_left_is_described_with_its_users(folder):
    unused, used = folder / "1", folder / "2"
    unused.touch()
    used.touch()
    body = f"import time; f = open({str(used)!r}); print(flush=True); time.sleep(60)"
    with start([*_SLEEP[:2], body], None) as process:
        found = leaks.memory_left(folder, 0.0)
        process.kill()
    assert found[0] == f"{unused}, used by no process"
    assert found[1].startswith(f"{used}, used by process {process.pid}: ")


@pytest.mark.parametrize("core", ["rust", "pure"])
def test_sessions_of_killed_processes_are_removed_and_not_reported(folder, core):
    body = f"from shoal import shm; s = shm.Session.create({str(folder)!r}); print(flush=True)"
    program = [*_SLEEP[:2], f"{body}; import time; time.sleep(60)"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_BACKEND", core)
        process = start(program, None)
    with process:
        assert leaks.memory_left(folder, 0.0) != []
        process.kill()
    assert leaks.memory_left(folder, 30.0) == []


def test_program_fails_with_what_is_left(mark, folder):
    (folder / "file").touch()
    result = run_program(leaks.__file__, "--mark", mark, "--grace", "0.5", folder)
    assert result.returncode == 1
    assert f"left behind: {folder / 'file'}, used by no process" in result.stderr


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
        ("Path(os.environ['SHOAL_SHM_DIR'], 'left').touch()", 1, "left, used by no process"),
        ("subprocess.run(['sleep', '0'])", 0, "1 passed"),
    ],
)
def test_session_that_leaves_something_fails(body, status, shown, tmp_path):
    (tmp_path / "conftest.py").write_text(_SESSION)
    (tmp_path / "test_it.py").write_text(
        f"import os, subprocess\nfrom pathlib import Path\ndef test_it():\n    {body}\n"
    )
    program = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    environment = {**os.environ, "PYTHONPATH": str(Path(leaks.__file__).parent)}
    result = run_program(*program, "--rootdir", tmp_path, tmp_path, cwd=tmp_path, env=environment)
    assert result.returncode == status, result.stdout
    assert shown in result.stdout
