# ruff: noqa: ASYNC109  (the calls with and without asyncio take the same arguments)
"""`Queue`: one queue of a session, with blocking and asyncio operations."""

import asyncio
import math
import reprlib
from collections.abc import Callable, Hashable
from typing import Any, Literal, Self, TypeVar, overload

from shoal._backend import ShmMessage, ShmQueue, ShmSession
from shoal.errors import (
    ChannelEmpty,
    ChannelFull,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.shm.bells import bells_of
from shoal.shm.keys import canonical
from shoal.shm.refusals import Refusal, timeout_error

__all__ = ["Queue"]

T = TypeVar("T")


class Queue(ShmQueue):
    """One queue of a session; delivers each message to one consumer, in the order of the puts.

    Made by `Session.queue`. A pickle of a queue opens the same queue in the process that loads it.
    Threads may share a queue.

    Args:
        session: The session.
        key: A str, bytes, int, float, bool, None or enum member, or a tuple or frozenset of them.
            Equal keys are the same queue.
        maxsize: Maximum number of messages; 0 for the session's backlog. None for the bound that
            the queue has, 0 if it is new.
        max_bytes: Maximum number of bytes of its messages; 0 for no limit but the session's
            memory. A message with more has room when the queue is empty; see also `overfill` of
            `Session.create`. None for the bound that the queue has, 0 if it is new.
        name: The queue's name in error messages; None for `queue` and the key.
        parcels: Whether gets return messages undecoded, as `Parcel`s, for a caller that passes
            them on.
        encoded: The canonical form of the key, if the caller has it already.

    Raises:
        ChannelExistsError: The queue exists with other bounds.
        ShoalTypeError: The key has another type.
    """

    session: ShmSession
    """The session of the queue."""
    key: Hashable
    """The key of the queue."""
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
        """Open the queue; create it if it does not exist."""
        encoded = canonical(key) if encoded is None else encoded
        name = f"queue {reprlib.repr(key)}" if name is None else name
        self = super().__new__(cls, session, encoded, maxsize, max_bytes, name, parcels)
        self.session = session
        self.key = key
        self._canonical = encoded
        return self

    async def aput(self, obj: Any, weight: int = 0, timeout: float | None = None) -> None:
        """Append an object like `put`, without blocking the event loop.

        If it is cancelled, nothing was put. `timeout` is in seconds, None for no limit.
        """

        def attempt() -> None:
            self.put_nowait(obj, weight)

        await self.attempted("put", attempt, ChannelFull, timeout, "aput")

    @overload
    async def aget(self, timeout: float | None = None, lease: Literal[False] = False) -> Any: ...
    @overload
    async def aget(self, timeout: float | None = None, *, lease: Literal[True]) -> ShmMessage: ...
    async def aget(self, timeout: float | None = None, lease: bool = False) -> Any:
        """Take the first object like `get`, without blocking the event loop.

        If it is cancelled, nothing was taken. `timeout` is in seconds, None for no limit.
        """

        def attempt() -> Any:
            return self.get_nowait(lease=True) if lease else self.get_nowait()

        return await self.attempted("get", attempt, ChannelEmpty, timeout, "aget")

    async def attempted(
        self,
        side: Literal["get", "put"],
        attempt: Callable[[], T],
        refused: type[Exception] | tuple[type[Exception], ...],
        timeout: float | None,
        operation: str,
        stated: float | None = None,
    ) -> T:
        """Repeat an attempt until it is not refused, without blocking the event loop.

        There is no await between a successful attempt and the end of the call, so a cancellation
        cannot lose its result.

        Args:
            side: The event to wait for: a message (`get`) or room (`put`).
            attempt: Does the operation, or raises at once.
            refused: The errors of `attempt` after which to try again. Their attribute `refusal`
                says why, in the text and the attribute of the timeout error.
            timeout: Seconds; None for no limit.
            operation: Name of the call in the text of the timeout error.
            stated: The seconds that this text names; None for `timeout`. For a caller to whose
                call a part of the time is over already.

        Raises:
            ShoalTimeoutError: The text of `shoal.shm.refusals.timeout_text` with the operation,
                the queue's name, the seconds and the refusal of the last attempt.
        """
        limit = _checked(timeout)
        loop = asyncio.get_running_loop()
        end = loop.time() + limit
        while True:
            try:
                return attempt()
            except refused:
                pass
            bells = bells_of(self.session.token)
            waiter = bells.register(self)
            try:
                bells.arm(self, self._canonical, side)
                try:
                    return attempt()
                except refused as error:
                    # Not the error: its frames, and those of its context, keep the object alive.
                    refusal = Refusal.of(error)
                remaining = end - loop.time()
                if remaining <= 0:
                    seconds = limit if stated is None else stated
                    raise timeout_error(operation, self.name, seconds, refusal)
                if side == "put" and not self.full():
                    # The session lacks memory: a get that waits for a batch must not wait for
                    # messages that have no room.
                    self.tell_no_room()
                await _rung(waiter, remaining)
            finally:
                bells.leave(waiter)

    def __repr__(self) -> str:
        bounds = f"maxsize={self.maxsize}, max_bytes={self.max_bytes}"
        return f"<shm.Queue {reprlib.repr(self.key)}, {bounds}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # With its bounds: if no process has the queue open at loading, it is created again.
        bounds = (self.maxsize, self.max_bytes)
        return type(self), (self.session, self.key, *bounds, self.name)


async def _rung(waiter: "asyncio.Future[None]", seconds: float) -> None:
    """Wait for the bell, for at most `seconds`."""
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
