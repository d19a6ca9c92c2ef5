"""The actor's record of the leases that handles on other nodes have.

Every item that a handle on another node takes is on lease. All items of a plain get share one
lease, which the handle settles when they have arrived. A get with `lease` has one for each item.
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
