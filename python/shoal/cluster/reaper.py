"""Ends the Ray processes that a killed driver leaves behind.

Ray's own processes end with the process that started them. A few of them first wait for a process
that is gone: the agents of its raylet for a minute, a worker that was just starting for half a
minute. This module, run as a program beside the driver, ends them. It imports the standard library
only: `python -I -S reaper.py RAYLET`.
"""

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["start_reaper"]

# Seconds before the kill. Workers notice the raylet's end earlier, and run their exit handlers.
_GRACE_S = 3.0
# Seconds that killed processes may need to end: a busy machine frees a large memory slowly.
_END_LIMIT_S = 20.0
_START_LIMIT_S = 30.0
_PROC = Path("/proc")

Process = tuple[int, str]
"""A process id and the process's start time, because the system reuses process ids."""


def start_reaper(raylet: int) -> None:
    """Start the program that cleans up; it ends soon after the raylet, which ends with its driver.

    Args:
        raylet: The process id of the raylet that this process started.
    """
    if not _PROC.is_dir() or not hasattr(os, "pidfd_open"):
        return  # not Linux: Ray's processes end by themselves, after a minute
    try:
        # The program forks into the background, so that this process has no child to wait for.
        subprocess.run(  # noqa: S603  (this interpreter and this file)
            [sys.executable, "-I", "-S", __file__, str(raylet)],
            # Ctrl-C reaches all processes of a terminal's session; this program must survive it.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            check=True,
            timeout=_START_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        # The job can run without the program.
        logging.getLogger("shoal").warning(
            "the program that cleans up after a killed driver did not start (%s): should this "
            "driver be killed, some of Ray's processes stay for about a minute",
            error,
        )


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:  # it ended, or is another user's
        return b""


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _fields(pid: int) -> list[str]:
    # The fields after the name (state, parent, …); the name is in parentheses and may hold anything.
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def _identify(pid: int) -> Process | None:
    fields = _fields(pid)
    if not fields or (fields[0] in "ZX" and not _has_threads(pid)):
        return None
    return pid, fields[19]


def _has_threads(pid: int) -> bool:
    # The main thread of a dying process may be a zombie while other threads have its files open.
    try:
        return len(list((_PROC / str(pid) / "task").iterdir())) > 1
    except OSError:  # it ended
        return False


def _children(parent: int) -> set[Process]:
    found = (_identify(pid) for pid in _pids() if _fields(pid)[1:2] == [str(parent)])
    return {process for process in found if process}


def _marked(mark: bytes) -> set[Process]:
    marked = [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]
    found = (_identify(pid) for pid in marked if _shares_numbers(pid))
    return {process for process in found if process}


def _shares_numbers(pid: int) -> bool:
    # A raylet in a container may have the same process id as ours; its workers are not ours.
    try:
        return (_PROC / str(pid) / "ns/pid").readlink() == (_PROC / "self/ns/pid").readlink()
    except OSError:  # it ended, or is another user's
        return False


def _main(raylet: int) -> None:
    agents = _children(raylet)  # Ray starts them with the raylet, and they live as long as it
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(raylet)], [], [])
    # Workers have this variable from Ray, and their own children inherit it. Agents do not have it.
    mark = f"RAY_RAYLET_PID={raylet}".encode()
    begin, alive = time.monotonic(), agents
    # A process is followed until it has ended, because it loses its variables before its locks.
    while alive := {p for p in alive if _identify(p[0]) == p} | _marked(mark):
        waited = time.monotonic() - begin
        if waited > _GRACE_S + _END_LIMIT_S:
            break
        if waited > _GRACE_S:
            for pid, _ in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    # Remove the channels' shared memory, which no process uses any more.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [sys.executable, "-m", "shoal", "gc"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=_START_LIMIT_S,
        )


if __name__ == "__main__" and os.fork() == 0:
    _main(int(sys.argv[1]))
