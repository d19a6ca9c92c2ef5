"""Records of who holds which version, one file for each snapshot that a process has open.

    h<epoch>-<number>-<namespace>-<pid>-<start>-<count>

The file's time says since when, and its text who. Records serve people: whether a version is in use
is asked from the kernel (see `store`), so that a wrong record harms nothing.
"""

import contextlib
import itertools
import os
import re
import time
import weakref
from pathlib import Path
from typing import NamedTuple

from shoal.context import describe_self
from shoal.process import Origin, own_process
from shoal.shm.shared_files.names import Key, is_dead, key_of
from shoal.weights.version import Version

__all__ = ["Holder", "holders", "record", "sweep_records"]

_NAME = re.compile(r"h(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-\d+")

_counts = itertools.count()


class Holder(NamedTuple):
    """A process that holds a version.

    Attributes:
        name: The worker, and its pid.
        pid: The pid, in the process's own namespace.
        since: When it opened the version, in seconds of `time.time()`.
    """

    name: str
    pid: int
    since: float

    def __str__(self) -> str:
        return f"{self.name} for {max(0.0, time.time() - self.since):.0f} s"


def record(folder: Path, version: Version, memory: memoryview) -> None:
    """Note that this process holds a version as long as its mapped memory is in use."""
    process = "-".join(map(str, key_of(own_process())))
    path = folder / f"h{version.epoch}-{version.number}-{process}-{next(_counts)}"
    with contextlib.suppress(OSError):  # the folder was removed, or has no room for a name
        path.write_text(describe_self())
        path.chmod(0o600)
    weakref.finalize(memory.obj, _remove, path, Origin())


def _remove(path: Path, origin: Origin) -> None:
    if origin.is_here:  # a forked child has a copy of the mapping
        with contextlib.suppress(OSError):
            path.unlink()


def holders(folder: Path) -> dict[Version, list[Holder]]:
    """Return who holds each version, each process once; the longest first."""
    there = []
    for version, process, path in _records(folder):
        if is_dead(process):
            continue
        with contextlib.suppress(OSError):
            since, name = path.stat().st_mtime, path.read_text(errors="replace")
            there.append((version, process, Holder(name, process[1], since)))
    there.sort(key=lambda one: one[2].since)
    found: dict[Version, dict[Key, Holder]] = {}
    for version, process, holder in there:
        # A process has a record for each file of a version, and for each snapshot that uses one.
        found.setdefault(version, {}).setdefault(process, holder)
    return {version: list(of_version.values()) for version, of_version in found.items()}


def sweep_records(folder: Path) -> None:
    """Remove the records of dead processes."""
    for _, process, path in _records(folder):
        if is_dead(process):
            path.unlink(missing_ok=True)


def _records(folder: Path) -> list[tuple[Version, Key, Path]]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            parsed = _NAME.fullmatch(entry.name)
            if parsed:
                epoch, number, namespace, pid, started = map(int, parsed.groups())
                process = namespace, pid, started
                found.append((Version(epoch, number), process, Path(entry.path)))
    return found
