"""The end of the interpreter: what daemon threads that wait are told then, namely nothing."""

import threading
import time

__all__ = ["begin", "stay_silent"]

_begun = threading.Event()


def begin() -> None:
    """Note that the interpreter ends: to be called before the sessions are closed."""
    _begun.set()


def stay_silent() -> None:
    """Keep a daemon thread from raising at the end of the interpreter, which ends it soon.

    It would print a traceback that its session is closed, which nobody can do anything about.
    """
    while _begun.is_set() and threading.current_thread().daemon:
        time.sleep(1.0)
