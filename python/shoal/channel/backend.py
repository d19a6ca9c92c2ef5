"""`Backend`: the interface between a channel and its queues: local, in shared memory or remote."""

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
    """Keyed queues: in this process, in shared memory of this node, or behind an actor elsewhere.

    The operations raise the errors of the channel, without the name of the caller. A deadline of
    None means that the operation does not wait.
    """

    def put(self, key: Hashable, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""

    def put_many(
        self, key: Hashable, items: Sequence[Any], weights: Sequence[int], deadline: Deadline
    ) -> None:
        """Put items in their order; an error's `done` says how many are in the channel."""

    def start_put(self, key: Hashable, item: Any, weight: int, deadline: Deadline) -> Future:
        """Start a put. Puts of one process to one key happen in the order of the calls."""

    def reserve(self, key: Hashable, shape: tuple[int, ...], dtype: Any, deadline: Deadline) -> Any:
        """Return an array to fill, or a `shoal.shm.Reservation` of one: an item for a put.

        The shape and the dtype are valid.
        """

    def take(self, key: Hashable, want: Want, deadline: Deadline | None) -> Any:
        """Take items."""

    def start_take(self, key: Hashable, want: Want, deadline: Deadline) -> Future:
        """Start a get, whose result is a `Taken`."""

    def qsize(self, key: Hashable) -> int:
        """Return how many items a key holds."""

    def full(self, key: Hashable) -> bool:
        """Return whether a put would wait."""

    def maxsize(self, key: Hashable) -> int:
        """Return the bound of a key."""

    def declare(self, key: Hashable, maxsize: int) -> None:
        """Give a key a bound of its own."""

    def peek_all(self, key: Hashable) -> Got:
        """Return the weights and items that a key holds, without taking them."""

    def counts(self, key: Hashable) -> Counts:
        """Return the counters of a key and of its memory."""

    def close(self) -> None:
        """Accept no more items."""
