"""What becomes of a channel's calls that the core does not answer by itself."""

from typing import Any

from shoal.channel.work import named

__all__ = ["Rest"]


class Rest:
    """Does what the core leaves of a channel's calls: what is unusual, waits long, or fails.

    Args:
        channel: The channel.
        calls: The class whose functions these calls are, whatever the handle itself has.
    """

    def __init__(self, channel: Any, calls: Any) -> None:
        self._channel = channel
        self._calls = calls

    def put(
        self, item: Any, weight: Any, key: Any, async_op: Any, timeout: Any, queue_name: Any
    ) -> Any:
        """Put an item that could not be put at once."""
        return self._calls.put(
            self._channel, item, weight, key, async_op, timeout=timeout, queue_name=queue_name
        )

    def put_nowait(self, item: Any, weight: Any, key: Any, queue_name: Any) -> None:
        """Raise why an item could not be put, or make room for it."""
        self._calls.put_nowait(self._channel, item, weight, key, queue_name=queue_name)

    def get(
        self, key: Any, async_op: Any, timeout: Any, queue_name: Any, lease: Any, waited: float
    ) -> Any:
        """Get an item for which some time was waited."""
        return self._channel.get_after(key, async_op, timeout, queue_name, lease, waited)

    def get_nowait(self, key: Any, queue_name: Any, lease: Any) -> Any:
        """Get an item of a queue that is not open yet."""
        return self._calls.get_nowait(self._channel, key, queue_name=queue_name, lease=lease)

    def explain(self, error: BaseException) -> BaseException:
        """Let an error say who met it."""
        return named(error)
