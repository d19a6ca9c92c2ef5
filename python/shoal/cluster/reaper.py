"""Ends what a killed driver leaves of the Ray that it started.

Ray's own processes end with the process that started them, but for some that wait for one that is
gone: the agents of its raylet for a minute, a worker that was just starting for half of one. This
module, run as a program beside the driver, ends them. It imports the standard library only:
`python -I -S reaper.py RAYLET`.
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

# Workers notice by themselves in this time, and run their exit handlers.
_GRACE_S = 3.0
_START_LIMIT_S = 30.0
_PROC = Path("/proc")

Process = tuple[int, str]
"""A process's number, and when it started: numbers are given again."""


def start_reaper(raylet: int) -> None:
    """Start the program; it ends soon after the raylet, which ends with its driver.

    Args:
        raylet: The process number of the raylet that this process started.
    """
    if not _PROC.is_dir() or not hasattr(os, "pidfd_open"):
        return  # not Linux: Ray's own minute has to do
    try:
        # The program goes into the background by itself, so that no child is left to be waited for.
        subprocess.run(  # noqa: S603  (this interpreter and this file)
            [sys.executable, "-I", "-S", __file__, str(raylet)],
            # Ctrl-C reaches all processes of a terminal's session; this one has to outlive it.
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            check=True,
            timeout=_START_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        # A job that runs without it is better than none.
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
    # What stands behind the name, which is in parentheses and may hold anything: state, parent, …
    return _read(pid, "stat").rpartition(b")")[2].decode().split()


def _identify(pid: int) -> Process | None:
    fields = _fields(pid)
    return None if not fields or fields[0] in "ZX" else (pid, fields[19])


def _children(parent: int) -> set[Process]:
    found = (_identify(pid) for pid in _pids() if _fields(pid)[1:2] == [str(parent)])
    return {process for process in found if process}


def _marked(mark: bytes) -> set[Process]:
    marked = [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]
    found = (_identify(pid) for pid in marked if _shares_numbers(pid))
    return {process for process in found if process}


def _shares_numbers(pid: int) -> bool:
    # In a container a raylet may have the same number as ours; its workers are none of ours.
    try:
        return (_PROC / str(pid) / "ns/pid").readlink() == (_PROC / "self/ns/pid").readlink()
    except OSError:  # it ended, or is another user's
        return False


def _main(raylet: int) -> None:
    agents = _children(raylet)  # Ray starts them with the raylet, and they live as long
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        select.select([os.pidfd_open(raylet)], [], [])
    # Ray gives its mark to workers, and they to what they start themselves. An agent has lost it.
    mark = f"RAY_RAYLET_PID={raylet}".encode()
    limit = time.monotonic() + _GRACE_S
    while alive := {p for p in agents if _identify(p[0]) == p} | _marked(mark):
        if time.monotonic() > limit:
            for pid, _ in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.1)
    # What channels had in shared memory is nobody's now.
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
