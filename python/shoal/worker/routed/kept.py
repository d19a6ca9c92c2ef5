"""Items that a failed `recv_from` had taken already, for the next one."""

import bisect
import itertools
import logging
import operator
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError

__all__ = ["KeptItems", "Taken"]

_log = logging.getLogger("shoal")
_numbers = itertools.count()


@dataclass(slots=True)
class Taken:
    """An item that was taken for a `recv_from`, until that has returned it.

    Attributes:
        place: Where it was taken from: the link and the key.
        number: Its turn among the items of its place.
        value: The item.
        lease: Its lease, where the channel has leases: the item is delivered again if this process
            dies meanwhile.
        link: Keeps the channel alive, whose identity is part of `place`.
    """

    place: Hashable
    number: int
    value: Any
    lease: Any = None
    link: Any = None

    def received(self) -> None:
        """Note that the caller has it."""
        if self.lease is None:
            return
        try:
            self.lease.ack()
        except ShoalError as error:
            # The item is in the result already: to raise would lose it.
            _log.warning(
                "recv_from: an item may be delivered twice, its receipt did not arrive: %s", error
            )


class KeptItems:
    """Items by place, in the order in which they were taken.

    Given back to a channel, an item would come after younger ones of the same sender, and the next
    batch would mix rows of two.
    """

    def __init__(self) -> None:
        self._items: dict[Hashable, list[Taken]] = {}
        self._lock = threading.Lock()

    @staticmethod
    def next_number() -> int:
        """Return the turn of an item that is going to be taken."""
        return next(_numbers)

    def keep(self, taken: Taken) -> None:
        """Keep an item at its turn."""
        with self._lock:
            items = self._items.setdefault(taken.place, [])
            bisect.insort(items, taken, key=operator.attrgetter("number"))

    def take(self, place: Hashable) -> Taken | None:
        """Return the oldest item of a place, if any."""
        with self._lock:
            items = self._items.get(place)
            if not items:
                return None
            first = items.pop(0)
            if not items:
                del self._items[place]
            return first
