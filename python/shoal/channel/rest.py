"""Slow path of `Channel.put` and `get`: runs when the core's fast path cannot complete a call."""

from typing import Any

from shoal.channel.work import named

__all__ = ["Rest"]


class Rest:
    """Completes the calls of a channel that the core leaves: unusual ones, long waits and failures.

    Args:
        channel: The channel.
        calls: The class whose methods complete a call; the handle's own attributes are the fast
            path.
    """

    def __init__(self, channel: Any, calls: Any) -> None:
        self._channel = channel
        self._calls = calls

    def put(
        self, item: Any, weight: Any, key: Any, async_op: Any, timeout: Any, queue_name: Any
    ) -> Any:
        """Put an item that the core could not put at once."""
        return self._calls.put(
            self._channel, item, weight, key, async_op, timeout=timeout, queue_name=queue_name
        )

    def put_nowait(self, item: Any, weight: Any, key: Any, queue_name: Any) -> None:
        """Put an item that the core could not put: make room for it, or raise the error."""
        self._calls.put_nowait(self._channel, item, weight, key, queue_name=queue_name)

    def get(
        self, key: Any, async_op: Any, timeout: Any, queue_name: Any, lease: Any, waited: float
    ) -> Any:
        """Get an item after the core has waited `waited` seconds."""
        return self._channel.get_after(key, async_op, timeout, queue_name, lease, waited)

    def get_nowait(self, key: Any, queue_name: Any, lease: Any) -> Any:
        """Get an item from a queue that is not open yet."""
        return self._calls.get_nowait(self._channel, key, queue_name=queue_name, lease=lease)

    def explain(self, error: BaseException) -> BaseException:
        """Return the error with the name of the worker that met it in its text."""
        return named(error)
