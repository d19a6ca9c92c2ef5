"""How a channel is used: the figures of a key, and what the state page of this process shows."""

import time
from dataclasses import dataclass
from typing import NamedTuple

from shoal.fork import reset_in_child
from shoal.queues.order import Side
from shoal.queues.settings import ChannelSettings
from shoal.state import use_channel

__all__ = ["ChannelStats", "Counts", "Rates", "StatePageUse"]

_MANY = 4096
"""Maximum number of keys whose last figures a handle remembers."""


class Counts(NamedTuple):
    """The counters of a key and of its memory, at one moment; `ChannelStats` describes them."""

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
        bytes: Bytes of those items; 0 for a local channel, which passes items uncopied.
        puts: Items that were put since the key was first used. The count restarts if the key held
            nothing and was forgotten because there were many such keys.
        gets: Items that were taken, by any process.
        put_rate: Items put per second since this handle's last `stats` of the key; 0 at first.
        get_rate: The same for items taken.
        waiting_producers: Whether puts wait for room: 0, or at least 1; only a local channel gives
            the exact number. A put that gave up counts until an item is taken.
        waiting_consumers: The same for gets that wait for items.
        oldest_s: Seconds since the oldest item was put; 0 if there is none.
        memory_used: Bytes of all items that share the memory, including items that consumers still
            use.
        memory_reserved: Bytes of memory that are reserved for the items.
        memory_limit: Maximum bytes of the items; 0 for a local channel, which has no limit.
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
    """Computes rates: remembers the counters of the keys whose `stats` were asked for last."""

    def __init__(self) -> None:
        self._last: dict[object, tuple[float, int, int]] = {}

    def since_last(self, key: object, counts: Counts) -> ChannelStats:
        """Return the figures of a key, with rates since the last call for the key."""
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
    # `more` is negative if the key was forgotten meanwhile.
    return max(0, more) / seconds if seconds else 0.0


class StatePageUse:
    """Writes which sides of a channel this process has used, each of them once.

    Args:
        settings: The channel; one that is internal or local is not shown.
        token: Where its memory is; empty if it is not on this node.
    """

    def __init__(self, settings: ChannelSettings, token: str) -> None:
        self._name = settings.page_name
        self._token = token
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Show both sides again: a forked child has a page of its own."""
        self._shown: set[Side] = set()

    def show(self, side: Side) -> None:
        """Show that this process puts, or gets."""
        if side not in self._shown:
            self._shown.add(side)
            if self._name:
                use_channel(self._name, self._token, side)
