"""Waiting in slices, between which long waits are logged, and the texts of waits that ended."""

import re
from collections.abc import Callable
from typing import TypeVar

from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelEmpty, ChannelFull, ShoalTimeoutError
from shoal.shm import Queue

__all__ = ["counted", "patiently", "too_late"]

T = TypeVar("T")

_WITHIN = re.compile(r"within [0-9.e+-]+ s")


def counted(error: Exception, done: int) -> None:
    """Let the error of a call that puts many say how many it has put: as its `done`."""
    error.__dict__["done"] = done


def patiently(attempt: Callable[[float], T], deadline: Deadline, wait: LongWait) -> T:
    """Attempt something that waits, again and again until the deadline.

    Args:
        attempt: Takes how many seconds to wait; raises `ShoalTimeoutError` at their end.
        deadline: Until when.
        wait: Logs a wait that is long.
    """
    while True:
        try:
            return attempt(wait.step(deadline.remaining))
        except ShoalTimeoutError as error:
            if deadline.expired:
                # It was asked to wait for a part of the time.
                error.args = (_WITHIN.sub(f"within {deadline.timeout:g} s", str(error)),)
                raise
            wait.tick()


def too_late(queue: Queue, refusal: Exception, seconds: float) -> str:
    """Say that the time is over.

    Args:
        queue: The queue.
        refusal: Why the last attempt came to nothing.
        seconds: The time.
    """
    if isinstance(refusal, ChannelFull):
        why = str(refusal).partition(f"{queue.name}: ")[2]
        text = f"put: no room in {queue.name} within {seconds:g} s"
        return f"{text}: {why}" if why else text
    if isinstance(refusal, ChannelEmpty):
        return f"get: no message in {queue.name} within {seconds:g} s"
    return _WITHIN.sub(f"within {seconds:g} s", str(refusal))
