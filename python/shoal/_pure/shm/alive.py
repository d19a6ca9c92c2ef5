"""Whether a process is alive: by its file lock, which the kernel drops at death, and by its pid.

A process is dead only if both say so. A process also loses its lock when it closes any descriptor
of the file, and the kernel soon gives the pid of a dead process to another one.
"""

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "locked", "own_process", "process_of", "take_lock"]


class Process(NamedTuple):
    """The identity of a process, which differs from other processes that had or get its pid.

    Attributes:
        pid: The process id.
        started: Its start time in ticks since the node booted; 0 if it is not known.
        space: The pid namespace of the pid.
    """

    pid: int
    started: int
    space: str

    def gone(self) -> bool:
        """Whether the process has ended; also True if its pid namespace is not this process's.

        In that case only its lock can tell whether it is alive.
        """
        if self.space != _space():
            return True
        facts = _facts(self.pid)
        if facts is None:
            return True
        state, started = facts
        return state in "ZX" or (self.started not in (0, started))


def own_process() -> Process:
    """Return this process."""
    return process_of(os.getpid())


def process_of(pid: int) -> Process:
    """Return the process that has a pid now, in this process's namespace."""
    facts = _facts(pid)
    return Process(pid, 0 if facts is None else facts[1], _space())


def take_lock(descriptor: int, byte: int, length: int = 1) -> bool:
    """Lock bytes of a file for this process; return whether no other process has them locked."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, byte)
    except OSError:
        return False
    return True


def locked(descriptor: int, byte: int) -> bool:
    """Whether another process has locked a byte; also True if that cannot be found out."""
    if not take_lock(descriptor, byte):
        return True
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)
    return False


def _space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _facts(pid: int) -> tuple[str, int] | None:
    """Return the state and the start time of a process; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return "?", 0
    # The second field is the command in parentheses, which may contain any characters.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
