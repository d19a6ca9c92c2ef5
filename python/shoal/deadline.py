"""Deadlines of blocking calls, and log lines for waits that take long.

Every blocking call of shoal takes `timeout=`: seconds, `None` for the call's default, `math.inf`
for no limit. A wait of more than 10 s logs which process waits and for which one.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any, Protocol

from shoal.context import env_var
from shoal.errors import ShoalValueError

__all__ = [
    "Deadline",
    "LongWait",
    "WaitObserver",
    "annotate_waits",
    "default_timeout",
    "expect_event",
    "observe_waits",
]

_FALLBACK_S = 10_800.0
_FIRST_LOGS_S = (10.0, 60.0)
_THEN_EVERY_S = 600.0

_log = logging.getLogger("shoal")


def default_timeout() -> float:
    """Return the default limit of bring-up, launch, rendezvous and point to point, in seconds.

    It is `SHOAL_TIMEOUT` (seconds), else `RLINF_TIMEOUT` (minutes), else three hours.

    Raises:
        ShoalValueError: The value of the variable is not a positive number.
    """
    text, name = env_var("TIMEOUT")
    if text is None:
        return _FALLBACK_S
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        unit = "minutes" if name.startswith("RLINF_") else "seconds"
        raise ShoalValueError(f"{name}={text!r}: expected a positive number of {unit}")
    return value * 60 if name.startswith("RLINF_") else value


class Deadline:
    """A point in time that several steps of one operation share.

    Args:
        timeout: Seconds from now; `math.inf` for no limit; `None` for `default`.
        default: Seconds that a `timeout` of None means; None for `default_timeout()`.
        waited: Seconds of `timeout` that have already passed.
        name: The caller's name for `timeout`, for errors.

    Raises:
        ShoalValueError: `timeout` is negative or not a number.
    """

    def __init__(
        self,
        timeout: Any,
        *,
        default: float | None = None,
        waited: float = 0.0,
        name: str = "timeout",
    ) -> None:
        if timeout is None:
            timeout = default_timeout() if default is None else default
        elif not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
            raise ShoalValueError(
                f"{name}={timeout!r}: expected seconds, None (the default) or math.inf (no limit)"
            )
        elif math.isnan(timeout) or timeout < 0:
            raise ShoalValueError(f"{name}={timeout!r}: expected seconds, not less than 0")
        self._start = time.monotonic() - waited
        self.timeout = float(timeout)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def remaining(self) -> float:
        """Seconds left: never negative, infinite without a limit."""
        return max(0.0, self.timeout - self.elapsed)

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.elapsed >= self.timeout

    def remaining_or_none(self) -> float | None:
        """`remaining` in the form that other libraries take: None for no limit."""
        left = self.remaining
        return None if math.isinf(left) else left


class WaitObserver(Protocol):
    """Is told about the long waits of this process, and may end one by raising an error.

    Attributes:
        interval: Maximum seconds between two ticks of a wait.
    """

    interval: float

    def tick(self, wait: "LongWait") -> None:
        """Note that a wait goes on, or has just ended; called in the thread that waits."""

    def expect(self, seconds: float) -> None:
        """Note that something happens within some seconds, though no thread works on it."""


_observer: WaitObserver | None = None


def observe_waits(observer: WaitObserver | None) -> None:
    """Set the observer of this process's waits, or remove it with None."""
    global _observer  # noqa: PLW0603  (a process has one observer)
    _observer = observer


def expect_event(seconds: float) -> None:
    """Tell the observer of waits, if any, that something happens within some seconds."""
    if _observer is not None:
        _observer.expect(seconds)


_remarks: list[Callable[[], str]] = []


def annotate_waits(remark: Callable[[], str]) -> None:
    """Add what a function returns to the end of each log line of a wait; empty for nothing."""
    _remarks.append(remark)


class LongWait:
    """Logs one line when a wait has taken 10 s, one at 60 s, then one every 10 minutes.

    Args:
        describe: Returns the start of the line: which process waits, for what, and for which peer.
        deadline: The deadline of the wait; the line names it.
        waited: Seconds of the wait that have already passed.
        is_work: Whether an asynchronous operation is waited for, which has its own deadline.

    Attributes:
        deadline: The deadline of the wait.
        is_work: Same as the argument.
    """

    def __init__(
        self,
        describe: Callable[[], str],
        deadline: Deadline,
        waited: float = 0.0,
        *,
        is_work: bool = False,
    ) -> None:
        self._describe = describe
        self.deadline = deadline
        self.is_work = is_work
        self._start = time.monotonic() - waited
        self._logged = 0

    @property
    def next_at(self) -> float:
        """Seconds of waiting at which the next line is due."""
        if self._logged < len(_FIRST_LOGS_S):
            return _FIRST_LOGS_S[self._logged]
        return _THEN_EVERY_S * (self._logged - len(_FIRST_LOGS_S) + 1)

    def step(self, at_most: float = math.inf) -> float:
        """Seconds to wait before `tick` is called again."""
        due = self.next_at - (time.monotonic() - self._start)
        if _observer is not None:
            due = min(due, _observer.interval)
        return max(0.0, min(due, at_most, self.deadline.remaining))

    def describe(self) -> str:
        """Return which process waits, for what, and for which peer."""
        return self._describe()

    def tick(self) -> None:
        """Log a line if one is due."""
        if _observer is not None:
            _observer.tick(self)
        elapsed = time.monotonic() - self._start
        if elapsed < self.next_at:
            return
        while elapsed >= self.next_at:
            self._logged += 1
        limit = self.deadline.timeout
        ends = "no limit" if math.isinf(limit) else f"limit {limit:g} s"
        remarks = "".join(f"; {text}" for remark in _remarks if (text := remark()))
        _log.warning("%s: waiting for %.0f s (%s)%s", self._describe(), elapsed, ends, remarks)
