"""The `shoal gc` command: it removes memory of dead processes and keeps that of live ones."""

import signal

from typer.testing import CliRunner

from shoal import shm
from shoal.cli.app import app
from shoal.state import find_jobs, hide_process, show_process
from support.processes import run_program

DIES = """
import os, signal, sys
from shoal import shm
session = shm.Session.create(dir=sys.argv[1])
print(session.token, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

SHOWS = """
import os, signal
from shoal.state import show_process
show_process("dead", "actor:0", 0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def invoke(folder):
    return CliRunner().invoke(app, ["gc", str(folder)])


def test_gc_removes_sessions_of_dead_processes_only(tmp_path):
    done = run_program("-c", DIES, tmp_path)
    assert done.returncode == -signal.SIGKILL
    dead = done.stdout.strip()
    assert invoke(tmp_path).output == f"removed {dead}\n"
    with shm.Session.create(dir=str(tmp_path)) as session:
        assert invoke(tmp_path).output == "nothing to remove\n"
        assert session.stats()["participants"] == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    done = invoke(tmp_path / "no")
    assert done.exit_code == 2
    assert "there is no folder" in done.output


def test_the_state_pages_of_a_job_without_a_process_go(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_SHM_DIR", str(tmp_path))
    show_process("alive", "driver", 0)
    run_program("-c", SHOWS)
    dead = find_jobs(tmp_path)["dead"]
    assert invoke(tmp_path).output == f"removed {dead}\n"
    assert list(find_jobs(tmp_path)) == ["alive"]
    hide_process()
