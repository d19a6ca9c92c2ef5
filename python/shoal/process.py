"""Identity and liveness of processes: safe against reused pids, and aware of forked children."""

import asyncio
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, ParamSpec, TypeVar

from shoal.errors import TransportError

__all__ = [
    "Origin",
    "ProcessId",
    "find_host",
    "forked_error",
    "is_running",
    "own_process",
    "per_process",
    "process_of",
    "run_state",
    "wait_for_exit",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_RECHECK_S = 0.5


class ProcessId(NamedTuple):
    """Identity of a process: its machine and pid namespace, its pid and its start time."""

    host: str
    pid: int
    started: int


def find_host() -> str:
    """Name this machine and its pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # Containers on one machine share the boot id but have separate pids.
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


_this_host = functools.cache(find_host)


def _read_stat(pid: int) -> tuple[str, int | None]:
    """Return the kernel's letter for the state of a process, and its start time in clock ticks.

    The start time is None if the process does not run.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X", None
    # The name is in parentheses and may itself contain some: start after the last one.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, started = fields[0], int(fields[19])
    return state, None if state in "ZX" else started


def _start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None if it does not run."""
    return _read_stat(pid)[1]


def run_state(pid: int, started: int) -> Literal["running", "stopped", "dead"]:
    """Return whether a process of this machine runs; `stopped` by SIGSTOP or a debugger."""
    state, found = _read_stat(pid)
    if found != started:
        return "dead"
    return "stopped" if state in "Tt" else "running"


def per_process(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Cache the results of a function for this process: a forked child calls it again for itself.

    The results that a child inherits are kept there, because destroying them may hang.
    """

    @functools.cache
    def cached(_pid: int, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return function(*args, **kwargs)

    @functools.wraps(function)
    def of_this_process(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return cached(os.getpid(), *args, **kwargs)  # type: ignore[arg-type]  # must be hashable

    return of_this_process


def process_of(pid: int) -> ProcessId:
    """Return the identity of the process that has a pid on this machine now."""
    return ProcessId(_this_host(), pid, _start_time(pid) or 0)


@per_process
def own_process() -> ProcessId:
    """Return the identity of this process."""
    return process_of(os.getpid())


class Origin:
    """The process that made an object; a forked child has only a copy of the object.

    Args:
        what: The name of the object, for the error.
    """

    __slots__ = ("_pid", "_what")

    def __init__(self, what: str = "this object") -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this process made the object."""
        return self._pid == os.getpid()

    def check(self) -> None:
        """Raise in a forked child.

        Raises:
            TransportError: Another process made the object.
        """
        if not self.is_here:
            raise forked_error(self._pid, f"made {self._what}", "use it")


def forked_error(
    parent: int,
    does: str,
    action: str,
    instead: str = "start the child with multiprocessing's method 'spawn'",
) -> TransportError:
    """Return the error for a forked child that uses what belongs to its parent.

    Args:
        parent: The pid of the parent.
        does: What the parent is or has done, for example `is connected to Ray`.
        action: What the child cannot do, for example `use that connection`.
        instead: What to do if the parent cannot do it for the child.
    """
    return TransportError(
        f"process {os.getpid()} was forked from process {parent}, which {does}; a child cannot "
        f"{action}: let its parent do it, or {instead}"
    )


def is_running(process: ProcessId) -> bool:
    """Whether a process still runs; True if it is on another machine and cannot be checked."""
    return process.host != _this_host() or _start_time(process.pid) == process.started


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
