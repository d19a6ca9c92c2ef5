"""Leases on items of a channel that is on another node, or in this process."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, Self

from shoal.channel.leases import RENEW_S
from shoal.errors import ShoalValueError
from shoal.loop import submit

__all__ = ["HeldLeases", "LocalLease", "RemoteLease"]


class _Settles(Protocol):
    def __call__(self, numbers: list[int], *, acknowledged: bool) -> None: ...


class _Ends(Protocol):
    def __call__(self, *, acknowledged: bool) -> None: ...


class HeldLeases:
    """What this process has on lease of one host, renewed while there is any.

    Args:
        renew: Tells the host that they are still held; returns those that have not ended.
    """

    def __init__(self, renew: Callable[[list[int]], Coroutine[Any, Any, list[int]]]) -> None:
        self._renew = renew
        self._numbers: set[int] = set()
        self._lock = threading.Lock()
        self._renews = False

    def add(self, numbers: Iterable[int]) -> None:
        """Note some that were taken."""
        with self._lock:
            self._numbers.update(numbers)
            start, self._renews = not self._renews, True
        if start:
            submit(self._keep())

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget some that have ended."""
        with self._lock:
            self._numbers.difference_update(numbers)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with self._lock:
                numbers = list(self._numbers)
                self._renews = bool(numbers)
            if not numbers:
                return
            # This must not end while there are leases.
            with contextlib.suppress(Exception):
                kept = await self._renew(numbers)
                self.remove(set(numbers).difference(kept))


class _Lease:
    """An item that is delivered again, should it not be acknowledged.

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
        """Say that it is dealt with; again is nothing."""
        if not self._over:
            self._end(acknowledged=True)
            self._over = True

    def give_back(self) -> None:
        """Have it delivered again, at the end of its queue; again, or after `ack`, is nothing."""
        if not self._over:
            self._end(acknowledged=False)
            self._over = self._given_back = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.ack()


class RemoteLease(_Lease):
    """An item on lease from the host of another node.

    Args:
        held: Renews it, and knows of it.
        settle: Ends it at the host.
        number: The lease, as the host numbers them.
        redelivered: Whether it was delivered before.
        value: The item.
    """

    def __init__(
        self,
        held: HeldLeases,
        settle: _Settles,
        number: int,
        redelivered: bool,
        value: Any,
    ) -> None:
        def end(*, acknowledged: bool) -> None:
            settle([number], acknowledged=acknowledged)
            held.remove([number])

        super().__init__(value, redelivered, end)


class LocalLease(_Lease):
    """An item on lease within this process.

    Args:
        value: The item.
        redelivered: Whether it was delivered before.
        give_back: Puts it back.
    """

    def __init__(self, value: Any, redelivered: bool, give_back: Callable[[], None]) -> None:
        def end(*, acknowledged: bool) -> None:
            if not acknowledged:
                give_back()

        super().__init__(value, redelivered, end)
