"""Leases: items that return to their queue unless the consumer acknowledges them.

`Leases` is the actor's record of the leases that handles on other nodes have. Every item that such
a handle takes is on lease. All items of a plain get share one lease, which the handle settles when
they have arrived; a get with `lease` has one for each item. `HeldLeases` is the record of a handle,
which renews them. `RemoteLease`, `LaneLease` and `LocalLease` are the objects that consumers get.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from shoal.errors import ShoalValueError
from shoal.fork import reset_in_child
from shoal.loop import submit
from shoal.process import ProcessId, is_running

if TYPE_CHECKING:  # the pure core has none
    from shoal._backend import LaneMessage

__all__ = [
    "RENEW_S",
    "HeldLeases",
    "LaneLease",
    "Leases",
    "LocalLease",
    "RemoteLease",
    "arrival_s",
]

RENEW_S = 0.5
"""Seconds between a handle's renewals of its leases."""

_KEPT_S = 12.0
"""Seconds that a lease is kept after a renewal, since its process may be on a node that died."""

_ARRIVES_S = 5.0
"""Seconds allowed for the arrival of any reply, even on a node that is very busy."""
_SLOWEST = 1e6
"""Bytes per second of the slowest network to allow for."""
_GIVEN_UP_S = 35.0
"""Maximum seconds that a handle waits for an answer."""

_log = logging.getLogger("shoal")


def arrival_s(size: int) -> float:
    """Return the seconds within which `size` bytes arrive at a process that is alive."""
    return min(_GIVEN_UP_S, _ARRIVES_S + size / _SLOWEST)


@dataclass
class _Lease:
    messages: Sequence[Any]
    client: ProcessId
    arrives: bool
    ends: float


class Leases:
    """The messages of one actor that handles on other nodes have on lease.

    Args:
        name: The actor's name, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Start at a random number: after a restart the actor must not use the same numbers again.
        self._numbers = itertools.count(int.from_bytes(os.urandom(5)) << 20)
        self._leases: dict[int, _Lease] = {}

    def __len__(self) -> int:
        return sum(len(lease.messages) for lease in self._leases.values())

    @property
    def arriving(self) -> int:
        """Number of messages on their way to plain gets."""
        return sum(len(lease.messages) for lease in self._leases.values() if lease.arrives)

    def add(
        self, messages: Sequence[Any], *, client: ProcessId, seconds: float, arrives: bool
    ) -> int:
        """Add a lease; return its number.

        Args:
            messages: The messages on lease.
            client: The process that has the lease.
            seconds: How long the lease is kept unless it is renewed.
            arrives: Whether the lease ends as soon as the messages have arrived.
        """
        number = next(self._numbers)
        ends = time.monotonic() + seconds
        self._leases[number] = _Lease(messages, client, arrives, ends)
        return number

    def settle(self, numbers: Iterable[int], *, acknowledged: bool) -> None:
        """End leases; ignore those that have ended already."""
        for number in numbers:
            lease = self._leases.pop(number, None)
            for message in () if lease is None else lease.messages:
                if acknowledged:
                    message.ack()
                else:
                    message.give_back()

    def renew(self, numbers: Iterable[int]) -> list[int]:
        """Renew the leases of a handle; return those that have not ended."""
        ends = time.monotonic() + _KEPT_S
        kept = [number for number in numbers if number in self._leases]
        for number in kept:
            self._leases[number].ends = ends
        return kept

    def end_those_of_the_dead(self) -> None:
        """End leases that expired or whose process died; their messages are delivered again."""
        now = time.monotonic()
        dead = {c for c in {lease.client for lease in self._leases.values()} if not is_running(c)}
        for number, lease in list(self._leases.items()):
            if lease.ends < now or lease.client in dead:
                _log.warning("%s: a lease is over: its holder was not heard of in time", self._name)
                self.settle((number,), acknowledged=False)


# The leases of a consumer.


class _Settles(Protocol):
    def __call__(self, numbers: list[int], *, acknowledged: bool) -> None: ...


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
            await asyncio.sleep(RENEW_S)
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


class RemoteLease(_ItemLease):
    """An item on lease from an actor on another node.

    Args:
        held: The leases of this process at the actor, which renews this one.
        settle: Ends leases at the actor.
        number: The actor's number of the lease.
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
