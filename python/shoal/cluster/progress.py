"""The lines that tell what a start is waiting for and how long each step took."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console

from shoal.context import env_value

__all__ = ["Stage", "log_to_stderr", "stage"]

_log = logging.getLogger("shoal")


def log_to_stderr() -> None:
    """Show shoal's own log lines where the program has set up no logging."""
    _log.setLevel((env_value("LOG_LEVEL") or "INFO").upper())
    if _log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("shoal: %(message)s"))
    _log.addHandler(handler)


class Stage:
    """One step of a start; `detail` ends up in its line."""

    def __init__(self) -> None:
        self.detail = ""


@contextmanager
def stage(name: str) -> Iterator[Stage]:
    """Time a step and log it: `Ray: started on this machine, 6.5 s`; a spinner on a terminal."""
    current = Stage()
    start = time.monotonic()
    console = Console(stderr=True)
    spinner = console.status(f"shoal: {name} …") if sys.stderr.isatty() else nullcontext()
    with spinner:
        yield current
    _log.info("%s: %s, %.1f s", name, current.detail or "ready", time.monotonic() - start)
