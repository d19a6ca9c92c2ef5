"""Log lines and a spinner that show the steps of a start and how long each took."""

import importlib
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from shoal.context import log_level

__all__ = ["StartStep", "log_to_stderr", "timed_step"]

_log = logging.getLogger("shoal")


def log_to_stderr() -> None:
    """Log to stderr if the program has not set up logging."""
    _log.setLevel(log_level())
    if _log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("shoal: %(message)s"))
    _log.addHandler(handler)


class StartStep:
    """One step of a start; its log line shows `detail`."""

    def __init__(self) -> None:
        self.detail = ""


@contextmanager
def timed_step(name: str) -> Iterator[StartStep]:
    """Time a step and log it: `Ray: started on this machine, 6.5 s`; a spinner on a terminal."""
    current = StartStep()
    start = time.monotonic()
    with _spinner(f"shoal: {name} …") if sys.stderr.isatty() else nullcontext():
        yield current
    _log.info("%s: %s, %.1f s", name, current.detail or "ready", time.monotonic() - start)


def _spinner(text: str) -> AbstractContextManager[Any]:
    # Imported here: every worker imports this module, but only a driver on a terminal draws.
    console = importlib.import_module("rich.console").Console(stderr=True)
    status: AbstractContextManager[Any] = console.status(text)
    return status
