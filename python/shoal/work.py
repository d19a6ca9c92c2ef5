"""The handles that operations with `async_op=True` return: `AsyncWork` and its subclasses.

Each wraps a `concurrent.futures.Future`. Works can be waited for in any order, without a thread for
each wait, and awaited in any event loop.
"""

import asyncio
import concurrent.futures
import functools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError, ShoalValueError
from shoal.fork import ChildStage, in_child
from shoal.futures import ends_in_time, fail, fulfil, in_turn
from shoal.loop import soon
from shoal.state import PageEntry, begin_wait

__all__ = [
    "AsyncChannelWork",
    "AsyncCollWork",
    "AsyncFuncWork",
    "AsyncRayWork",
    "AsyncRouteWork",
    "AsyncWork",
]

_log = logging.getLogger("shoal")

Future = concurrent.futures.Future[Any]

_NO_LIMIT = Deadline(math.inf)


class AsyncWork:
    """A running operation.

    Every wait raises its error. If nothing waited for a work that failed, the error is logged when
    the work is garbage-collected. Cancelling an `async_wait` cancels the operation; the timeout of
    `wait` does not.

    Args:
        future: The operation's future; None creates one for the caller to complete.
        what: Describes the operation in messages.
        give_back: Returns the messages that the operation took to their queue. Called if the result
            cannot be delivered: it arrived together with the cancellation of an `async_wait`, or
            the work was dropped.
        deliver: Called once, when a caller receives the result or the error. Without it, a work
            that functions were chained to counts as delivered; with it, such a result that no
            caller fetched is given back.

    Attributes:
        operation: The name of a wait for it on the state page.
        channel: The name of the channel that it is on, if any.
        peers: The addresses of the processes that it waits for; those that are known.
        deadline: When it ends by itself; None if that is not known, or never.
    """

    operation = "wait"
    channel = ""
    peers: Sequence[str] = ()
    deadline: Deadline | None = None

    def __init__(
        self,
        future: Future | None = None,
        what: str = "an operation",
        give_back: Callable[[], None] | None = None,
        deliver: Callable[[], None] | None = None,
    ) -> None:
        # Not part of the API; public because other works in this module read them.
        self.future: Future = concurrent.futures.Future() if future is None else future
        self.what = what
        self.following: AsyncWork | None = None
        self.seen = False
        self._give_back = give_back
        self._deliver = deliver

    def result(self) -> Any:
        """Return the result of an operation that has ended, or raise its error.

        The caller counts as having received the result.
        """
        self.seen = True
        if not self.future.cancelled():
            self.receive()
        try:
            return self.future.result()
        finally:
            del self  # the traceback has this frame: the error would keep itself, and all frames

    def receive(self) -> None:
        """Count the result, or the error and its items, as received by a caller."""
        self.seen = True
        deliver, self._deliver = self._deliver, None
        if deliver is not None:
            self._give_back = None
            deliver()

    def wait(self, timeout: float | None = None) -> Any:
        """Block until the operation has ended and return its result.

        Args:
            timeout: Seconds to wait; None for no limit. After a timeout the operation continues.

        Raises:
            ShoalTimeoutError: The operation is still running.
            concurrent.futures.CancelledError: The operation was cancelled.
        """
        if not self.future.done():
            deadline = Deadline(timeout, default=float("inf"))
            if not ends_in_time(self.future, self._waiting(deadline)):
                raise ShoalTimeoutError(
                    f"{describe_self()}: {self.what} is still running after {deadline.timeout:g} s"
                )
        try:
            return self.result()
        finally:
            del self  # as in `result`

    async def async_wait(self) -> Any:
        """Wait in an event loop and return the operation's result.

        Cancelling this cancels the operation and loses no message.
        """
        self.seen = True
        shows = not self.future.done()
        try:
            with self._waiting(_NO_LIMIT).shown_in_loop() if shows else nullcontext():
                await asyncio.wrap_future(self.future)
        except asyncio.CancelledError:
            self.abandon()
            raise
        except Exception:
            if not self.future.done():
                raise
        try:
            return self.result()
        finally:
            del self  # as in `result`

    def _waiting(self, deadline: Deadline) -> LongWait:
        return LongWait(
            lambda: f"{describe_self()}: waits for {self.what}",
            deadline,
            operation=self.operation,
            on="" if self.operation in ("send", "recv", "broadcast") else self.what,
            channel=self.channel,
            peers=self.awaited,
            ends_in=self.remaining,
            is_work=True,
        )

    def awaited(self) -> Sequence[str]:
        """Return the addresses of the processes that it waits for now; those that are known."""
        return self.peers

    def remaining(self) -> float:
        """Return the seconds until it ends by itself; infinite if that is not known, or never."""
        return math.inf if self.deadline is None else self.deadline.remaining

    def abandon(self) -> None:
        """Cancel the operation; if it has already ended, give back the messages that it took."""
        if not self.future.cancel() and self._give_back is not None:
            give_back, self._give_back = self._give_back, None
            self._deliver = None
            self.future = concurrent.futures.Future()
            self.future.cancel()
            give_back()

    def __await__(self) -> Any:
        """Same as awaiting `async_wait()`."""
        return self.async_wait().__await__()

    def done(self) -> bool:
        """Whether the operation has ended."""
        return self.future.done()

    def cancel(self) -> bool:
        """Request that the operation end; messages that it already took go back to their queue.

        Returns:
            Whether it is cancelled. If not, it has already ended, or `wait` will tell the outcome.
        """
        return self.future.cancel()

    def then(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> "AsyncFuncWork":
        """Run a function in a thread once this work, and the functions chained before, have ended.

        Chaining does not fetch the result: the item of a get goes back to its queue when this work
        is dropped and the function has run, unless a caller, such as the function, waited for it.

        Returns:
            The work of the function. It fails with this work's error if there is one.
        """
        last = self.get_last_work()
        last.seen = True
        following = AsyncFuncWork(func, *args, **kwargs)
        last.following, following.previous = following, last
        _chained.begin(following)
        last.future.add_done_callback(
            lambda ended: in_turn(functools.partial(following.start_after, ended))
        )
        return following

    def get_next_work(self) -> "AsyncWork | None":
        """Return the work that was chained to this one, or None."""
        return self.following

    def get_last_work(self) -> "AsyncWork":
        """Return the last work of the chain that starts here."""
        work = self
        while work.following is not None:
            work = work.following
        return work

    def __del__(self) -> None:
        future = getattr(self, "future", None)
        if future is None or not future.done() or future.cancelled():
            return
        error = future.exception()
        if error is not None and not self.seen:
            _log.error("%s failed and no call waited for it: %s", self.what, error)
        unseen = error is None and not self.seen
        if self._give_back is not None and (self._deliver is not None or unseen):
            soon(self._give_back)  # later: this thread may hold the queue's lock


class _Chained:
    """Shows the oldest function that is chained to a work, until it has run.

    What this process waits for elsewhere does not hold it. All of them would leave no room on the page.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # Taken again within itself when a work is freed meanwhile.
        self._lock = threading.RLock()
        self._open: dict[weakref.ref[Future], tuple[str, float]] = {}
        self._shown: weakref.ref[Future] | None = None
        self._entry: PageEntry | None = None

    def begin(self, work: AsyncWork) -> None:
        future = weakref.ref(work.future, self._end)  # that of a work that is dropped ends never
        with self._lock:
            self._open[future] = work.what, time.monotonic()
            self._show_oldest()
        work.future.add_done_callback(lambda _: self._end(future))

    def _end(self, future: weakref.ref[Future]) -> None:
        with self._lock:
            self._open.pop(future, None)
            self._show_oldest()

    def _show_oldest(self) -> None:
        oldest, (what, since) = next(iter(self._open.items()), (None, ("", 0.0)))
        if oldest is self._shown and (self._entry is None or not self._entry.page.is_left):
            return
        before, self._entry, self._shown = self._entry, None, oldest
        if before is not None:
            before.end()
        entry = None if oldest is None else begin_wait("then", what, since=since)
        if self._shown is oldest:
            self._entry = entry
        elif entry is not None:
            entry.end()


_chained = _Chained()
in_child(ChildStage.RENEW, _chained.reset)


class AsyncFuncWork(AsyncWork):
    """A function as a work: run it by calling the work, or chain it with `then`.

    Args:
        func: The function.
        args: Its positional arguments.
        pass_self: Whether the function receives this work as its first argument.
        kwargs: Its keyword arguments.
    """

    def __init__(
        self, func: Callable[..., Any], *args: Any, pass_self: bool = False, **kwargs: Any
    ) -> None:
        name = getattr(func, "__qualname__", repr(func))
        super().__init__(None, f"the function {name}")
        self._func, self._pass_self = func, pass_self
        self._args, self._kwargs = args, kwargs
        self._ran = [0.0]
        self._payload_s = 0.0
        # Keeps the previous work until the function has run, as the function may fetch its result.
        self.previous: AsyncWork | None = None

    def awaited(self) -> Sequence[str]:
        """Return the processes that the work before it waits for."""
        previous = self.previous
        while isinstance(previous, AsyncFuncWork) and not previous.done():
            previous = previous.previous  # a loop: a chain may be longer than a stack
        return () if previous is None or previous.done() else previous.awaited()

    @property
    def time(self) -> float:
        """Seconds that the function reported with `add_perf_time`, else its run time."""
        return self._payload_s or self._ran[0]

    def add_perf_time(self, seconds: float) -> None:
        """Report seconds that the function's real work took; `time` is then their sum."""
        self._payload_s += seconds

    def __call__(self) -> None:
        """Run the function in this thread; its error becomes the error of the work."""
        # `_timed` does not receive the work, so that a traceback cannot keep the work alive.
        func = functools.partial(self._func, self) if self._pass_self else self._func
        fulfil(self.future, functools.partial(_timed, func, self._args, self._kwargs, self._ran))
        self.previous = None
        del self, func  # the frames of an error lead to this one

    def start_after(self, previous: Future) -> None:
        """Run the function in a thread, or take over the previous work's error or cancellation."""
        if previous.cancelled():
            self.future.cancel()
        elif (error := previous.exception()) is not None:
            if self.previous is not None:
                self.previous.receive()
            fail(self.future, error)
        else:
            # A new daemon thread, not a pool: a function may wait for one that was started later,
            # and no function may keep the interpreter from exiting.
            thread = threading.Thread(target=self, name="shoal-then", daemon=True)
            try:
                thread.start()
            except RuntimeError as refusal:  # too many threads, or the interpreter ends
                fail(self.future, refusal)
            else:
                return
        self.previous = None


def _timed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], ran: list[float]
) -> Any:
    start = time.perf_counter()
    try:
        return func(*args, **kwargs)
    finally:
        ran[0] = time.perf_counter() - start


class AsyncCollWork(AsyncWork):
    """Several works as one; its result is a list of theirs, or the result of a single work.

    Args:
        works: The works, at least one.
    """

    def __init__(self, works: Sequence[AsyncWork]) -> None:
        if not works:
            raise ShoalValueError("AsyncCollWork([]): expected at least one work")
        super().__init__(None, " and ".join(work.what for work in works))
        self._works = list(works)
        left, lock = [self] * len(works), threading.Lock()

        def one_done(_: Future) -> None:
            with lock:
                whole = left.pop()  # with the last one, the works refer no more to what has them
                if left:
                    return
            in_turn(whole._end)  # noqa: SLF001  (same class)

        for work in self._works:
            work.seen = True
            work.future.add_done_callback(one_done)

    def awaited(self) -> Sequence[str]:
        """Return the processes that the works wait for."""
        return [
            *dict.fromkeys(p for work in self._works if not work.done() for p in work.awaited())
        ]

    def remaining(self) -> float:
        """Return the seconds until one of them ends by itself."""
        return min(work.remaining() for work in self._works)

    def __add__(self, other: "AsyncCollWork") -> "AsyncCollWork":
        """Combine with other works."""
        return AsyncCollWork([*self._works, *other._works])

    def result(self) -> Any:
        """Return the result, and mark the results of all works as received."""
        try:
            value = super().result()
            for work in self._works:
                work.result()
            return value
        finally:
            del self  # as in `AsyncWork.result`

    def receive(self) -> None:
        """Count the result as received, or the error as received from the work that raised it."""
        super().receive()
        error = self.future.exception()
        for work in self._works if error is not None else ():
            if not work.future.cancelled() and work.future.exception() is error:
                work.receive()

    def cancel(self) -> bool:
        """Cancel all works."""
        cancelled = [work.cancel() for work in self._works]
        return all(cancelled)

    def abandon(self) -> None:
        """Abandon all works."""
        self.future.cancel()
        for work in self._works:
            work.abandon()

    def _end(self) -> None:
        """End with the results of all works, or with the error of the first that has one."""
        # Not `work.result()`: no caller has received the results yet. Nor is an error raised here.
        results: list[Any] = []
        for work in self._works:
            try:
                error = work.future.exception()
            except concurrent.futures.CancelledError:
                error = concurrent.futures.CancelledError()  # without this frame
            if error is not None:
                fail(self.future, error)
                return
            results.append(work.future.result())
        fulfil(self.future, lambda: self._join(results))

    def _join(self, results: list[Any]) -> Any:
        return results[0] if len(results) == 1 else results


class AsyncRouteWork(AsyncCollWork):
    """Several works whose results a function combines into one.

    The function runs once, in the first thread that waits: its errors appear there, and a slow
    function delays no other work.

    Args:
        works: The works.
        finalize_fn: Receives the list of results and returns the combined one.
    """

    def __init__(self, works: Sequence[AsyncWork], finalize_fn: Callable[[list[Any]], Any]) -> None:
        self._finalize_fn = finalize_fn
        self._final: Future = concurrent.futures.Future()
        self._final_lock = threading.Lock()
        super().__init__(works)

    def result(self) -> Any:
        """Return the combined result, or raise the error of a work or of the function."""
        self.seen = True
        with self._final_lock:
            if not self._final.done():
                fulfil(self._final, self.finalize)
        if not self.future.cancelled() and self.future.exception() is not None:
            self.receive()
        try:
            return self._final.result()
        finally:
            del self  # as in `AsyncWork.result`

    def finalize(self) -> Any:
        """Combine the results of works that have all ended, and mark them as received."""
        try:
            value = self._finalize_fn(self.future.result())
            for work in self._works:
                work.result()
            return value
        finally:
            del self  # as in `AsyncWork.result`

    def _join(self, results: list[Any]) -> Any:
        return results


class AsyncChannelWork(AsyncWork):
    """A `put` or a `get` of a channel that was started with `async_op=True`.

    A get that is dropped while it waits is cancelled, because no caller could receive its item.

    Args:
        future: Same as in `AsyncWork`.
        what: Same as in `AsyncWork`.
        give_back: Same as in `AsyncWork`.
        deliver: Same as in `AsyncWork`.
        takes: Whether it is a get.
    """

    def __init__(
        self,
        future: Future | None = None,
        what: str = "an operation",
        give_back: Callable[[], None] | None = None,
        deliver: Callable[[], None] | None = None,
        *,
        takes: bool = False,
    ) -> None:
        super().__init__(future, what, give_back, deliver)
        self._takes = takes

    def __del__(self) -> None:
        if getattr(self, "_takes", False) and not self.future.done():
            # It may end before the loop comes to this; what it took then goes back.
            soon(functools.partial(_drop, self.future, self._give_back))
        else:
            super().__del__()


def _drop(future: Future, give_back: Callable[[], None] | None) -> None:
    if not future.cancel() and give_back is not None:
        # Not at once: the thread that completes it may be about to set the result.
        future.add_done_callback(lambda _: give_back())


class AsyncRayWork(AsyncWork):
    """A Ray call as a work.

    Args:
        ref: The object reference of the call.
    """

    def __init__(self, ref: Any) -> None:
        super().__init__(ref.future(), "a Ray call")
