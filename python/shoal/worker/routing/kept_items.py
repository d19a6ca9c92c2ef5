"""Items that a failed `recv_from` has taken, kept for the next call."""

import bisect
import itertools
import logging
import operator
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError

__all__ = ["KeptItems", "TakenItem"]

_log = logging.getLogger("shoal")
_numbers = itertools.count()


@dataclass(slots=True)
class TakenItem:
    """An item that a `recv_from` has taken and not yet returned.

    Attributes:
        queue_id: The queue that it was taken from, as `RouteQueues.queue_id` identifies it.
        number: Its number in the order in which items are taken.
        value: The item.
        lease: Its lease, if the channel has leases: the item is delivered again if this process
            dies meanwhile.
        queues: Keeps the channel alive, since `queue_id` may contain its `id`.
    """

    queue_id: Hashable
    number: int
    value: Any
    lease: Any = None
    queues: Any = None

    def received(self) -> None:
        """Acknowledge the item, since the caller has it."""
        if self.lease is None:
            return
        try:
            self.lease.ack()
        except ShoalError as error:
            # The item is in the result already: an exception would lose it.
            _log.warning(
                "recv_from: an item may be delivered twice, its receipt did not arrive: %s", error
            )


class KeptItems:
    """Kept items by their queue (`TakenItem.queue_id`), in the order in which they were taken.

    They do not go back to the channel: there an item would come after later items of the same
    sender, and the next batch would mix rows of two batches.
    """

    def __init__(self) -> None:
        self._items: dict[Hashable, list[TakenItem]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def next_number() -> int:
        """Return the number of the next item to be taken."""
        return next(_numbers)

    def keep(self, taken: TakenItem) -> None:
        """Keep an item, in the order of the numbers."""
        with self._lock:
            items = self._items.setdefault(taken.queue_id, [])
            bisect.insort(items, taken, key=operator.attrgetter("number"))

    def take(self, queue_id: Hashable) -> TakenItem | None:
        """Remove and return the oldest item of a queue, or None."""
        with self._lock:
            items = self._items.get(queue_id)
            if not items:
                return None
            first = items.pop(0)
            if not items:
                del self._items[queue_id]
            return first
