"""Leak check: processes and shared memory that a test run left behind.

As a pytest plugin it gives each test session a folder for shared memory and one for Ray, and runs
the check at the end. As a program it checks what a series of commands left:

    SHOAL_TEST_RUN=<mark> SHOAL_SHM_DIR=<folder> some commands
    python tests/support/leaks.py --mark <mark> <folder>

A process belongs to a run when the run's mark is in its environment. Unlike its parent or its name,
the mark stays with a daemon, an orphan, or a Ray worker that changes its title. Shared memory
belongs to a run when it is in the run's folder. Nothing of another run is ever looked at.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal import _backend
from shoal.state import remove_dead

MARK_VARIABLE = "SHOAL_TEST_RUN"
SHM_VARIABLE = "SHOAL_SHM_DIR"
GRACE_S = 30.0
LEFT_BEHIND = "the tests left behind:"

_PROC = Path("/proc")
# Python's own helpers live as long as the process that started them.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Process:
    """A process that carries the mark of a run."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid}: {self.command}"


def marked_processes(mark: str) -> list[Process]:
    """List the living processes with the mark in their environment, except this one."""
    found = []
    for pid in _pids():
        command = _command(pid)
        if pid != os.getpid() and _has_mark(pid, mark) and not any(h in command for h in _HELPERS):
            found.append(Process(pid, command))
    return found


def wait_for_end(mark: str, grace_s: float) -> list[Process]:
    """Wait until no marked process lives; return those that still live after `grace_s` seconds."""
    limit = time.monotonic() + grace_s
    # Two looks: the environment of a process that starts a program is empty for a moment.
    alive, none_before = marked_processes(mark), False
    while alive or not none_before:
        if alive and time.monotonic() >= limit:
            break
        none_before = not alive
        time.sleep(0.1)
        alive = marked_processes(mark)
    return alive


def memory_left(folder: Path, grace_s: float) -> list[str]:
    """Wait until a folder of shared memory is empty; describe what still is there after `grace_s`.

    What processes that have all ended left is removed meanwhile: that of killed processes stays
    until the next session or job starts. A killed process holds its session until its last thread ends.
    """
    limit = time.monotonic() + grace_s
    while True:
        for core in ("rust", "pure"):
            _backend.load(core).shm_gc(str(folder))
        remove_dead(folder)
        found = sorted(folder.iterdir())
        if not found or time.monotonic() >= limit:
            return [f"{path}, used by {', '.join(_users(path)) or 'no process'}" for path in found]
        time.sleep(0.1)


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _command(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:  # the process has ended
        return ""


def _has_mark(pid: int, mark: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # the process has ended, or is another user's
        return False
    return f"{MARK_VARIABLE}={mark}".encode() in environment


def _users(path: Path) -> list[str]:
    return [str(Process(pid, _command(pid))) for pid in _pids() if _uses(pid, path)]


def _uses(pid: int, path: Path) -> bool:
    folder = _PROC / str(pid)
    try:
        opened = [str(link.readlink()) for link in (folder / "fd").iterdir()]
        mapped = (folder / "maps").read_text()
    except OSError:
        return False
    below = f"{path}/"
    return any(f == str(path) or f.startswith(below) for f in opened) or str(path) in mapped


@pytest.fixture(scope="session")
def ray_tmpdir() -> Iterator[Path]:
    """A folder for all Ray sessions of this run, which is removed at the end.

    Its path is short, because it contains Ray's sockets; a socket's path has at most 107 bytes.
    """
    folder = Path(tempfile.mkdtemp(prefix="shoal-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _leak_guard(ray_tmpdir: Path) -> Iterator[None]:
    """Fail the session if it leaves a process or shared memory behind, and remove both."""
    mark = uuid.uuid4().hex
    shm = Path(tempfile.mkdtemp(prefix="shoal-run-", dir="/dev/shm"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK_VARIABLE, mark)
        patch.setenv(SHM_VARIABLE, str(shm))
        patch.setenv("RAY_TMPDIR", str(ray_tmpdir))
        yield
    alive = wait_for_end(mark, GRACE_S)
    left = [*map(str, alive), *memory_left(shm, GRACE_S)]
    for process in alive:
        os.kill(process.pid, signal.SIGKILL)
    shutil.rmtree(shm, ignore_errors=True)
    if left:
        lines = "\n".join(f"  {thing}" for thing in left)
        pytest.fail(f"{LEFT_BEHIND}\n{lines}", pytrace=False)


def _main() -> int:
    parser = argparse.ArgumentParser(description="Find what a run left behind.")
    parser.add_argument("folder", type=Path, help=f"what {SHM_VARIABLE} was set to during the run")
    parser.add_argument("--mark", required=True, help=f"what {MARK_VARIABLE} was set to")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="how long to wait (s)")
    arguments = parser.parse_args()
    alive = wait_for_end(arguments.mark, arguments.grace)
    left = [*map(str, alive), *memory_left(arguments.folder, arguments.grace)]
    for line in left:
        print(f"left behind: {line}", file=sys.stderr)  # noqa: T201  (a program's output)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(_main())
