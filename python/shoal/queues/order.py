"""Puts and gets of this process that have to wait: `Pending`, first come, first served.

An operation is attempted at once. If it has to wait, it is attempted again whenever that may help,
until an attempt succeeds, its caller cancels it, or its deadline is over. The three exclude each
other, so that a cancelled operation has done nothing.
"""

import asyncio
import concurrent.futures
import itertools
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Literal

from shoal.deadline import Deadline, expect_event
from shoal.fork import reset_in_child
from shoal.futures import without_frames
from shoal.loop import soon, submit
from shoal.shm.refusals import Refusal

__all__ = ["Direct", "Line", "NotYet", "Order", "Pending", "Sent", "Side", "after", "when_due"]

Future = concurrent.futures.Future[Any]
Side = Literal["put", "get"]

Direct = dict[Side, dict[Any, Any]]
"""For each side, the queues that the core may use directly, by key."""

_AT_ONCE = 256
"""Operations that are served before other tasks of the loop have their turn."""


class NotYet(Exception):  # noqa: N818  (an attempt that has to wait is not an error)
    """Raised by an attempt: the operation has to wait.

    Args:
        refusal: What it lacks, where it is known.
    """

    def __init__(self, refusal: Refusal | None) -> None:
        super().__init__()
        self.refusal = refusal


class Pending(Future):
    """A put or a get that may have to wait; as a future, it ends with the result.

    Args:
        attempt: Does the operation, or raises `NotYet`. Must not wait: `cancel` waits for it.
        deadline: When the operation fails.
        too_late: Makes the error for that from the last refusal; None if it is not known.
        finish: Turns what the attempt returned into the result, without any lock.
        refusal: Why it has to wait, where it is known.
        not_before: The time, by the monotonic clock, before which it has to wait in any case.

    Attributes:
        deadline: Same as the argument.
        not_before: Same as the argument.
    """

    def __init__(
        self,
        attempt: Callable[[], Any],
        deadline: Deadline,
        too_late: Callable[[Refusal | None], BaseException],
        finish: Callable[[Any], Any] | None = None,
        refusal: Refusal | None = None,
        not_before: float = 0.0,
    ) -> None:
        super().__init__()
        self.deadline = deadline
        self.not_before = not_before
        self._attempt: Callable[[], Any] | None = attempt
        self._too_late = too_late
        self._finish = finish
        self._refusal = refusal
        self._outcome: tuple[Any, BaseException | None] | None = None

    def attempt(self) -> None:
        """Attempt the operation, unless it has ended.

        Raises:
            NotYet: It has to wait.
        """
        with self._condition:  # `cancel` takes it too
            if self._attempt is None or self.done():
                return
            if time.monotonic() < self.not_before:
                raise NotYet(None)
            try:
                self._outcome = self._attempt(), None
            except NotYet as why:
                self._refusal = why.refusal
                raise
            except BaseException as error:  # noqa: BLE001  (an error is the result)
                self._outcome = None, error
            self._attempt = None  # it refers to the item
            self.set_running_or_notify_cancel()

    def cancel(self) -> bool:
        """Same as for every future; drops the item, or the tensor to receive into."""
        cancelled = super().cancel()
        if cancelled:
            self._attempt = None
        return cancelled

    def wait_until_due(self) -> None:
        """Wait in this thread until its time has come, or until it has ended."""
        with self._condition:
            left = self.not_before - time.monotonic()
            if left > 0 and not self.done():
                expect_event(left)
                self._condition.wait(left)

    def conclude(self) -> None:
        """Hand the result of a successful attempt to those who wait; callers hold no lock."""
        with self._condition:
            outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        value, error = outcome
        if error is None and self._finish is not None:
            try:
                value = self._finish(value)
            except BaseException as failed:  # noqa: BLE001  (an error is the result)
                error = failed
        self._finish = None
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(without_frames(error))

    def expire(self) -> None:
        """Fail the operation at its deadline, unless an attempt has succeeded."""
        self.fail(lambda: self._too_late(self._refusal))

    def fail(self, make_error: Callable[[], BaseException]) -> None:
        """Fail the operation, unless it has ended."""
        if self._ends():
            self.set_exception(make_error())

    def _ends(self) -> bool:
        """End the operation without an attempt; False if it has ended."""
        with self._condition:
            if self._attempt is None or self.done():
                return False
            self._attempt = None
            return self.set_running_or_notify_cancel()


class Sent(Pending):
    """An operation that a `Serve` has done elsewhere; while it is sent, its deadline counts there.

    Args:
        deadline: As for `Pending`.
        too_late: As for `Pending`, for a deadline that is over before the operation is sent.

    Attributes:
        sent: Whether it is sent.
        unwanted: Whether it may not be sent any more.
    """

    _why: Callable[[], BaseException] | None = None

    def __init__(
        self, deadline: Deadline, too_late: Callable[[Refusal | None], BaseException]
    ) -> None:
        super().__init__(_elsewhere, deadline, too_late)
        self.sent = self.unwanted = False

    def send(self) -> bool:
        """Begin to send it; False if it has ended, as one that is unwanted does now."""
        with self._condition:
            self.sent = sends = not (self.unwanted or self.done())
        if not sends and not self.done():
            # The thread that withdrew it was interrupted before it ended it, or is about to.
            if self._why is None:
                self.cancel()
            else:
                self.fail(self._why)
        return sends

    def withdraw(self, why: Callable[[], BaseException] | None = None) -> bool:
        """Never send it; the caller ends it then.

        Args:
            why: Makes the error with which it ends; None if it is cancelled.

        Returns:
            Whether it is not sent.
        """
        with self._condition:
            if not (self.sent or self.unwanted):
                self._why, self.unwanted = why, True
            return not self.sent

    def succeed(self, value: Any) -> bool:
        """End it with its result; False if it has ended."""
        if not self._ends():
            return False
        self.set_result(value)
        return True

    def do(self, function: Callable[[], Any]) -> bool:
        """End it with what a function returns or raises; False if it has ended."""
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001  (an error is the result)
            self.fail(partial(without_frames, error))
            return False
        return self.succeed(value)

    def expire(self) -> None:
        """Fail it at its deadline, unless it is sent."""
        why = partial(self._too_late, self._refusal)
        if self.withdraw(why):
            self.fail(why)


def _elsewhere() -> None:
    raise NotYet(None)


Line = dict[Pending, Any]
"""The operations that wait on one side of one queue, in the order of the calls."""


Serve = Callable[[Any], Coroutine[Any, Any, None]]
"""Attempts an operation, which others do not precede any more, until it has ended.

It may end the next ones of the line too.
"""


class Order:
    """The operations of this process that wait on the queues of an engine, each in its turn.

    Args:
        direct: Filled with the queues that the core may use directly. A key on which operations
            wait is removed.

    Attributes:
        direct: Same as the argument.
        lines: The operations that wait, by key and side; true as long as any waits.
        lock: Guards this object; the engine may use it for its own state too.
    """

    def __init__(self, direct: Direct) -> None:
        self.direct = direct
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget all operations: in a forked child they belong to the parent."""
        self.lock = threading.Lock()
        self.lines: dict[tuple[Hashable, str], Line] = {}
        self.stop_direct()

    def waits(self, key: Hashable, side: Side) -> bool:
        """Whether operations wait on a side of a key; later ones come after them."""
        # Hashing a key may take long.
        return bool(self.lines) and bool(self.lines.get((key, side)))

    def first(self, key: Hashable, side: Side, number: int) -> list[Any]:
        """Return the first operations that wait on a side of a key, up to a number."""
        with self.lock:
            return list(itertools.islice(self.lines.get((key, side), ()), number))

    def stop_direct(self) -> None:
        """Let the next put and get of each key come through the engine."""
        for queues in self.direct.values():
            queues.clear()

    def park(
        self, key: Hashable, side: Side, operation: Pending, serve: Serve, *, timed: bool
    ) -> None:
        """Let an operation wait behind those that wait already, and serve it in its turn."""
        with self.lock:
            for queues in self.direct.values():
                queues.pop(key, None)
            line, first = self.lines.get((key, side)), False
            if line is None:
                line, first = self.lines.setdefault((key, side), {}), True
            line[operation] = serve
        operation.add_done_callback(partial(self._leave, line))
        if first:  # before the timer begins: one without time is served too
            submit(self._serve_all(key, side, line))
        if timed:
            after(operation.deadline.remaining, operation.expire, operation)

    async def _serve_all(self, key: Hashable, side: Side, line: Line) -> None:
        """Serve the operations of a line, one after the other, until none is left."""
        for served in itertools.count(1):
            with self.lock:
                operation = next(iter(line), None)
                if operation is None:
                    # Not earlier: while one that was cancelled is served, others wait behind it.
                    self.lines.pop((key, side), None)
                    return
                serve = line[operation]
            try:
                operation.attempt()
            except NotYet:
                await _served(operation, serve)
            operation.conclude()
            if served % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _leave(self, line: Line, operation: Any) -> None:
        with self.lock:
            line.pop(operation, None)

    def allow_direct(self, key: Hashable, side: Side, queue: Any) -> None:
        """Let the core use a side directly if nothing waits there; the caller holds the lock."""
        if not (self.waits(key, "put") or self.waits(key, "get")):
            self.direct[side][key] = queue


async def _served(operation: Pending, serve: Serve) -> None:
    """Serve an operation until it has ended: by an attempt, or because it is wanted no more."""
    serving: Awaitable[None] = serve(operation)
    if not isinstance(operation, Sent):  # of which the next ones wait for the end elsewhere
        serving = task = asyncio.ensure_future(serving)
        operation.add_done_callback(partial(_stop, asyncio.get_running_loop(), task))
    try:
        await serving
    except asyncio.CancelledError:
        pass
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the error is its result)
        operation.fail(partial(without_frames, error))


async def when_due(operation: Pending) -> None:
    """Attempt an operation once its time has come, unless its deadline comes first; a `Serve`."""
    while not operation.done():
        left = min(operation.not_before - time.monotonic(), operation.deadline.remaining)
        expect_event(left)
        await asyncio.sleep(left)
        try:
            operation.attempt()
        except NotYet:
            if operation.deadline.expired:
                operation.expire()
        else:
            return


def _stop(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[None]", _: Future) -> None:
    if not task.done():
        loop.call_soon_threadsafe(task.cancel)


def after(seconds: float, function: Callable[[], Any], operation: Future) -> None:
    """Call a function on the loop after some seconds, unless the operation has ended by then."""
    if math.isinf(seconds):
        return

    def begin() -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, function)
        # The timer refers to the operation, and so to its item: it must not outlive it by hours.
        operation.add_done_callback(lambda _: loop.call_soon_threadsafe(timer.cancel))

    soon(begin)
