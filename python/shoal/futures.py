"""Operations that run on the process's loop and complete a future of any thread.

`asyncio.run_coroutine_threadsafe` would drop a result that arrives together with a cancellation.
Here it is either delivered or given back.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from shoal.loop import submit

__all__ = ["Asking", "Step", "done", "fail", "fulfil", "start"]

_T = TypeVar("_T")
Future = concurrent.futures.Future[Any]


class Step(concurrent.futures.Future[Any]):
    """A future of what is done in one step: before it, it can be cancelled, and not from then on."""

    def take(self, step: Callable[[], _T]) -> _T | None:
        """Take the step, unless it was cancelled; one that raises was not taken.

        Args:
            step: Does it at once, for who cancels meanwhile waits for its end.

        Returns:
            What the step returned; None where it was cancelled.
        """
        with self._condition:  # which `cancel` takes, too
            if self.cancelled():
                return None
            value = step()
            self.set_running_or_notify_cancel()
            return value


class Asking(concurrent.futures.Future[Any]):
    """A future of what may have happened already, far away: to cancel it is to ask for that.

    Args:
        ask: Asks; calls `end` where it is certain at once that it has not happened, nor will.
    """

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__()
        self._ask = ask
        self.add_done_callback(_forget)

    def cancel(self) -> bool:
        """Ask; True only where it is cancelled now: otherwise the result tells what became of it."""
        self._ask()
        return self.cancelled()

    def end(self) -> None:
        """Note that it has not happened."""
        super().cancel()

    def forget(self) -> None:
        """Ask nobody any more: who could be asked may hold what is large."""
        self._ask = _nothing


def _forget(ended: Future) -> None:
    if isinstance(ended, Asking):
        ended.forget()


def _nothing() -> None:
    """Stand for what has not to be asked."""


def done(value: Any) -> Future:
    """Return a future that is complete."""
    future: Future = concurrent.futures.Future()
    future.set_result(value)
    return future


def fulfil(future: Future, make: Callable[[], Any]) -> bool:
    """Complete a future with what `make` returns or raises; False when it was cancelled."""
    if not _begun(future):
        return False
    try:
        value = make()
    except BaseException as error:  # noqa: BLE001  (an error is the future's result)
        future.set_exception(error)
    else:
        future.set_result(value)
    return True


def fail(future: Future, error: BaseException) -> None:
    """Complete a future with an error, unless it was cancelled."""
    if _begun(future):
        future.set_exception(error)


def _begun(future: Future) -> bool:
    """Let nobody cancel a future any more; False where it is complete."""
    return future.running() or (not future.done() and future.set_running_or_notify_cancel())


def start(
    work: Coroutine[Any, Any, _T],
    finish: Callable[[_T], Any],
    refuse: Callable[[_T], None] | None = None,
    future: Future | None = None,
) -> Future:
    """Run a coroutine on the loop.

    Args:
        work: The coroutine; it is cancelled when the future is.
        finish: Makes the future's result of the coroutine's.
        refuse: Receives the coroutine's result when nobody wants it any more.
        future: Its future, for a coroutine that needs it; made where it is not given.
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
            value = await work  # in no task of its own: a `SystemExit` of one ends the loop
        except asyncio.CancelledError:
            future.cancel()
        except BaseException as error:  # noqa: BLE001  (an error is the future's result)
            fail(future, error)
        else:
            if not fulfil(future, lambda: finish(value)) and refuse is not None:
                refuse(value)

    submit(main())
    return future
