"""The watchdog of waits that block in torch: it checks each of them about once a second.

A thread that waits in torch cannot check anything itself. The watchdog is a task on the event loop
of the process and runs only while a thread waits. It logs long waits, and ends a wait whose peer
is known to be dead.

gloo may forget a send that it was about to write when the receiver closed the connection. A wait
for that send ends at its limit only, whatever happens to the group, so sends are waited for in a
thread that can be abandoned (`wait_apart`). gloo forgets no receive.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError
from shoal.fork import ChildStage, in_child
from shoal.loop import submit
from shoal.reused_threads import run_in_thread
from shoal.transport.torch.ending import at_end, stop_if_ending
from shoal.transport.torch.forks import leak
from shoal.transport.torch.typing import Work

__all__ = ["Wait", "Watch", "begin", "end", "limit_of", "wait_apart"]

_LOOK_EVERY_S = 0.8
_NO_LIMIT = timedelta(days=3650)
_GRACE_S = 2.0
"""Seconds after its deadline before the watchdog ends a wait that should have ended by itself."""

Watch = Callable[[], BaseException | None]
"""Returns why a wait is hopeless, or None. It is called on the event loop and must not block."""


class Wait:
    """One thread's wait in torch.

    Args:
        what: The sentence for the log: this process, the operation and the peer.
        deadline: The deadline of the wait.
        watch: Returns why the wait is hopeless, or None.
        cancel: Makes the blocked thread return; called on the event loop, repeatedly until the
            wait has ended.
        works: The works for which the thread waits, kept here so that forked children do not
            destroy them.

    Attributes:
        deadline: As given.
        cancel: As given.
        error: The error with which the watchdog ended the wait, or None.
        index: Which of several works is being waited for.
    """

    __slots__ = (
        "__weakref__",
        "_long",
        "_start",
        "_watch",
        "cancel",
        "deadline",
        "error",
        "index",
        "what",
        "works",
    )

    def __init__(
        self,
        what: str,
        deadline: Deadline,
        watch: Watch | None,
        cancel: Callable[[], None],
        works: Any = None,
    ) -> None:
        self.what = what
        self.works = works
        self.error: BaseException | None = None
        self.index = 0
        self.deadline = deadline
        self._watch = watch
        self.cancel = cancel
        self._start = time.monotonic()
        self._long: LongWait | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._start

    def look(self) -> None:
        """Log the wait if a log line is due; end it if it is hopeless."""
        if self._long is None:
            # The page shows the send or the receive that this wait belongs to.
            self._long = LongWait(lambda: self.what, self.deadline, self.seconds, operation="")
        self._long.tick()
        if self.error is None:
            self.error = self._hopeless()
        if self.error is not None:
            self.cancel()

    def _hopeless(self) -> BaseException | None:
        if self.deadline.elapsed > self.deadline.timeout + _GRACE_S:
            limit = self.deadline.timeout
            return ShoalTimeoutError(f"{self.what}: not done within {limit:g} s")
        if self._watch is None:
            return None
        try:
            return self._watch()
        except Exception as error:  # noqa: BLE001  (raised where the caller waits)
            return error


def limit_of(deadline: Deadline) -> timedelta:
    """Return the limit of a wait in torch, which ends after the deadline, never before it."""
    left = deadline.remaining
    if left > _NO_LIMIT.total_seconds():
        return _NO_LIMIT
    # torch cuts off what is less than a millisecond, and gloo takes 0 as its default.
    return timedelta(milliseconds=math.ceil(left * 1000) + 1)


def wait_apart(works: Sequence[Work], wait: Wait) -> None:
    """Wait for sends; return as soon as the watchdog has ended the wait, even if torch does not.

    Args:
        works: The sends, in the order of the waits.
        wait: This wait, which has begun; its end is noted here.

    Raises:
        RuntimeError: The error of torch; or the wait was ended, for the reason `wait.error`.
    """
    results: SimpleQueue[BaseException | None] = SimpleQueue()
    cancel = wait.cancel

    def cancel_or_abandon() -> None:
        cancel()
        if wait.error is not None:
            results.put(RuntimeError("the wait was abandoned"))

    def work() -> None:
        error: BaseException | None = None
        try:
            for wait.index, one in enumerate(works):
                one.wait(limit_of(wait.deadline))
        except BaseException as caught:  # noqa: BLE001  (raised in the caller's thread)
            error = caught.with_traceback(None)
        end(wait)
        results.put(error)

    wait.cancel = cancel_or_abandon
    run_in_thread(work)
    error = results.get()
    if error is not None:
        raise error


_waits: dict[int, Wait] = {}
_looking = False
_lock = threading.Lock()


def begin(wait: Wait) -> None:
    """Have the watchdog check a wait until `end`."""
    global _looking  # noqa: PLW0603  (one watchdog a process is the point)
    _waits[id(wait)] = wait
    # Before the task stops it looks for waits, under the lock: it either finds this one, or has
    # stopped and cleared `_looking`.
    if not _looking:
        with _lock:
            if not _looking:
                _looking = True
                submit(_look_at_all())


def end(wait: Wait) -> None:
    """Have the watchdog forget a wait. Blocks a daemon thread if the interpreter is exiting."""
    _waits.pop(id(wait), None)
    stop_if_ending()


def _end_all() -> bool:
    for wait in list(_waits.values()):
        wait.cancel()
    return not _waits


at_end(_end_all)


async def _look_at_all() -> None:
    global _looking  # noqa: PLW0603  (as above)
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        with _lock:
            if not _waits:
                _looking = False
                return
        for wait in list(_waits.values()):
            with contextlib.suppress(Exception):  # an error in one wait must not affect the others
                wait.look()


def _forget() -> None:
    global _lock, _looking  # noqa: PLW0603  (as above)
    for wait in list(_waits.values()):
        leak(wait)
    _lock = threading.Lock()
    _looking = False
    _waits.clear()


in_child(ChildStage.KEEP, _forget)
