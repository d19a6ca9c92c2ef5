"""Waiting in slices, so that long waits are logged; also the texts of timeout errors."""

import re
from collections.abc import Callable
from typing import TypeVar

from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelEmpty, ChannelFull, ShoalTimeoutError
from shoal.shm import Queue

__all__ = ["patiently", "too_late"]

T = TypeVar("T")

_WITHIN = re.compile(r"within [0-9.e+-]+ s")


def patiently(attempt: Callable[[float], T], deadline: Deadline, wait: LongWait) -> T:
    """Repeat an attempt that waits until it succeeds or the deadline is over.

    Args:
        attempt: Takes the seconds to wait; raises `ShoalTimeoutError` when they are over.
        deadline: When to stop.
        wait: Logs a long wait.
    """
    while True:
        try:
            return attempt(wait.step(deadline.remaining))
        except ShoalTimeoutError as error:
            if deadline.expired:
                # The text names the last slice; replace it by the whole time.
                error.args = (_WITHIN.sub(f"within {deadline.timeout:g} s", str(error)),)
                raise
            wait.tick()


def too_late(queue: Queue, refusal: Exception, seconds: float) -> str:
    """Return the text of a timeout error.

    Args:
        queue: The queue.
        refusal: The error of the last attempt.
        seconds: The timeout.
    """
    if isinstance(refusal, ChannelFull):
        why = str(refusal).partition(f"{queue.name}: ")[2]
        text = f"put: no room in {queue.name} within {seconds:g} s"
        return f"{text}: {why}" if why else text
    if isinstance(refusal, ChannelEmpty):
        return f"get: no message in {queue.name} within {seconds:g} s"
    return _WITHIN.sub(f"within {seconds:g} s", str(refusal))
