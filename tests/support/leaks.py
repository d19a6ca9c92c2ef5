"""Leak check: processes, shared memory and folders of Ray sessions that a test run left behind.

As a pytest plugin it gives each test session its own Ray folder and runs the check at the end. As a
program it does the same for a series of commands:

    python tests/support/leaks.py record FILE
    SHOAL_TEST_RUN=<mark> some commands
    python tests/support/leaks.py check FILE --mark <mark>

A process belongs to a run when the run's mark is in its environment. Unlike its parent or its name,
the mark stays with a daemon, an orphan, or a Ray worker that changes its title. Things of another
user, or of another run on the same machine, are never reported.
"""

import argparse
import json
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

MARK_VARIABLE = "SHOAL_TEST_RUN"
GRACE_S = 15.0

_PROC = Path("/proc")
_FOLDERS = {Path("/dev/shm"): ("shoal*", "plasma*"), Path("/tmp/ray"): ("session_2*",)}
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


def lasting_paths() -> set[Path]:
    """List this user's shared memory of shoal and Ray, and the sessions in Ray's default folder."""
    return {
        path
        for folder, patterns in _FOLDERS.items()
        for pattern in patterns
        for path in folder.glob(pattern)
        if not path.is_symlink() and _is_ours(path)
    }


def new_paths(before: set[Path], mark: str, grace_s: float) -> list[Path]:
    """List the lasting paths made since `before` that no other live process uses.

    Waits `grace_s` seconds, because a new path of another run may not be in use for a moment.
    """
    limit = time.monotonic() + grace_s
    while True:
        found = sorted(p for p in lasting_paths() - before if not _used_by_others(p, mark))
        if not found or time.monotonic() > limit:
            return found
        time.sleep(0.5)


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


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:  # it was removed in the meantime
        return False


def _used_by_others(path: Path, mark: str) -> bool:
    return any(
        pid != os.getpid() and _uses(pid, path) and not _has_mark(pid, mark) for pid in _pids()
    )


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
    """Fail the session if it leaves a process or shared memory behind, and end such processes."""
    mark = uuid.uuid4().hex
    before = lasting_paths()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK_VARIABLE, mark)
        patch.setenv("RAY_TMPDIR", str(ray_tmpdir))
        yield
    alive = wait_for_end(mark, GRACE_S)
    paths = new_paths(before, mark, GRACE_S)
    for process in alive:
        os.kill(process.pid, signal.SIGKILL)
    if alive or paths:
        lines = "\n".join(f"  {thing}" for thing in [*alive, *paths])
        pytest.fail(f"the tests left behind:\n{lines}", pytrace=False)


def _main() -> int:
    parser = argparse.ArgumentParser(description="Find what a run left behind.")
    parser.add_argument("command", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--mark", help=f"what {MARK_VARIABLE} was set to during the run")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="how long to wait (s)")
    arguments = parser.parse_args()
    if arguments.command == "record":
        arguments.file.write_text(json.dumps([str(path) for path in lasting_paths()]))
        return 0
    if not arguments.mark:
        parser.error("check needs --mark")
    before = {Path(path) for path in json.loads(arguments.file.read_text())}
    left = [str(process) for process in wait_for_end(arguments.mark, arguments.grace)]
    left += [str(path) for path in new_paths(before, arguments.mark, arguments.grace)]
    for line in left:
        print(f"left behind: {line}", file=sys.stderr)  # noqa: T201  (a program's output)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(_main())
