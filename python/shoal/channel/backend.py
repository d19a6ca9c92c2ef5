"""What a channel needs of the queues behind it, wherever they are."""

import concurrent.futures
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from shoal.channel.item import WeightedItem
from shoal.deadline import Deadline
from shoal.transport.queues import Outcome

__all__ = ["Backend", "Future", "Got", "OnGot", "OnPut"]

Future = concurrent.futures.Future[Any]
Got = list[WeightedItem]
OnPut = Callable[[Outcome], None]
"""Raises the error that an outcome stands for."""
OnGot = Callable[[Outcome, Got], Any]
"""Makes the result of a get, or raises the error that an outcome stands for."""


class Backend(Protocol):
    """Keyed queues: in this process, or in hosts."""

    def put(
        self, key: Hashable, weight: int, item: Any, deadline: Deadline | None, then: OnPut
    ) -> None:
        """Put an item; without a deadline do not wait."""

    def start_put(
        self, key: Hashable, weight: int, item: Any, deadline: Deadline, then: OnPut
    ) -> Future:
        """Start a put. Those of one process to one key happen in the order of the calls."""

    def get(self, key: Hashable, target: int, deadline: Deadline | None, then: OnGot) -> Any:
        """Get an item or a batch; without a deadline do not wait."""

    def start_get(
        self, key: Hashable, target: int, deadline: Deadline, then: OnGot
    ) -> tuple[Future, Callable[[], None]]:
        """Start a get; also return what gives its items back."""

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""

    def maxsize(self, key: Hashable) -> int:
        """Return a key's bound."""

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""

    def peek_all(self, key: Hashable) -> Got:
        """Return what a key holds."""

    def close(self) -> None:
        """Accept nothing more."""
