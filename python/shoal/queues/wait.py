"""`Queues`, the interface of all engines, and how calls wait; works, and the worker's name in errors."""

import concurrent.futures
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ChannelClosed, ChannelError, ChannelFull, ShoalError
from shoal.futures import Asking, AskingBy, ends_within, fail, fulfil, without_frames
from shoal.queues.order import Order, Pending
from shoal.queues.protocol import Future, Got, Taken, Want, set_done
from shoal.queues.settings import ChannelSettings
from shoal.queues.usage import Counts
from shoal.work import AsyncChannelWork

__all__ = [
    "JOB_HAS_ENDED",
    "Queues",
    "in_two_steps",
    "long_wait",
    "named",
    "naming",
    "result_of",
    "started",
    "work_of",
]

JOB_HAS_ENDED = "its job has ended in this process (Cluster.shutdown)"
_LEFT = "the session is closed in this process"
"""The end of the core's text. A channel leaves its session only when its job ends."""


class Queues(ABC):
    """Keyed queues: in this process, in shared memory of this node, or behind an actor elsewhere.

    A subclass is an engine: it differs from others only in where its items are. It has four verbs:
    `try_put` and `try_take` do not wait; `start_put` and `start_take` return a future at once. It has
    `put_here` and `take_here` too if its core can wait in the thread of the caller.

    Operations of one process on one key happen in the order of the calls. They raise the errors of
    the channel, without the name of the caller. A deadline of None means that an operation does not
    wait.

    Args:
        settings: The channel.
        order: The operations that wait, if the engine keeps them there.

    Attributes:
        transport: How this process reaches the queues, as in `Channel.transport`.
    """

    transport: str

    def __init__(self, settings: ChannelSettings, order: Order | None = None) -> None:
        self.settings = settings
        self._order = Order({}) if order is None else order

    @abstractmethod
    def try_put(self, key: Hashable, item: Any, weight: int) -> None:
        """Put an item, or raise `ChannelFull`; no put of this process waits."""

    @abstractmethod
    def start_put(
        self, key: Hashable, item: Any, weight: int, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a put; if not `timed`, the caller lets a `Pending` expire at the deadline."""

    @abstractmethod
    def try_take(self, key: Hashable, want: Want) -> Taken:
        """Take items, or raise `ChannelEmpty`."""

    @abstractmethod
    def start_take(
        self, key: Hashable, want: Want, deadline: Deadline, *, timed: bool = True
    ) -> Future:
        """Start a get, whose result is a `Taken`; `timed` as for puts."""

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""
        waits = self._order.waits(key, "put")
        if deadline is None:
            if waits:
                raise puts_wait(self._shown(key))
            self.try_put(key, item, weight)
        elif waits:
            Queues.put_here(self, key, item, weight, deadline)  # in its turn
        else:
            self.put_here(key, item, weight, deadline)

    def put_here(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> None:
        """Put an item; an engine that waits by itself in this thread overrides this."""
        self._end(
            self.start_put(key, item, weight, deadline, timed=False), "put", "room", key, deadline
        )

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""
        done = 0
        try:
            while done < len(items) and self._order.waits(key, "put"):
                self.put(key, items[done], weights[done], deadline)
                done += 1
            if done:
                items, weights = items[done:], weights[done:]
            self.put_many_here(key, items, weights, deadline)
        except Exception as error:
            set_done(error, done + getattr(error, "done", 0))
            raise

    def put_many_here(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items, one by one; an engine that can put them together overrides this."""
        for count, (item, weight) in enumerate(zip(items, weights, strict=True)):
            try:
                self.put(key, item, weight, deadline)
            except Exception as error:
                set_done(error, count)
                raise

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""
        if deadline is None:
            return self.try_take(key, want).received()
        if self._order.waits(key, "get"):
            return Queues.take_here(self, key, want, deadline)  # in its turn
        return self.take_here(key, want, deadline)

    def take_here(self, key: Hashable, want: Want, deadline: Deadline) -> Any:
        """Take items; an engine that waits by itself in this thread overrides this."""
        taken: Taken = self._end(
            self.start_take(key, want, deadline, timed=False), "get", "an item", key, deadline
        )
        return taken.received()

    @abstractmethod
    def reserve(self, key: Hashable, shape: tuple[int, ...], dtype: Any, deadline: Deadline) -> Any:
        """Return an array to fill, or a `shoal.shm.Reservation` of one: an item for a put.

        The shape and the dtype are valid.
        """

    @abstractmethod
    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""

    @abstractmethod
    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""

    @abstractmethod
    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""

    @abstractmethod
    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""

    @abstractmethod
    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""

    @abstractmethod
    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of its memory."""

    @abstractmethod
    def close(self) -> None:
        """Accept no more items."""

    def _end(
        self, future: Future, operation: str, awaited: str, key: Hashable, deadline: Deadline
    ) -> Any:
        try:
            if future.done():
                return future.result()
            shown, channel = self._shown(key), self.settings.page_name
            return result_of(future, long_wait(operation, awaited, shown, deadline, channel))
        finally:
            del future  # as in `result_of`

    def _shown(self, key: Hashable) -> str:
        """Return the name of a key's queue for messages."""
        return self.settings.shown(key)


def long_wait(
    operation: str, awaited: str, shown: str, deadline: Deadline, channel: str = ""
) -> LongWait:
    """Return the wait of a call for something in a queue, which logs what it waits for.

    Args:
        operation: The call.
        awaited: What it waits for.
        shown: The name of the queue.
        deadline: The deadline of the call.
        channel: The name of the channel; empty for queues that are no channel's.
    """
    return LongWait(
        lambda: f"{describe_self()}: {operation} waits for {awaited} in {shown}",
        deadline,
        deadline.elapsed,
        operation=operation,
        on=shown,
        channel=channel,
    )


def puts_wait(shown: str) -> ChannelFull:
    """Return the error of a put that does not wait, behind puts of its process that do."""
    return ChannelFull(
        f"put_nowait: no room in {shown}: earlier asynchronous puts of this process are still "
        "waiting"
    )


def result_of(future: Future, wait: LongWait) -> Any:
    """Wait in this thread for the result of an operation; interrupted, it takes and puts nothing."""
    try:
        with wait:  # it may add to an error at its deadline
            if not ends_within(future, wait) and isinstance(future, Pending):
                future.expire()
            return future.result()
    except BaseException:
        if not future.cancel():
            future.add_done_callback(_give_back)  # it ended just when this was interrupted
        del future  # the traceback has this frame: the error would keep itself, and all frames
        raise


def _give_back(ended: Future) -> None:
    if ended.cancelled() or ended.exception() is not None:
        return
    taken = ended.result()
    if isinstance(taken, Taken):
        taken.give_back()


def _at_once(function: Callable[[], None]) -> None:
    function()


def in_two_steps(
    first: Future,
    second: Callable[[Future], Future],
    run: Callable[[Callable[[], None]], None] = _at_once,
) -> Future:
    """Return the future of an operation in two steps; cancelling it cancels the step under way.

    Args:
        first: The first step, which is under way.
        second: Starts the second step with the first one, once that has ended and was not cancelled.
        run: Runs the function that calls `second`, for one that may take long.
    """
    cancel_step: Callable[[], bool] = first.cancel
    no_step, asked = bool, False  # `bool()` is False, as if the step had ended

    def cancel() -> None:
        nonlocal asked
        asked = True
        cancel_step()

    whole = AskingBy(cancel)

    def end(ended: Future) -> None:
        nonlocal cancel_step
        cancel_step = no_step  # else the futures keep each other, and the item, until a collection
        if ended.cancelled():
            whole.end()
        elif (error := ended.exception()) is not None:
            fail(whole, named(error))
        else:
            fulfil(whole, ended.result)

    def go_on(ended: Future) -> None:
        nonlocal cancel_step
        cancel_step = no_step
        try:
            step = second(ended)
            cancel_step = step.cancel
        except BaseException as error:  # noqa: BLE001  (an error is the result)
            fail(whole, named(without_frames(error)))
        else:
            if asked:  # between the steps
                step.cancel()
            step.add_done_callback(end)

    def then(ended: Future) -> None:
        if ended.cancelled():
            end(ended)
            return
        try:
            run(partial(go_on, ended))
        except RuntimeError:  # no thread can be started
            go_on(ended)

    first.add_done_callback(then)
    return whole


def started(start: Callable[..., "concurrent.futures.Future[Any]"], *args: Any) -> Any:
    """Start a put or a get; return its future, with the error if the channel refuses at once.

    Callers see refusals in the work only, because other backends learn of them later.
    """
    try:
        return start(*args)
    except ChannelError as error:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        fail(future, without_frames(error))
        return future


def work_of(
    future: "concurrent.futures.Future[Any]",
    what: str,
    settings: ChannelSettings,
    key: Hashable,
    deadline: Deadline,
) -> AsyncChannelWork:
    """Create the work of a put or of a get.

    Args:
        future: The operation; the result of a get is a `Taken`.
        what: The operation in messages: `put to` or `get from`.
        settings: The channel.
        key: The queue.
        deadline: The deadline of the operation.
    """
    work = _work_of(future, f"{what} {settings.shown(key)}", takes=what == "get from")
    work.channel = settings.page_name
    work.deadline = deadline
    return work


def _work_of(
    future: "concurrent.futures.Future[Any]", what: str, *, takes: bool
) -> AsyncChannelWork:
    if future.done() and not future.cancelled() and future.exception() is None:
        result = future.result()
        if not isinstance(result, Taken):
            return AsyncChannelWork(future, what)
        ended: concurrent.futures.Future[Any] = concurrent.futures.Future()
        _end(ended, result)
        return AsyncChannelWork(ended, what, result.give_back, result.deliver)
    if not takes:
        return AsyncChannelWork(future if isinstance(future, Asking) else _put(future), what)
    outer: concurrent.futures.Future[Any] = concurrent.futures.Future()
    took = Taken(None)
    waits_for: Future | None = future

    def move(inner: "concurrent.futures.Future[Any]") -> None:
        nonlocal took, waits_for
        waits_for = None  # else the two futures keep each other, and the item, until a collection
        if inner.cancelled():
            outer.cancel()
            return
        error = inner.exception()
        if error is not None:
            fail(outer, named(error))
            return
        took = inner.result()
        if not _end(outer, took):
            took.give_back()

    future.add_done_callback(move)

    def give_back() -> None:
        took.give_back()

    def deliver() -> None:
        took.deliver()

    def cancel(ended: "concurrent.futures.Future[Any]") -> None:
        if ended.cancelled() and (waited := waits_for) is not None:
            waited.cancel()

    outer.add_done_callback(cancel)
    return AsyncChannelWork(outer, what, give_back, deliver, takes=True)


def _end(future: "concurrent.futures.Future[Any]", taken: Taken) -> bool:
    """Complete the future of a work with the items of a get; return False if it was cancelled."""
    if taken.error is not None:  # not raised here: its frames would keep the work alive
        return fail(future, named(taken.error))
    return fulfil(future, lambda: taken.value)


def _put(future: "concurrent.futures.Future[Any]") -> Asking:
    """Return a future that follows a put; only the put knows whether it can still be cancelled."""
    outer = AskingBy(future.cancel)

    def move(inner: "concurrent.futures.Future[Any]") -> None:
        if inner.cancelled():
            outer.end()
            return
        error = inner.exception()
        if error is None:
            fulfil(outer, inner.result)
        else:
            fail(outer, named(error))

    future.add_done_callback(move)
    return outer


def named(error: BaseException) -> BaseException:
    """Add the name of this worker to the text of an error, unless it has one; return the error."""
    if isinstance(error, ChannelClosed) and str(error).endswith(_LEFT):
        error.args = (f"{str(error).removesuffix(_LEFT)}the channel is gone: {JOB_HAS_ENDED}",)
    if isinstance(error, ShoalError) and error.met_by is None:
        error.met_by = describe_self()
        error.args = (f"{error.met_by}: {error}", *error.args[1:])
    return error


@contextlib.contextmanager
def naming() -> Iterator[None]:
    """Add the name of this worker to the errors of a block."""
    try:
        yield
    except ShoalError as error:
        raise named(error) from error.__cause__
