"""The end of the job in this process, which handles of the job must not outlive.

A program may start another job after one. A channel or a group of the first job must refuse every
use then, because its items and calls would be lost, or reach the new job.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["end_job", "tie_to_job"]

_H = TypeVar("_H")

_ends: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def tie_to_job(handle: _H, end: Callable[[_H], None]) -> None:
    """End a handle when this process leaves its job.

    Args:
        handle: The handle, which is not kept alive.
        end: Makes the handle refuse all use, and ends the waits that are under way in any thread.
    """
    _ends[handle] = end


def end_job() -> None:
    """End all handles of the job that this process leaves."""
    while _ends:
        try:
            handle, end = _ends.popitem()
        except KeyError:  # the last ones were collected meanwhile
            return
        end(handle)
