"""The files of large messages: writes, reads and removes them."""

import errno
import mmap
import resource
import sqlite3
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from shoal._pure.shm.payload import Payload
from shoal.errors import ChannelMemoryError

__all__ = ["Memory", "read_file", "remove_files", "remove_orphans", "write_file"]


class Memory(mmap.mmap):
    """The bytes of a file, private to this process; can be referenced weakly."""


_mapped: weakref.WeakSet[Memory] = weakref.WeakSet()


def write_file(path: Path, payload: Payload) -> None:
    """Write a payload into a file.

    Raises:
        ChannelMemoryError: There is no room.
    """
    try:
        with path.open("wb") as file:
            for offset, part in payload.parts:
                file.seek(offset)
                file.write(part)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ChannelMemoryError(
            f"{path.parent} has no room for a message of {payload.size} bytes: {error.strerror}"
        ) from error


def read_file(path: Path, size: int) -> Memory:
    """Return the bytes of a file: a mapping, or a copy if the process has many mappings.

    Each mapping keeps a descriptor; half of the process's descriptors are left for other uses.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is too short.
    """
    with path.open("rb") as file:
        if 2 * len(_mapped) < resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            memory = Memory(file.fileno(), size, access=mmap.ACCESS_COPY)
            _mapped.add(memory)
            return memory
        memory = Memory(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if file.readinto(memory) != size:
            raise ValueError(f"the message is damaged: it has less than {size} bytes")
        return memory


def remove_files(files: Iterable[str | Path | None]) -> None:
    """Remove files; None stands for a message without a file."""
    for file in files:
        if file is not None:
            Path(file).unlink(missing_ok=True)


def remove_orphans(
    folders: list[Path],
    write: Callable[[Callable[[sqlite3.Connection], Any]], Any],
    work: Callable[[sqlite3.Connection], Any],
) -> Any:
    """Do work in a transaction, then remove the files without a message; return its result.

    A process is killed before it can remove a file, or while it writes one. The row of a new
    message is committed after its file is written, in one transaction. So a file that is listed
    before a transaction, and has no row in it, belongs to no message.
    """
    listed = {path for folder in folders for path in folder.glob("x*")}

    def working(db: sqlite3.Connection) -> tuple[Any, set[Path]]:
        result = work(db)
        rows = db.execute("SELECT file FROM messages WHERE file IS NOT NULL").fetchall()
        return result, listed - {Path(row["file"]) for row in rows}

    result, orphans = write(working)
    remove_files(orphans)
    return result
