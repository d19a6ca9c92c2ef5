"""What handles on other nodes have of a host, until they say that it has arrived or is dealt with.

All that a handle takes is on lease. What a plain get takes has one number, which the handle settles
when it is there; with a lease each item has its own.
"""

import itertools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.process import ProcessId, is_running

__all__ = ["RENEW_S", "Leases"]

RENEW_S = 0.5
"""How often a handle says that it still has its leases."""

_KEPT_S = 12.0
"""How long a lease is kept that was renewed: its process may be on a node that died."""

_ARRIVES_S = 5.0
"""A machine that has much else to do may stand still for a while."""
_SLOWEST = 1e6
"""Bytes per second of a network that many share."""
_GIVEN_UP_S = 35.0
"""No handle waits longer for an answer."""

_log = logging.getLogger("shoal")


def arrival_s(size: int) -> float:
    """Return within how many seconds so many bytes arrive, if their process is alive."""
    return min(_GIVEN_UP_S, _ARRIVES_S + size / _SLOWEST)


@dataclass
class _Lease:
    messages: Sequence[Any]
    client: ProcessId
    arrives: bool
    ends: float


class Leases:
    """The messages of one host that handles elsewhere have on lease.

    Args:
        name: The host's name, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Another process that takes this one's place must not mean others by the same numbers.
        self._numbers = itertools.count(int.from_bytes(os.urandom(5)) << 20)
        self._leases: dict[int, _Lease] = {}

    def __len__(self) -> int:
        return sum(len(lease.messages) for lease in self._leases.values())

    @property
    def arriving(self) -> int:
        """How many messages are on their way to plain gets."""
        return sum(len(lease.messages) for lease in self._leases.values() if lease.arrives)

    def add(
        self, messages: Sequence[Any], *, client: ProcessId, seconds: float, arrives: bool
    ) -> int:
        """Note a lease; return its number.

        Args:
            messages: What is on lease.
            client: The process that has it.
            seconds: How long it is kept if nobody renews it.
            arrives: Whether the lease ends as soon as they have arrived there.
        """
        number = next(self._numbers)
        ends = time.monotonic() + seconds
        self._leases[number] = _Lease(messages, client, arrives, ends)
        return number

    def settle(self, numbers: Iterable[int], *, acknowledged: bool) -> None:
        """End those leases that have not ended."""
        for number in numbers:
            lease = self._leases.pop(number, None)
            for message in () if lease is None else lease.messages:
                if acknowledged:
                    message.ack()
                else:
                    message.give_back()

    def renew(self, numbers: Iterable[int]) -> list[int]:
        """Note that a handle still has its leases; return those that have not ended."""
        ends = time.monotonic() + _KEPT_S
        kept = [number for number in numbers if number in self._leases]
        for number in kept:
            self._leases[number].ends = ends
        return kept

    def end_those_of_the_dead(self) -> None:
        """Deliver again what those had on lease that have died, or cannot be heard any more."""
        now = time.monotonic()
        dead = {c for c in {lease.client for lease in self._leases.values()} if not is_running(c)}
        for number, lease in list(self._leases.items()):
            if lease.ends < now or lease.client in dead:
                _log.warning("%s: a lease is over: its holder was not heard of in time", self._name)
                self.settle((number,), acknowledged=False)
