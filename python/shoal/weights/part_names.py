"""The names of parts of versions that are not published yet; `parts` says what they mean."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shoal.shm.shared_files.names import Key, is_dead

__all__ = [
    "PartFile",
    "VersionPart",
    "complete_parts",
    "part_bytes",
    "sweep_parts",
    "writers",
]

_NAME = re.compile(r"[su](\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)")


class VersionPart(NamedTuple):
    """Which part of a version a process publishes.

    Attributes:
        number: The number of the version.
        rank: The number of the part.
        size: How many parts there are.
    """

    number: int
    rank: int
    size: int

    def __str__(self) -> str:
        return f"part {self.rank} of {self.size} of version {self.number}"


class PartFile(NamedTuple):
    """A name by which a process has a file with its part, or with the shards of several parts.

    Attributes:
        path: The name.
        part: Which part the process publishes.
        process: The process.
        epoch: Its epoch. (In the name of a file of shards, the signature of these.)
    """

    path: Path
    part: VersionPart
    process: Key
    epoch: int


def _files(folder: Path, kinds: str = "su") -> Iterator[PartFile]:
    """Yield the names in a folder that begin with one of some letters."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            parsed = _NAME.fullmatch(entry.name) if entry.name[0] in kinds else None
            if parsed:
                number, size, rank, epoch, *process = map(int, parsed.groups())
                part, (namespace, pid, started) = VersionPart(number, rank, size), process
                yield PartFile(Path(entry.path), part, (namespace, pid, started), epoch)


def complete_parts(folder: Path) -> list[PartFile]:
    """Return the parts of living processes that are complete."""
    found = [file for file in _files(folder, "s") if not is_dead(file.process)]
    return sorted(found, key=lambda file: file.part)


def writers(folder: Path, part: VersionPart) -> list[PartFile]:
    """Return the living processes that write into the shared files of the version of a part."""
    same = [file for file in _files(folder, "u") if file.part[::2] == part[::2]]
    return [file for file in same if not is_dead(file.process)]


def sweep_parts(folder: Path) -> None:
    """Remove the names of dead processes."""
    for file in _files(folder):
        if is_dead(file.process):
            file.path.unlink(missing_ok=True)


def part_bytes(folder: Path) -> int:
    """Return the number of bytes of all parts that are not published."""
    sizes = {}
    for file in _files(folder):
        with contextlib.suppress(FileNotFoundError):
            found = file.path.stat()
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values())
