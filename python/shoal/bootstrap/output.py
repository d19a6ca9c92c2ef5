"""Where the output of this process goes: the files of Ray that the collector of logs copies.

Each process whose output is collected adds a line to a list of its node. The list is a file beside
Ray's own files, so it outlives the process, and no other process needs to be asked.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ray

from shoal.context import describe_self

__all__ = ["Position", "announce_output", "find_output", "list_name"]

_log = logging.getLogger("shoal")

_STREAMS = (("out", 1), ("err", 2))


class Position(NamedTuple):
    """A position in a file.

    Attributes:
        path: The file.
        offset: Number of bytes before the position.
        inode: The file's number, which tells it from a file that replaces it; 0 if not known.
    """

    path: str
    offset: int = 0
    inode: int = 0


def list_name(token: str, node_id: str) -> str:
    """Return the name of the list of a node, in the folder of Ray's logs.

    Each line is of one process: its worker's name and rank, and the positions where the output of its
    streams begins.

    Args:
        token: Names the job.
        node_id: Ray's name of the node: several nodes may share a folder.
    """
    return f"shoal-{token}-{node_id}.jsonl"


def announce_output(token: str, name: str, rank: str, *, from_start: bool = False) -> None:
    """Add this process to the list of its node, from the present end or the start of its output."""
    sys.stdout.flush()
    sys.stderr.flush()
    streams = find_output()
    if not streams:
        _log.warning(
            "%s: its output goes to no file of Ray, so distributed_log_dir will not have it",
            describe_self(),
        )
        return
    folder = Path(streams[0].path).parent
    if from_start:
        streams = [where._replace(offset=0) for where in streams]
    line = json.dumps([name, rank, streams]) + "\n"
    path = folder / list_name(token, ray.get_runtime_context().get_node_id())
    try:
        # One write at the end of the file: lines of several processes do not mix.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(number, line.encode())
        finally:
            os.close(number)
    except OSError as error:
        _log.warning("%s: distributed_log_dir will not have its log: %s", describe_self(), error)


def find_output() -> list[Position]:
    """Return the files that this process writes its output to, and their present ends."""
    found = []
    for stream, number in _STREAMS:
        try:
            path = Path(f"/proc/self/fd/{number}").readlink()
            if not path.is_file():  # with rotating files, Ray reads a pipe and writes the file
                path = Path(_path_of_ray(stream))
            state = path.stat()
        except OSError:
            continue
        found.append(Position(str(path), state.st_size, state.st_ino))
    return found


def _path_of_ray(stream: str) -> str:
    worker: Any = ray._private.worker.global_worker  # noqa: SLF001  (Ray has no public way to tell)
    return str(getattr(worker, f"get_{stream}_file_path")())
