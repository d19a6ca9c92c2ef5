"""Who is alive: a lock that the kernel drops at death, and the process itself.

Both must say that a process is gone. The lock alone is lost when the process closes a descriptor
of its file; the number of a process alone is somebody else's soon.
"""

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Process", "locked", "own_process", "process_of", "take_lock"]


class Process(NamedTuple):
    """A process, told from others that had or will have its number.

    Attributes:
        pid: Its number.
        started: When it started, in ticks since the host did; 0 where that is not known.
        space: The pid namespace that the number belongs to.
    """

    pid: int
    started: int
    space: str

    def gone(self) -> bool:
        """Whether it has ended, or cannot be seen from here, where its lock alone decides."""
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
    """Return the process that has a number now, of the own namespace."""
    facts = _facts(pid)
    return Process(pid, 0 if facts is None else facts[1], _space())


def take_lock(descriptor: int, byte: int, length: int = 1) -> bool:
    """Lock bytes of a file for this process, if no other has them."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, byte)
    except OSError:
        return False
    return True


def locked(descriptor: int, byte: int) -> bool:
    """Whether another process has locked a byte. What cannot be found out counts as locked."""
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
    """The state and the start of a process, None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return "?", 0
    # The second field is the command in parentheses, which may hold anything.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
