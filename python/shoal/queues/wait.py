"""Works of asynchronous operations, and the name of the worker in the errors of all operations."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from shoal.context import describe_self
from shoal.errors import ChannelClosed, ChannelError, ShoalError
from shoal.futures import Asking, done, fail, fulfil
from shoal.queues.protocol import Taken
from shoal.work import AsyncChannelWork

__all__ = ["JOB_HAS_ENDED", "named", "naming", "started", "work_of"]

JOB_HAS_ENDED = "its job has ended in this process (Cluster.shutdown)"
_LEFT = "the session is closed in this process"
"""The end of the core's text. A channel leaves its session only when its job ends."""


def started(start: Callable[..., "concurrent.futures.Future[Any]"], *args: Any) -> Any:
    """Start a put or a get; return its future, with the error if the channel refuses at once.

    Callers see refusals in the work only, because other backends learn of them later.
    """
    try:
        return start(*args)
    except ChannelError as error:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        fail(future, error)
        return future


def work_of(
    future: "concurrent.futures.Future[Any]", what: str, *, takes: bool = False
) -> AsyncChannelWork:
    """Create the work of a put or of a get.

    Args:
        future: The operation; the result of a get is a `Taken`.
        what: Describes the operation in messages.
        takes: Whether it is a get.
    """
    if future.done() and not future.cancelled() and future.exception() is None:
        result = future.result()
        if not isinstance(result, Taken):
            return AsyncChannelWork(future, what)
        return AsyncChannelWork(done(result.value), what, result.give_back, result.deliver)
    if not takes:
        return AsyncChannelWork(_put(future), what)
    outer: concurrent.futures.Future[Any] = concurrent.futures.Future()
    took = Taken(None)

    def move(inner: "concurrent.futures.Future[Any]") -> None:
        nonlocal took
        if inner.cancelled():
            outer.cancel()
            return
        error = inner.exception()
        if error is not None:
            fail(outer, named(error))
            return
        took = inner.result()
        if not fulfil(outer, lambda: took.value):
            took.give_back()

    future.add_done_callback(move)

    def give_back() -> None:
        took.give_back()

    def deliver() -> None:
        took.deliver()

    outer.add_done_callback(lambda ended: future.cancel() if ended.cancelled() else None)
    return AsyncChannelWork(outer, what, give_back, deliver, takes=True)


def _put(future: "concurrent.futures.Future[Any]") -> Asking:
    """Return a future that follows a put; only the put knows whether it can still be cancelled."""
    outer = Asking(future.cancel)

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
