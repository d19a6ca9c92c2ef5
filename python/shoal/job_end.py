"""The end of the job in this process, which handles of the job must not outlive.

A program may start another job after one. A channel or a group of the first job must refuse every
use then, because its items and calls would be lost, or reach the new job.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from shoal.deadline import Deadline

__all__ = ["close_handles", "end_job", "tie_to_job"]

_H = TypeVar("_H")

Closing = Callable[[Deadline], None]
"""Waits for what a handle does at the end of its job."""

_ends: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_closes: dict[Any, Callable[[Any], Closing]] = {}


def tie_to_job(
    handle: _H, end: Callable[[_H], None], close: Callable[[_H], Closing] | None = None
) -> None:
    """End a handle when this process leaves its job.

    Args:
        handle: The handle, which is not kept alive.
        end: Makes the handle refuse all use, and ends the waits that are under way in any thread.
        close: Begins what the handle has to do before, while the job still runs; the handle is kept
            alive for it.
    """
    _ends[handle] = end
    if close is not None:
        _closes[handle] = close


def close_handles(seconds: float) -> None:
    """Let all handles do, at the same time, what they have to do before the job ends."""
    closing = [close(handle) for handle, close in list(_closes.items())]
    _closes.clear()
    deadline = Deadline(seconds)
    for finish in closing:
        finish(deadline)


def end_job() -> None:
    """End all handles of the job that this process leaves."""
    while _ends:
        try:
            handle, end = _ends.popitem()
        except KeyError:  # the last ones were collected meanwhile
            return
        end(handle)
