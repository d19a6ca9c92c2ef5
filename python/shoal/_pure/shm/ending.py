"""Keeps waiting daemon threads from raising errors while the interpreter ends."""

import threading
import time

__all__ = ["begin", "stay_silent"]

_begun = threading.Event()


def begin() -> None:
    """Note that the interpreter ends; call this before the sessions are closed."""
    _begun.set()


def stay_silent() -> None:
    """Keep a daemon thread from raising while the interpreter ends, which soon ends the thread.

    The thread would print a traceback that its session is closed, which helps no user.
    """
    while _begun.is_set() and threading.current_thread().daemon:
        time.sleep(1.0)
