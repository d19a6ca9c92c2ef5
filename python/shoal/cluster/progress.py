"""The lines that tell what a start is waiting for and how long each step took."""

import importlib
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from shoal.context import log_level

__all__ = ["Stage", "log_to_stderr", "stage"]

_log = logging.getLogger("shoal")


def log_to_stderr() -> None:
    """Show shoal's own log lines where the program has set up no logging."""
    _log.setLevel(log_level())
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
    with _spinner(f"shoal: {name} …") if sys.stderr.isatty() else nullcontext():
        yield current
    _log.info("%s: %s, %.1f s", name, current.detail or "ready", time.monotonic() - start)


def _spinner(text: str) -> AbstractContextManager[Any]:
    # Loaded here: every worker pulls this module in, and only a driver on a terminal draws.
    console = importlib.import_module("rich.console").Console(stderr=True)
    status: AbstractContextManager[Any] = console.status(text)
    return status
