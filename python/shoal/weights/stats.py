"""The files of versions, and what weights have in memory."""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from shoal.weights.holders import Holder
from shoal.weights.version import FilePart, Version

__all__ = ["VersionFile", "VersionStats", "WeightsStats", "version_files"]

_NAME = re.compile(r"([vr])(\d+)-(\d+)(?:-(\d+))?")


class VersionFile(NamedTuple):
    """The file of a version.

    Attributes:
        part: The version, and which of its files it is.
        path: Its path.
        retired: Whether it is no version by itself: it stays for readers and other versions.
    """

    part: FilePart
    path: Path
    retired: bool

    @property
    def version(self) -> Version:
        """The version."""
        return self.part.version

    @property
    def nbytes(self) -> int:
        """Its size; 0 if it was removed meanwhile."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0


class VersionStats(NamedTuple):
    """A version that is in memory.

    Attributes:
        version: The version.
        nbytes: The size of its memory in bytes.
        retired: Whether it is there only because of its holders, or of versions that share it.
        holders: The processes that hold it, the longest first.
        shared_by: Newer versions that are deltas, whose unchanged blocks are in its memory.
    """

    version: Version
    nbytes: int
    retired: bool
    holders: tuple[Holder, ...]
    shared_by: tuple[Version, ...]

    def __str__(self) -> str:
        held = f", held by {'; '.join(map(str, self.holders))}" if self.holders else ""
        shared = f", shared by {', '.join(map(str, self.shared_by))}" if self.shared_by else ""
        return f"version {self.version} ({self.nbytes:,} bytes{held}{shared})"


class WeightsStats(NamedTuple):
    """The versions of weights in memory.

    Attributes:
        versions: The versions, the oldest first.
        nbytes: The size of all of them in bytes.
        free: The number of bytes that are free in the file system.
    """

    versions: tuple[VersionStats, ...]
    nbytes: int
    free: int

    def __str__(self) -> str:
        return ", ".join(map(str, self.versions)) or "nothing"


def version_files(folder: Path) -> list[VersionFile]:
    """Return the files of all versions in a folder, also of retired ones."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            parsed = _NAME.fullmatch(entry.name)
            if parsed:
                part = FilePart(int(parsed[2]), int(parsed[3]), int(parsed[4] or 0))
                found.append(VersionFile(part, Path(entry.path), parsed[1] == "r"))
    return found
