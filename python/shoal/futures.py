"""Cancellable futures for operations that run on the process's background event loop.

`asyncio.run_coroutine_threadsafe` drops a result that arrives together with a cancellation. Here
such a result is either delivered or given back.
"""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shoal.deadline import LongWait
from shoal.errors import ShoalError
from shoal.loop import soon, submit

__all__ = [
    "Asking",
    "AskingBy",
    "done",
    "ends_in_time",
    "ends_within",
    "fail",
    "fulfil",
    "in_turn",
    "start",
    "without_frames",
]

_T = TypeVar("_T")
Future = concurrent.futures.Future[Any]


class Asking(concurrent.futures.Future[Any]):
    """A future of an operation that may already be done elsewhere: `cancel` only requests it."""

    def ask(self) -> None:
        """Request the cancellation; subclasses do it.

        They call `end` if it is certain at once that the operation is not done and never will be.
        """
        raise NotImplementedError

    def cancel(self) -> bool:
        """Request the cancellation; if this returns False, the result tells the outcome."""
        self.ask()
        return self.cancelled()

    def end(self) -> None:
        """Mark the operation as cancelled: it was not done and will not be."""
        super().cancel()


class AskingBy(Asking):
    """An `Asking` that requests the cancellation by a function.

    Args:
        ask: As the method.
    """

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__()
        self._ask = ask
        self.add_done_callback(_forget)

    def ask(self) -> None:
        """Request the cancellation, by the function."""
        self._ask()

    def forget(self) -> None:
        """Drop the callback `ask`, which may keep large objects alive."""
        self._ask = _nothing


def _forget(ended: Future) -> None:
    if isinstance(ended, AskingBy):
        ended.forget()


def _nothing() -> None:
    """Do nothing: replaces `ask` once the future has ended."""


def done(value: Any) -> Future:
    """Return a future that already has its result."""
    future: Future = concurrent.futures.Future()
    future.set_result(value)
    return future


def ends_in_time(future: Future, wait: LongWait) -> bool:
    """Wait in this thread until a future has ended; False if the deadline of the wait came first."""
    with wait:
        return ends_within(future, wait)


def ends_within(future: Future, wait: LongWait) -> bool:
    """Wait as `ends_in_time` does, in the `with` block of the wait."""
    while not future.done():
        if wait.deadline.expired:
            return False
        # Not `future.exception(seconds)`: a signal handler may raise a `TimeoutError` of its
        # own. Not `concurrent.futures.wait`: it goes on when the future is cancelled.
        with future._condition:  # noqa: SLF001  (all changes of the future notify it)
            if not future.done():
                future._condition.wait(wait.step())  # noqa: SLF001  (see above)
        if not future.done():
            wait.tick()
    return True


def fulfil(future: Future, make: Callable[[], Any]) -> bool:
    """Complete a future with what `make` returns or raises; return False if it was cancelled."""
    if not _begun(future):
        return False
    try:
        value = make()
    except BaseException as error:  # noqa: BLE001  (an error is the future's result)
        future.set_exception(error)
        del future, make  # which this frame would keep as long as the error has its traceback
    else:
        future.set_result(value)
    return True


def fail(future: Future, error: BaseException) -> bool:
    """Complete a future with an error; return False if it was cancelled."""
    begun = _begun(future)
    if begun:
        future.set_exception(error)
    return begun


def without_frames(error: BaseException) -> BaseException:
    """Return an error for a future; one of shoal's without the frames that it was raised in.

    Such a frame, or one of its callers, refers to the future: the two would keep each other, and what
    the callers of the future have, until a collection. Other errors are a user's, who needs the frames.
    """
    if isinstance(error, ShoalError):
        error.__traceback__ = None
        if error.__suppress_context__:
            error.__context__ = None
    return error


def _begun(future: Future) -> bool:
    """Make a future impossible to cancel; return False if it is already complete."""
    return future.running() or (not future.done() and future.set_running_or_notify_cancel())


class _Turns(threading.local):
    """The steps of a thread that have to wait for the one that runs; None if none runs."""

    waiting: deque[Callable[[], Any]] | None = None


_turns = _Turns()


def in_turn(step: Callable[[], Any]) -> None:
    """Run a step of a done-callback that completes another future.

    If a step of this thread runs already, the new one runs after it, not within it. So a chain of
    futures may be longer than a stack.
    """
    if _turns.waiting is not None:
        _turns.waiting.append(step)
        return
    _turns.waiting = waiting = deque([step])
    try:
        while waiting:
            waiting.popleft()()
    finally:
        _turns.waiting = None
        for left in waiting:  # an interrupt has ended this step
            soon(left)


def start(
    work: Coroutine[Any, Any, _T],
    finish: Callable[[_T], Any],
    refuse: Callable[[_T], None] | None = None,
    future: Future | None = None,
) -> Future:
    """Run a coroutine on the loop.

    Args:
        work: The coroutine; cancelling the future cancels it.
        finish: Converts the coroutine's result to the future's.
        refuse: Receives the coroutine's result if the future was cancelled.
        future: The future to complete; None creates one.
    """
    if future is None:
        future = concurrent.futures.Future()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task: Any = asyncio.current_task()  # this one, never None
        future.add_done_callback(
            lambda done: loop.call_soon_threadsafe(task.cancel) if done.cancelled() else None
        )
        try:
            value = await work  # not in its own task: a `SystemExit` in a task ends the loop
        except asyncio.CancelledError:
            future.cancel()
        except BaseException as error:  # noqa: BLE001  (an error is the future's result)
            fail(future, without_frames(error))
        else:
            if not fulfil(future, lambda: finish(value)) and refuse is not None:
                refuse(value)

    submit(main())
    return future
