"""The names of parts of versions that are not published yet; `parts` says what they mean."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import ShoalValueError
from shoal.shm.shared_files.names import Key, is_dead
from shoal.weights.version import MOST_IN_EPOCH

__all__ = [
    "CompletePart",
    "PartWriter",
    "VersionPart",
    "complete_parts",
    "part_bytes",
    "sweep_parts",
    "writers",
]

_COMPLETE = re.compile(r"s(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)")
_SHARED = re.compile(r"u(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)")


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

    @classmethod
    def checked(cls, part: Any, version: Any, delta: Any) -> "VersionPart | None":
        """Return the part that arguments of `Weights.publish` name; None for a whole version.

        Raises:
            ShoalValueError: They are not valid.
        """
        if part is None:
            return None
        if (
            not isinstance(part, tuple)
            or [type(number) for number in part] != [int, int]
            or not 0 <= part[0] < part[1]
        ):
            raise ShoalValueError(f"publish: part={part!r}: expected (rank, number of parts)")
        if type(version) is not int or not 0 <= version <= MOST_IN_EPOCH:
            raise ShoalValueError(
                f"publish: part={part!r}, version={version!r}: expected the number of the version, "
                "which all parts have to give"
            )
        if delta is not False:
            raise ShoalValueError("publish: delta= and part= cannot be used together")
        return cls(version, *part)

    def __str__(self) -> str:
        return f"part {self.rank} of {self.size} of version {self.number}"


class CompletePart(NamedTuple):
    """A part that is complete.

    Attributes:
        path: Its file.
        part: Which part it is.
        epoch: The epoch of its publisher.
        process: Its publisher.
    """

    path: Path
    part: VersionPart
    epoch: int
    process: Key


class PartWriter(NamedTuple):
    """A process that writes a part into a file that it shares with other processes, or has done so.

    Attributes:
        path: The name that the file has for this process.
        part: Which part it writes.
        process: The process.
    """

    path: Path
    part: VersionPart
    process: Key


def complete_parts(folder: Path) -> list[CompletePart]:
    """Return the parts of living processes that are complete."""
    found = []
    for path in folder.glob("s*"):
        parsed = _COMPLETE.fullmatch(path.name)
        if parsed:
            number, size, rank, epoch, namespace, pid, started = map(int, parsed.groups())
            process = namespace, pid, started
            if not is_dead(process):
                found.append(CompletePart(path, VersionPart(number, rank, size), epoch, process))
    return sorted(found, key=lambda complete: complete.part)


def writers(folder: Path, part: VersionPart) -> list[PartWriter]:
    """Return the living processes that write into the shared files of the version of a part."""
    found = []
    for path in folder.glob(f"u{part.number}-{part.size}-*"):
        parsed = _SHARED.fullmatch(path.name)
        if parsed:
            number, size, rank, _, namespace, pid, started = map(int, parsed.groups())
            process = namespace, pid, started
            if not is_dead(process):
                found.append(PartWriter(path, VersionPart(number, rank, size), process))
    return found


def sweep_parts(folder: Path) -> None:
    """Remove the names of dead processes."""
    for path in [*folder.glob("s*"), *folder.glob("u*")]:
        parsed = _COMPLETE.fullmatch(path.name) or _SHARED.fullmatch(path.name)
        if parsed:
            namespace, pid, started = map(int, parsed.groups()[-3:])
            if is_dead((namespace, pid, started)):
                path.unlink(missing_ok=True)


def part_bytes(folder: Path) -> int:
    """Return the number of bytes of all parts that are not published."""
    sizes = {}
    for path in [*folder.glob("s*"), *folder.glob("u*")]:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        sizes[found.st_ino] = found.st_size
    return sum(sizes.values())
