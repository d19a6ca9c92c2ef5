"""Getting all that a key of a channel holds."""

from collections.abc import Callable, Hashable
from typing import Any

from shoal.channel.backend import Backend
from shoal.channel.underway import Underway
from shoal.errors import ChannelClosed, ChannelDecodeError, ShoalError, ShoalTimeoutError

__all__ = ["drained"]


def drained(channel: Any, key: Hashable, queues_of: Callable[[Hashable], Backend]) -> list[Any]:
    """Get all items that a key holds now, without waiting.

    What is taken is returned, whatever becomes of the rest: an error that comes in between is the
    next call's.

    Args:
        channel: The channel.
        key: The key.
        queues_of: Returns the queues that a key is of.

    Raises:
        ShoalError: As of a get, where nothing was taken.
    """
    items: list[Any] = []
    left = channel.qsize(key)
    try:
        while left > len(items):
            items += channel.get_many(left - len(items), key, timeout=0)
    except (ShoalTimeoutError, ChannelClosed):
        pass
    except ShoalError as error:
        if not items:
            raise
        queues = queues_of(key)
        # Any other error the next call meets by itself.
        if isinstance(error, ChannelDecodeError) and isinstance(queues, Underway):
            queues.set_aside(key, error)
    return items
