"""The doorbell of a process: a named pipe that others write a byte into."""

import contextlib
import os
from pathlib import Path

__all__ = ["Bell", "ring"]


class Bell:
    """The pipe of this process.

    Args:
        path: The path by which other processes find the pipe.
    """

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Open for writing too: a pipe whose last writer has gone is always readable.
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def clear(self) -> None:
        """Remove all bytes from the pipe."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass

    def close(self) -> None:
        """Close the pipe in this process."""
        os.close(self.descriptor)


def ring(path: Path) -> None:
    """Ring the bell of another process; do nothing if that process has gone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # the process has gone
    try:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it was rung before
            os.write(descriptor, b"\0")
    finally:
        os.close(descriptor)
