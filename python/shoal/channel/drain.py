"""`drain`: gets all items that a key of a channel holds."""

from collections.abc import Callable, Hashable
from typing import Any

from shoal.channel.queues import Queues
from shoal.errors import ChannelClosed, ChannelDecodeError, ShoalError, ShoalTimeoutError

__all__ = ["drain"]


def drain(channel: Any, key: Hashable, queues_of: Callable[[Hashable], Queues]) -> list[Any]:
    """Get all items that a key holds now, without waiting.

    Items that were taken are returned even if a later get fails; the next call then raises the
    error.

    Args:
        channel: The channel.
        key: The key.
        queues_of: Returns the queues of a key.

    Raises:
        ShoalError: Same errors as a get, if nothing was taken.
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
        # The next call meets any other error by itself.
        if isinstance(error, ChannelDecodeError):
            queues_of(key).set_aside(key, error)
    return items
