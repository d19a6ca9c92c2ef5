"""The identity of a process, safe against reused pids, and whether the process still runs."""

import asyncio
import functools
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessId", "is_alive", "is_running", "own_process", "process_of", "wait_for_exit"]

_RECHECK_S = 0.5


class ProcessId(NamedTuple):
    """Identity of a process: its machine and pid namespace, its pid and its start time."""

    host: str
    pid: int
    started: int


@functools.cache
def _this_host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # Containers on one machine share the boot id but have separate pids.
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name is in parentheses and may itself contain some: start after the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else started


def process_of(pid: int) -> ProcessId:
    """Return the identity of the process that has a pid on this machine now."""
    return ProcessId(_this_host(), pid, _start_time(pid) or 0)


_own = functools.lru_cache(maxsize=1)(process_of)


def own_process() -> ProcessId:
    """Return the identity of this process."""
    return _own(os.getpid())  # cached by pid: a forked child is another process


def is_running(process: ProcessId) -> bool:
    """Whether a process still runs; True if it is on another machine and cannot be checked."""
    return process.host != _this_host() or _start_time(process.pid) == process.started


def is_alive(pid: int) -> bool:
    """Whether a process with that pid runs on this machine."""
    return _start_time(pid) is not None


async def wait_for_exit(pid: int) -> None:
    """Wait for the process with that pid on this machine to end; return at once if none runs."""
    started = _start_time(pid)
    if started is None:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        while _start_time(pid) == started:  # noqa: ASYNC110  (there is no event without pidfd)
            await asyncio.sleep(_RECHECK_S)
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
