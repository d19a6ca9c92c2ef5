"""Which process a client is, and whether it still runs."""

import asyncio
import functools
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessId", "is_alive", "is_running", "own_process", "wait_for_exit"]

_RECHECK_S = 0.5


class ProcessId(NamedTuple):
    """A process: its host and process namespace, its pid there and its start time."""

    host: str
    pid: int
    started: int


@functools.cache
def _this_host() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # Containers on one machine have the same boot id and other pids.
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _start_time(pid: int) -> int | None:
    """When a process started, in clock ticks; None when it does not run (any more)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in parentheses, may hold spaces and parentheses: start after the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else started


@functools.lru_cache(maxsize=1)
def _own(pid: int) -> ProcessId:
    return ProcessId(_this_host(), pid, _start_time(pid) or 0)


def own_process() -> ProcessId:
    """Return the identity of this process."""
    return _own(os.getpid())  # by pid: a forked child is another process


def is_running(process: ProcessId) -> bool:
    """Whether a process still runs; True for one of another host, which cannot be seen."""
    return process.host != _this_host() or _start_time(process.pid) == process.started


def is_alive(pid: int) -> bool:
    """Whether a process of this host with that pid runs."""
    return _start_time(pid) is not None


async def wait_for_exit(pid: int) -> None:
    """Return when the process of this host with that pid has ended, or does not exist."""
    started = _start_time(pid)
    if started is None:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        while _start_time(pid) == started:  # noqa: ASYNC110  (no event tells it on this kernel)
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
