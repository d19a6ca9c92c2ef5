"""Leases: items that return to their queue unless the consumer acknowledges them.

`HeldLeases` renews the leases of this process at one server of the lane. `LaneLease` and `LocalLease`
are the objects that consumers get.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol, Self

from shoal.errors import ShoalValueError
from shoal.fork import reset_in_child
from shoal.loop import submit
from shoal.queues import timing

if TYPE_CHECKING:
    from shoal._backend import LaneMessage

__all__ = [
    "HeldLeases",
    "LaneLease",
    "LocalLease",
]


class _Ends(Protocol):
    def __call__(self, *, acknowledged: bool) -> None: ...


class HeldLeases:
    """The leases of this process at one actor; renews them while there are any.

    Args:
        renew: Tells the actor that leases are still in use; returns those that have not ended.
    """

    def __init__(self, renew: Callable[[list[int]], Coroutine[Any, Any, list[int]]]) -> None:
        self._renew = renew
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget all leases: in a forked child they belong to the parent."""
        self._numbers: set[int] = set()
        self._lock = threading.Lock()
        self._renews = False

    def add(self, numbers: Iterable[int]) -> None:
        """Add leases that this process has taken, by number."""
        with self._lock:
            self._numbers.update(numbers)
            start, self._renews = not self._renews, True
        if start:
            submit(self._keep())

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove leases that have ended, by number."""
        with self._lock:
            self._numbers.difference_update(numbers)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(timing.TIMING.renew_s)
            with self._lock:
                numbers = list(self._numbers)
                self._renews = bool(numbers)
            if not numbers:
                return
            # An error must not end this loop while there are leases.
            with contextlib.suppress(Exception):
                kept = await self._renew(numbers)
                self.remove(set(numbers).difference(kept))


class _ItemLease:
    """An item that is delivered again unless it is acknowledged.

    Attributes:
        value: The item.
        redelivered: Whether it was delivered before.
    """

    def __init__(self, value: Any, redelivered: bool, end: "_Ends") -> None:
        self._value = value
        self._end = end
        self.redelivered = redelivered
        self._given_back = False
        self._over = False

    @property
    def value(self) -> Any:
        """The item."""
        if self._given_back:
            raise ShoalValueError("the message was given back")
        return self._value

    def ack(self) -> None:
        """Acknowledge the item, so that it is not delivered again. Idempotent."""
        if not self._over:
            self._end(acknowledged=True)
            self._over = True

    def give_back(self) -> None:
        """Return the item to the end of its queue. Idempotent; does nothing after `ack`."""
        if not self._over:
            self._end(acknowledged=False)
            self._over = self._given_back = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.ack()


class LaneLease(_ItemLease):
    """An item on lease over the lane.

    Args:
        message: The message.
        end: Ends its lease.
    """

    def __init__(self, message: "LaneMessage", end: _Ends) -> None:
        super().__init__(message.value, message.redelivered, end)


class LocalLease(_ItemLease):
    """An item on lease within this process.

    Args:
        value: The item.
        redelivered: Whether it was delivered before.
        give_back: Returns the item to its queue.
    """

    def __init__(self, value: Any, redelivered: bool, give_back: Callable[[], None]) -> None:
        def end(*, acknowledged: bool) -> None:
            if not acknowledged:
                give_back()

        super().__init__(value, redelivered, end)
