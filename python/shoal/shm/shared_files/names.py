"""Names of payload files and of the links to them, and the removal of those of dead processes.

A file is named after its writer, and a link after the file and the reader:

    p<namespace>-<pid>-<start>-<file>
    p<namespace>-<pid>-<start>-<file>-<link>-<namespace>-<pid>-<start>

The namespace is the inode number of the pid namespace. Only a process in the same namespace can
tell whether the process in a name is dead, and only such a process removes the name.
"""

import contextlib
import os
import re
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from shoal.process import ProcessId, is_running, own_process

__all__ = ["FileName", "LinkName", "is_dead", "key_of", "sweep"]

_PROCESS = r"(\d+)-(\d+)-(\d+)"
_NAME = re.compile(rf"p{_PROCESS}-(\d+)(?:-(\d+)-{_PROCESS})?")
_NAMESPACE = re.compile(r"pid:\[(\d+)\]$")

Key = tuple[int, int, int]
"""A process as written in a name: its pid namespace, its pid there and its start time."""


class FileName(NamedTuple):
    """The name of a payload file: its writer, and a number that is unique for the writer."""

    writer: Key
    number: int

    def __str__(self) -> str:
        return "p{}-{}-{}-{}".format(*self.writer, self.number)


class LinkName(NamedTuple):
    """The name of a link: the file, a number that is unique for the writer, and the reader."""

    file: FileName
    number: int
    reader: Key

    def __str__(self) -> str:
        return "{}-{}-{}-{}-{}".format(self.file, self.number, *self.reader)


def key_of(process: ProcessId) -> Key:
    """Return a process as written in names."""
    namespace = _NAMESPACE.search(process.host)
    return int(namespace[1]) if namespace else 0, process.pid, process.started


def parse(name: str) -> FileName | LinkName | None:
    """Parse a name; return None for a name of another form."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    own, others = found.groups()[:4], found.groups()[4:]
    namespace, pid, started, number = map(int, own)
    file = FileName((namespace, pid, started), number)
    if others[0] is None:
        return file
    number, namespace, pid, started = map(int, others)
    return LinkName(file, number, (namespace, pid, started))


def is_dead(process: Key) -> bool:
    """Whether a process has ended; False for a process of another namespace, which is invisible."""
    own = own_process()
    namespace, pid, started = process
    return namespace == key_of(own)[0] and not is_running(ProcessId(own.host, pid, started))


def sweep(folder: str) -> list[str]:
    """Remove the files of dead writers and the links of dead readers.

    Payloads that a dead writer announced stay: the links of living readers keep their bytes.

    Args:
        folder: A folder of payload files; it need not exist.

    Returns:
        The paths that were removed.
    """
    try:
        found = [(parse(entry.name), entry.path) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []
    removed = []
    dead: dict[Key, bool] = {key_of(own_process()): False}
    for parsed, path in sorted(found, key=itemgetter(1)):
        if parsed is None:
            continue
        owner = parsed.writer if isinstance(parsed, FileName) else parsed.reader
        if owner not in dead:
            dead[owner] = is_dead(owner)
        if dead[owner]:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
                removed.append(path)
    return removed
