"""Reads the files of Ray that hold the output of a node's processes, as they grow."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from shoal.bootstrap.output import Position, find_output

__all__ = ["Found", "LogReader", "is_full", "logs_folder", "read_new"]

_PIECE = 1 << 20
_MOST = 8 << 20

Found = list[tuple[int, bytes, Position]]
"""New pieces of files: the index of the position that a piece follows, its bytes, the position after it."""


def logs_folder() -> Path | None:
    """Return the folder of Ray's logs on the node of a driver; None if this process has no Ray."""
    node: Any = ray._private.worker._global_node  # noqa: SLF001  (Ray has no public way to tell)
    return None if node is None else Path(node.get_logs_dir_path())


def read_new(wanted: Sequence[Position], folder: Path) -> Found:
    """Read files from positions on.

    A file that was replaced (Ray rotates files if `RAY_ROTATION_MAX_BYTES` is set) is read to its
    end under its new name, and then those that follow it.

    Args:
        wanted: The positions. A file that does not exist has nothing new.
        folder: The folder of relative paths.

    Returns:
        The new pieces, or the first of them if they are large; empty if nothing is new.
    """
    found: Found = []
    left = _MOST
    for index, position in enumerate(wanted):
        try:
            pieces = list(_pieces(folder / position.path, position))
        except OSError:
            continue
        found += [(index, *piece) for piece in pieces]
        left -= sum(len(data) for data, _ in pieces)
        if left <= 0:
            break
    return found


def is_full(found: Found) -> bool:
    """Whether an answer is as large as it may be, so that there is probably more to read."""
    sizes = [len(data) for _, data, _ in found]
    return max(sizes, default=0) >= _PIECE or sum(sizes) >= _MOST


def _pieces(path: Path, position: Position) -> Iterator[tuple[bytes, Position]]:
    state = path.stat()
    if position.inode in (0, state.st_ino) and state.st_size == position.offset:
        return
    with path.open("rb") as file:
        state = os.fstat(file.fileno())
        offset = position.offset
        if position.inode not in (0, state.st_ino):
            for older, inode in _replaced(path, position.inode):
                data = older.read_bytes()[offset if inode == position.inode else 0 :]
                yield data, position._replace(offset=0, inode=state.st_ino)
            offset = 0
        elif state.st_size < offset:
            offset = 0  # a program made the file empty
        file.seek(offset)
        data = file.read(_PIECE)
        yield data, Position(position.path, offset + len(data), state.st_ino)


def _replaced(path: Path, inode: int) -> list[tuple[Path, int]]:
    """Return the file with this number and those that followed it, oldest first."""
    name = re.compile(rf"{re.escape(path.name)}\.\d+")
    older = []
    for entry in os.scandir(path.parent):
        if name.fullmatch(entry.name):
            state = entry.stat()
            older.append((state.st_mtime_ns, Path(entry.path), state.st_ino))
    older.sort()
    numbers = [number for _, _, number in older]
    start = numbers.index(inode) if inode in numbers else 0
    return [(found, number) for _, found, number in older[start:]]


class LogReader:
    """The actor that reads the files of a node without the driver. It keeps no state."""

    def __init__(self) -> None:
        # Those of its own output are beside them.
        self._folder = Path(find_output()[0].path).parent

    def read(self, wanted: list[Position]) -> Found:
        """Read what files have after some positions; see `read_new`."""
        return read_new(wanted, self._folder)

    def remove(self, name: str) -> None:
        """Remove a file of the folder of logs."""
        (self._folder / name).unlink(missing_ok=True)
