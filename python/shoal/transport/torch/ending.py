"""Ends the waits in torch before the interpreter exits.

Python stops a daemon thread when the thread next asks for the interpreter. If that happens inside
torch, the process aborts. So before the interpreter exits, this module ends all waits in torch and
stops the daemon threads that waited. It does not destroy groups, which would take longer and would
end waits that have just begun.
"""

import atexit
import contextlib
import threading
import time
from collections.abc import Callable

from shoal.transport.torch.forks import leak_all

__all__ = ["at_end", "stop_if_ending"]

_PATIENCE_S = 5.0
_PAUSE_S = 0.002

_ending = False
_hooks: list[Callable[[], bool]] = []


def at_end(hook: Callable[[], bool]) -> None:
    """Register a function that is called before the interpreter exits, until it returns True."""
    _hooks.append(hook)


def stop_if_ending() -> None:
    """Block this thread for good if it is a daemon and the interpreter is exiting."""
    if _ending and threading.current_thread().daemon:
        threading.Event().wait()


@atexit.register
def _end() -> None:
    global _ending  # noqa: PLW0603  (an interpreter ends once)
    _ending = True
    give_up = time.monotonic() + _PATIENCE_S
    for hook in _hooks:
        done = False
        while not done and time.monotonic() < give_up:
            with contextlib.suppress(RuntimeError):  # a dictionary changed while it was read
                done = hook()
            time.sleep(_PAUSE_S)
    leak_all()
