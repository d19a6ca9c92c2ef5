"""Turns a channel's asynchronous operations into works; adds the worker's name to errors."""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from shoal.channel.want import Taken
from shoal.context import describe_self
from shoal.errors import ChannelError, ShoalError
from shoal.futures import Asking, done, fail, fulfil
from shoal.work import AsyncChannelWork

__all__ = ["named", "naming", "started", "work_of"]


def named(error: BaseException) -> BaseException:
    """Add the name of this worker to the text of an error, unless it has one; return the error."""
    if isinstance(error, ShoalError) and not getattr(error, "met_by", None):
        who = describe_self()
        error.met_by = who  # type: ignore[attr-defined]  # an attribute that errors get here
        error.args = (f"{who}: {error}", *error.args[1:])
    return error


@contextlib.contextmanager
def naming() -> Iterator[None]:
    """Add the name of this worker to the errors of a block."""
    try:
        yield
    except ShoalError as error:
        raise named(error) from error.__cause__


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
