"""The end of the job in this process, which handles of the job must not outlive.

A program may start another job after one. A channel or a group of the first job must refuse every
use then, because its items and calls would be lost, or reach the new job.
"""

import weakref
from collections.abc import Callable

__all__ = ["end_job", "tie_to_job"]

_ends: set[weakref.WeakMethod[Callable[[], None]]] = set()


def tie_to_job(end: Callable[[], None]) -> None:
    """Call a method of a handle when this process leaves its job.

    Args:
        end: Makes the handle refuse all use, and ends the waits that are under way in any thread.
            The handle itself is not kept alive.
    """
    _ends.add(weakref.WeakMethod(end, _ends.discard))


def end_job() -> None:
    """End all handles of the job that this process leaves."""
    while _ends:
        end = _ends.pop()()
        if end is not None:
            end()
