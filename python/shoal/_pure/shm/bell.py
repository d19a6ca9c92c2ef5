"""The doorbell of a process: a named pipe that others write a byte into."""

import contextlib
import os
from pathlib import Path

__all__ = ["Bell", "ring"]


class Bell:
    """The pipe of this process.

    Args:
        path: Where others find it.
    """

    def __init__(self, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Open for writing too: a pipe that has no writer left would be readable for ever.
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def clear(self) -> None:
        """Take all bytes out of it."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)


def ring(path: Path) -> None:
    """Ring somebody's bell, if there is anybody."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # its process has gone
    try:
        with contextlib.suppress(BlockingIOError):  # full: it has been rung
            os.write(descriptor, b"\0")
    finally:
        os.close(descriptor)
