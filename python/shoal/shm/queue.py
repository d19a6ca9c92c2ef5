# ruff: noqa: ASYNC109  (the calls with and without asyncio take the same arguments)
"""Queues, for programs with and without asyncio."""

import asyncio
import math
import reprlib
from collections.abc import Callable, Hashable
from typing import Any, Literal, Self, TypeVar, overload

from shoal._backend import ShmMessage, ShmQueue, ShmSession
from shoal.errors import (
    ChannelEmpty,
    ChannelFull,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.shm.bells import bells_of
from shoal.shm.keys import canonical

__all__ = ["Queue"]

T = TypeVar("T")


class Queue(ShmQueue):
    """One queue of a session: each message to exactly one consumer, in the order of the puts.

    `Session.queue` makes them; a pickle of one opens the same queue where it is loaded. Threads
    may share one.

    Args:
        session: The session.
        key: Any hashable key; equal keys are the same queue.
        maxsize: The most messages that it may hold; 0 for the session's backlog. None for whatever
            it is, and 0 where it is new.
        max_bytes: The most bytes that its messages may have; 0 for no limit but the session's
            memory. None alike.
        name: What messages call it; None for `queue` and the key.
        parcels: Whether gets hand messages on as they are, as `Parcel`s, for who passes them on.
        encoded: The canonical form of the key, for who has it already.

    Raises:
        ChannelExistsError: It exists with other bounds.
        ShoalTypeError: The key is not hashable, or equals nothing but itself.
    """

    session: ShmSession
    """The session that it is of."""
    key: Hashable
    """Its key."""
    _canonical: bytes

    def __new__(
        cls,
        session: ShmSession,
        key: Hashable,
        maxsize: int | None = None,
        max_bytes: int | None = None,
        name: str | None = None,
        *,
        parcels: bool = False,
        encoded: bytes | None = None,
    ) -> Self:
        """Open the queue, which is made where it does not exist."""
        encoded = canonical(key) if encoded is None else encoded
        name = f"queue {reprlib.repr(key)}" if name is None else name
        self = super().__new__(cls, session, encoded, maxsize, max_bytes, name, parcels)
        self.session = session
        self.key = key
        self._canonical = encoded
        return self

    async def aput(self, obj: Any, weight: int = 0, timeout: float | None = None) -> None:
        """Append an object as `put` does, while other tasks go on.

        Cancelled, it has put nothing. `timeout` is in seconds, None for no limit.
        """
        refused = f"put_nowait: no room in {self.name}: "

        def late(error: Exception, limit: float) -> str:
            why = str(error).removeprefix(refused)
            return f"aput: no room in {self.name} within {limit:g} s: {why}"

        def attempt() -> None:
            self.put_nowait(obj, weight)

        await self.attempted("put", attempt, ChannelFull, timeout, late)

    @overload
    async def aget(self, timeout: float | None = None, lease: Literal[False] = False) -> Any: ...
    @overload
    async def aget(self, timeout: float | None = None, *, lease: Literal[True]) -> ShmMessage: ...
    async def aget(self, timeout: float | None = None, lease: bool = False) -> Any:
        """Take the first object as `get` does, while other tasks go on.

        Cancelled, it has taken nothing. `timeout` is in seconds, None for no limit.
        """

        def late(_: Exception, limit: float) -> str:
            return f"aget: no message in {self.name} within {limit:g} s"

        def attempt() -> Any:
            return self.get_nowait(lease=True) if lease else self.get_nowait()

        return await self.attempted("get", attempt, ChannelEmpty, timeout, late)

    async def attempted(
        self,
        side: Literal["get", "put"],
        attempt: Callable[[], T],
        refused: type[Exception] | tuple[type[Exception], ...],
        timeout: float | None,
        late: Callable[[Exception, float], str],
    ) -> T:
        """Attempt something until it is not refused, while other tasks go on.

        Nothing is awaited between an attempt that succeeds and the end of the call, so that no
        cancellation can come in between.

        Args:
            side: What is waited for: messages (`get`), or room (`put`).
            attempt: Does it, or raises at once.
            refused: What it raises where it is to be tried again.
            timeout: Seconds; None for no limit.
            late: Makes the text of the error at their end, of the last refusal and the seconds.
        """
        limit = _checked(timeout)
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while True:
            try:
                return attempt()
            except refused as error:
                last = error.with_traceback(None)  # its frames are this one, and have the object
            bells = bells_of(self.session.token)
            waiter = bells.register(self)
            try:
                bells.arm(self, self._canonical, side)
                try:
                    return attempt()
                except refused as error:
                    last = error.with_traceback(None)
                remaining = end - loop.time()
                if remaining <= 0:
                    raise ShoalTimeoutError(late(last, limit))
                if side == "put" and not self.full():
                    self.tell_no_room()  # it lacks memory, which who waits for weight may have
                await _rung(waiter, remaining)
            finally:
                bells.leave(waiter)

    def __repr__(self) -> str:
        bounds = f"maxsize={self.maxsize}, max_bytes={self.max_bytes}"
        return f"<shm.Queue {reprlib.repr(self.key)}, {bounds}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # With its bounds: nobody may have it open when it is loaded, and it is made again then.
        bounds = (self.maxsize, self.max_bytes)
        return type(self), (self.session, self.key, *bounds, self.name)


async def _rung(waiter: "asyncio.Future[None]", seconds: float) -> None:
    """Wait for the bell, no longer than some seconds."""
    timer = None
    if seconds < math.inf:
        timer = waiter.get_loop().call_later(seconds, _over, waiter)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()


def _over(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def _checked(timeout: Any) -> float:
    if timeout is None:
        return math.inf
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise ShoalTypeError(f"timeout={timeout!r}: expected seconds, None or math.inf")
    if math.isnan(timeout) or timeout < 0:
        raise ShoalValueError(f"timeout={timeout!r}: expected seconds, not less than 0")
    return float(timeout)
