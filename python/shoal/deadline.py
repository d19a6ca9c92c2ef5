"""Deadlines of blocking calls, and waits that other processes see and that are logged.

Every blocking call of shoal takes `timeout=`: seconds, `None` for the call's default, `math.inf`
for no limit. A wait of more than 0.1 s is on the state page of its process. A wait of more than
10 s logs which process waits and for which one.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, Self

from shoal.context import describe_self, env_var
from shoal.errors import ShoalValueError
from shoal.long_wait_hooks import remarks_on, report_hang
from shoal.state import Activity, PageEntry, begin_wait

__all__ = [
    "TIMING",
    "Deadline",
    "LongWait",
    "WaitObserver",
    "WaitTiming",
    "default_timeout",
    "expect_event",
    "hang_limit",
    "observe_waits",
]

_FALLBACK_S = 10_800.0

_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class WaitTiming:
    """Seconds after which a wait is shown and logged. A test replaces `TIMING`."""

    shown_after_s: float = 0.1
    """Before a wait is on the state page of its process."""
    peers_every_s: float = 1.0
    """Between two looks at the peers of an asynchronous operation."""
    first_logs_s: tuple[float, float] = (10.0, 60.0)
    """Before the first two log lines about a wait."""
    then_every_s: float = 600.0
    """Between the further ones."""
    hang_s: float = 300.0
    """Before a hang is looked for."""


TIMING = WaitTiming()


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


def hang_limit() -> float:
    """Return the seconds after which a wait hangs, whatever it waits for: `SHOAL_HANG`, else 300.

    Raises:
        ShoalValueError: The value of the variable is not a positive number.
    """
    text, name = env_var("HANG")
    try:
        limit = float(text or TIMING.hang_s)
    except ValueError:
        limit = math.nan
    if not limit > 0:
        raise ShoalValueError(f"{name}={text!r}: expected a positive number of seconds")
    return limit


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


_outermost: ContextVar["LongWait | None"] = ContextVar("shoal_wait", default=None)


class LongWait:
    """Shows a wait on the state page of this process, and logs it while it is long.

    The page shows it from about 0.1 s on until the end of the `with` block of this object; of waits
    within waits it shows the outermost one. There is one log line when the wait has taken 10 s, one
    at 60 s, then one every 10 minutes.

    Args:
        describe: Returns the start of the line: which process waits, for what, and for which peer.
        deadline: The deadline of the wait; the line names it.
        waited: Seconds of the wait that have already passed.
        operation: The operation that waits, such as `get`; empty for a wait that the page does not show.
        on: The object of the operation; by default the line, without the name of this process.
        peers: Returns the addresses of the processes that it waits for now.
        channel: The name of the channel that the operation is on, if any.
        ends_in: Returns the seconds until what it waits for ends by itself.
        is_work: Whether an asynchronous operation is waited for, which has its own deadline; its
            peers may change while no code calls `tick`.

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
        operation: str = "wait",
        on: str | None = None,
        peers: Callable[[], Sequence[str]] = tuple,
        channel: str = "",
        ends_in: Callable[[], float] = lambda: math.inf,
        is_work: bool = False,
    ) -> None:
        self._describe = describe
        self.deadline = deadline
        self.is_work = is_work
        self._operation = operation
        self._on = on
        self._peers = peers
        self._channel = channel
        self._ends_in = ends_in
        self._start = time.monotonic() - waited
        self._logged = 0
        self._hangs_at: float | None = None
        self._is_shown = not operation
        self._entry: PageEntry | None = None
        self._peers_shown: tuple[str, ...] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._is_outermost = False

    def __enter__(self) -> Self:
        if _outermost.get() is None:
            _outermost.set(self)
            self._is_outermost = True
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_outermost:
            _outermost.set(None)
            self._is_outermost = False
        if self._timer is not None:
            self._timer.cancel()
        self.hide()

    def shown_in_loop(self) -> Self:
        """Let the event loop show the wait in time, where no code calls `tick`."""
        self._show_again_in(TIMING.shown_after_s)
        return self

    def _show_again_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._show_again)

    def _show_again(self) -> None:
        self._refresh() if self._is_shown else self.show()
        self._show_again_in(TIMING.peers_every_s)

    def _refresh(self) -> None:
        """Show the peers of now."""
        if self._entry is not None and self._peers_now() != self._peers_shown:
            self.hide()
            self.show()

    @property
    def next_at(self) -> float:
        """Seconds of waiting at which the next line is due."""
        if self._logged < len(TIMING.first_logs_s):
            return TIMING.first_logs_s[self._logged]
        return TIMING.then_every_s * (self._logged - len(TIMING.first_logs_s) + 1)

    def step(self, at_most: float = math.inf) -> float:
        """Seconds to wait before `tick` is called again."""
        elapsed = time.monotonic() - self._start
        # Not again if no code called `tick` at that time.
        due = (
            TIMING.shown_after_s
            if not self._is_shown and elapsed < TIMING.shown_after_s
            else self.next_at
        )
        due = min(due, self._hangs_at or math.inf) - elapsed
        if self.is_work and self._is_shown:
            due = min(due, TIMING.peers_every_s)
        if _observer is not None:
            due = min(due, _observer.interval)
        return max(0.0, min(due, at_most, self.deadline.remaining))

    def describe(self) -> str:
        """Return which process waits, for what, and for which peer."""
        return self._describe()

    def tick(self) -> None:
        """Show the wait, and log a line if one is due."""
        if _observer is not None:
            _observer.tick(self)
        elapsed = time.monotonic() - self._start
        if (
            not self._is_shown and elapsed >= TIMING.shown_after_s / 2
        ):  # the first tick may come early
            self.show()
        else:
            self._refresh()
        if self._hangs_at is None:  # not before: most waits are short
            with contextlib.suppress(ShoalValueError):
                self._hangs_at = hang_limit()
        if elapsed >= (self._hangs_at or math.inf):
            self._hangs_at = math.inf
            report_hang(self)
        if elapsed < self.next_at:
            return
        while elapsed >= self.next_at:
            self._logged += 1
        limit = self.deadline.timeout
        ends = "no limit" if math.isinf(limit) else f"limit {limit:g} s"
        remarks = "".join(f"; {text}" for text in remarks_on(self))
        _log.warning("%s: waiting for %.0f s (%s)%s", self._describe(), elapsed, ends, remarks)

    def show(self) -> None:
        """Show the wait on the page now, or the one that it is within, which may not be called."""
        self._is_shown = True
        outer = self._outer()
        if outer is not None:
            outer.show()
            return
        if self._entry is not None:
            return
        shown = self.activity()
        self._peers_shown = shown.peers
        self._entry = begin_wait(
            shown.operation, shown.on, shown.peers, shown.since,
            channel=shown.channel, until=shown.until,
        )  # fmt: skip

    def activity(self) -> Activity:
        """Return what the page shows: the wait, or the one that it is within."""
        outer = self._outer()
        if outer is not None:
            return outer.activity()
        on = self._on
        if on is None:
            sentence = self._describe().removeprefix(f"{describe_self()}: ")
            on = sentence.removeprefix("waits for ")
        peers, ends_in = self._peers_now(), math.inf
        with contextlib.suppress(Exception):
            ends_in = self._ends_in()
        until = time.monotonic() + min(self.deadline.remaining, ends_in)
        return Activity(
            "wait", self._operation, on, peers, len(peers), self._start, 0,
            channel=self._channel, until=until,
        )  # fmt: skip

    def _peers_now(self) -> tuple[str, ...]:
        try:
            return tuple(self._peers())
        except Exception:  # noqa: BLE001  (a wait ends with no error of what is shown of it)
            return ()

    def _outer(self) -> "LongWait | None":
        outer = _outermost.get()
        # The context of a task may have one that has ended.
        if outer is not None and outer is not self and outer._is_outermost and outer._operation:  # noqa: SLF001  (same class)
            return outer
        return None

    def hide(self) -> None:
        """Remove the wait from the page; a later `tick` shows it again, with its peers of then."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.end()
            self._is_shown = False
