"""Figures of a channel."""

import time
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ChannelStats", "Counts", "Rates"]

_MANY = 4096
"""Of so many keys a handle remembers when it asked last."""


class Counts(NamedTuple):
    """What is counted, at one moment.

    Attributes:
        depth: Items that the key holds.
        bytes: Their bytes.
        puts: Items that were put since the key was first used, or used again after it was forgotten
            as one of many that held nothing.
        gets: Items that were taken.
        waiting_producers: Whether puts wait for room: 0, or at least 1; how many only a local channel
            says. Who gave up counts until somebody takes.
        waiting_consumers: Whether gets wait for items, alike.
        oldest_s: Seconds since the oldest item was put; 0 where there is none.
        memory_used: Bytes of all items of the host, those included that consumers still use.
        memory_reserved: Bytes that are kept for them.
        memory_limit: Bytes that they may have; 0 for no limit.
    """

    depth: int
    bytes: int
    puts: int
    gets: int
    waiting_producers: int
    waiting_consumers: int
    oldest_s: float
    memory_used: int = 0
    memory_reserved: int = 0
    memory_limit: int = 0


@dataclass(frozen=True)
class ChannelStats:
    """How a key of a channel is used.

    Attributes:
        depth: Items that the key holds.
        bytes: Their bytes; 0 for a local channel, whose items are passed as they are.
        puts: Items that were put since the key was first used, or used again after it was forgotten
            as one of many that held nothing.
        gets: Items that were taken, by whomever.
        put_rate: Items put per second, since this handle's last `stats` of the key; 0 at first.
        get_rate: Items taken per second, alike.
        waiting_producers: Whether puts wait for room: 0, or at least 1; how many only a local channel
            says. Who gave up counts until somebody takes.
        waiting_consumers: Whether gets wait for items, alike.
        oldest_s: Seconds since the oldest item was put; 0 where there is none.
        memory_used: Bytes of all items that share the memory, those included that consumers use.
        memory_reserved: Bytes of memory that are kept for them.
        memory_limit: Bytes that they may have.
    """

    depth: int
    bytes: int
    puts: int
    gets: int
    put_rate: float
    get_rate: float
    waiting_producers: int
    waiting_consumers: int
    oldest_s: float
    memory_used: int
    memory_reserved: int
    memory_limit: int


class Rates:
    """Remembers the figures of the keys that were asked for last, for the rates until the next time."""

    def __init__(self) -> None:
        self._last: dict[object, tuple[float, int, int]] = {}

    def since_last(self, key: object, counts: Counts) -> ChannelStats:
        """Make the figures of a key from what is counted now and was counted last."""
        now = time.monotonic()
        then, puts, gets = self._last.pop(key, (now, counts.puts, counts.gets))
        self._last[key] = (now, counts.puts, counts.gets)
        if len(self._last) > _MANY:
            del self._last[next(iter(self._last))]
        seconds = now - then
        return ChannelStats(
            put_rate=_rate(counts.puts - puts, seconds),
            get_rate=_rate(counts.gets - gets, seconds),
            **counts._asdict(),
        )


def _rate(more: int, seconds: float) -> float:
    # There are fewer than before where the key was forgotten meanwhile.
    return max(0, more) / seconds if seconds else 0.0
