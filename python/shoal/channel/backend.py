"""What a channel needs of the queues behind it, wherever they are."""

import concurrent.futures
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from shoal.channel.item import WeightedItem
from shoal.channel.stats import Counts
from shoal.channel.want import Want
from shoal.deadline import Deadline

__all__ = ["Backend", "Future", "Got"]

Future = concurrent.futures.Future[Any]
Got = list[WeightedItem]


class Backend(Protocol):
    """Keyed queues: in this process, in the memory of this host, or in hosts elsewhere.

    Errors are those of the channel, without the name of the caller. Where a deadline is None the
    operation does not wait.
    """

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put. Those of one process to one key happen in the order of the calls."""

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get, whose result is a `Taken`."""

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

    def counts(self, key: Hashable) -> Counts:
        """Return the figures of a key."""

    def close(self) -> None:
        """Accept nothing more."""
