"""Reads the files of Ray that hold the output of a node's processes, as they grow."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from shoal.bootstrap.output import Position, find_output

__all__ = ["LogReader", "logs_folder", "read_new"]

_PIECE = 1 << 20
_MOST = 8 << 20


def logs_folder() -> Path | None:
    """Return the folder of Ray's logs on this node; None if this process has no Ray.

    A worker finds it by its own output, a driver by its connection.
    """
    node: Any = ray._private.worker._global_node  # noqa: SLF001  (Ray has no public way to tell)
    if node is not None:
        return Path(node.get_logs_dir_path())
    return None


def read_new(
    wanted: Sequence[Position], folder: Path | None = None
) -> tuple[list[tuple[int, bytes, Position]], bool]:
    """Read what files have after some positions.

    A file that was replaced (Ray rotates files if `RAY_ROTATION_MAX_BYTES` is set) is read to its
    end under its new name, and then those that follow it.

    Args:
        wanted: The positions. A file that does not exist has nothing new.
        folder: The folder of relative paths.

    Returns:
        For each position with something new its index, the bytes, and the position after them; and
        whether there may be more.
    """
    found: list[tuple[int, bytes, Position]] = []
    left = _MOST
    for index, position in enumerate(wanted):
        path = Path(position.path) if folder is None else folder / position.path
        try:
            pieces = list(_pieces(path, position, _PIECE))
        except OSError:
            continue
        for data, after in pieces:
            if data or after != position:
                found.append((index, data, after))
            left -= len(data)
        if left <= 0:
            break
    return found, any(len(data) >= _PIECE for _, data, _ in found) or left <= 0


def _pieces(path: Path, position: Position, most: int) -> Iterator[tuple[bytes, Position]]:
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
        data = file.read(most)
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

    def read(self, wanted: list[Position]) -> Any:
        """Read what files have after some positions; see `read_new`."""
        streams = find_output()
        folder = Path(next(iter(streams.values())).path).parent if streams else logs_folder()
        return read_new(wanted, folder)

    def remove(self, name: str) -> None:
        """Remove a file of the folder of logs."""
        for position in find_output().values():
            (Path(position.path).parent / name).unlink(missing_ok=True)
            break
