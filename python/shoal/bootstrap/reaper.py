"""Ends the processes that a killed driver, or a worker, leaves behind.

Ray's own processes end with the process that started them. A few of them first wait for a process
that is gone: the agents of its raylet for a minute, a worker that was just starting for half a
minute. This module, run as a program beside the driver, ends them. Another run of it, beside a
worker that has started programs, ends those soon after the worker, whatever ended it. It imports
the standard library only: `python -I -S reaper.py raylet PID` or `… worker PID`.
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
from typing import Literal

__all__ = ["WORKER_MARK", "start_reaper"]

WORKER_MARK = "SHOAL_WORKER_PROCESS"
"""Variable that the programs of a worker inherit: its process id and start time."""

# Seconds between two looks for new processes of a worker.
_LOOK_S = 0.5
# Seconds that the programs of a worker get to end by themselves, after SIGTERM.
_ASK_S = 2.0
# Seconds before the kill. Workers notice the raylet's end earlier, and run their exit handlers.
_GRACE_S = 3.0
# Seconds that killed processes may need to end: a busy machine frees a large memory slowly.
_END_LIMIT_S = 20.0
_START_LIMIT_S = 30.0
_PROC = Path("/proc")

Process = tuple[int, str]
"""A process id and the process's start time, because the system reuses process ids."""


def start_reaper(kind: Literal["raylet", "worker"], pid: int) -> None:
    """Start the program that cleans up; it ends soon after the process that it watches.

    Args:
        kind: The kind of the process. A raylet ends with the driver that started it.
        pid: Its process id.
    """
    if not _PROC.is_dir() or not hasattr(os, "pidfd_open"):
        return  # not Linux: Ray's processes end by themselves, after a minute
    try:
        # The program forks into the background, so that this process has no child to wait for.
        subprocess.run(  # noqa: S603  (this interpreter and this file)
            [sys.executable, "-I", "-S", __file__, kind, str(pid)],
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
            "the program that cleans up after this process did not start (%s): should this process "
            "be killed, some of its processes stay",
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


def _descendants(parent: int) -> set[Process]:
    """Return the children of a process, and theirs, without this program."""
    own, found = _identify(os.getpid()), set[Process]()
    waiting = [parent]
    while waiting:
        with contextlib.suppress(OSError):  # it ended
            for thread in (_PROC / str(waiting.pop()) / "task").iterdir():
                children = (thread / "children").read_text().split()
                processes = {p for p in map(_identify, map(int, children)) if p} - found - {own}
                found |= processes
                waiting += [pid for pid, _ in processes]
    return found


def _marked(mark: bytes) -> set[Process]:
    own = os.getpid()  # this program inherits the mark as well
    marked = [pid for pid in _pids() if pid != own and mark in _read(pid, "environ").split(b"\0")]
    found = (_identify(pid) for pid in marked if _shares_numbers(pid))
    return {process for process in found if process}


def _shares_numbers(pid: int) -> bool:
    # A raylet in a container may have the same process id as ours; its workers are not ours.
    try:
        return (_PROC / str(pid) / "ns/pid").readlink() == (_PROC / "self/ns/pid").readlink()
    except OSError:  # it ended, or is another user's
        return False


def _end_all(alive: set[Process], mark: str, grace: float, *, asks: bool = False) -> None:
    """End processes, and those with a variable in their environment, once some seconds are over.

    Args:
        alive: The processes. Each is followed until it has ended, because it loses its variables
            before its locks.
        mark: The variable.
        grace: The seconds.
        asks: Whether they get SIGTERM before.
    """
    begin = time.monotonic()
    asked: set[Process] = set()
    while alive := {p for p in alive if _identify(p[0]) == p} | _marked(mark.encode()):
        waited = time.monotonic() - begin
        if waited > grace + _END_LIMIT_S:
            break
        ends = alive if waited > grace else alive - asked if asks else set()
        for pid, _ in ends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if waited > grace else signal.SIGTERM)
        asked |= ends
        time.sleep(0.1)


def _watch_worker(worker: int) -> None:
    itself = _identify(worker)
    known: set[Process] = set()
    if itself is not None:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            end = os.pidfd_open(worker)
            while not select.select([end], [], [], _LOOK_S)[0]:
                known = {p for p in known | _descendants(worker) if _identify(p[0]) == p}
    started = itself[1] if itself is not None else ""
    _end_all(known, f"{WORKER_MARK}={worker}:{started}", _ASK_S, asks=True)


def _watch_raylet(raylet: int) -> None:
    agents = _children(raylet)  # Ray starts them with the raylet, and they live as long as it
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(raylet)], [], [])
    # Workers have this variable from Ray, and their own children inherit it. Agents do not have it.
    _end_all(agents, f"RAY_RAYLET_PID={raylet}", _GRACE_S)
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
    (_watch_worker if sys.argv[1] == "worker" else _watch_raylet)(int(sys.argv[2]))
