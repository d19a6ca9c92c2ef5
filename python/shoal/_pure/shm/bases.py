"""Bases of channels and workers, whose calls the pure core hands on to the slow path."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Self

__all__ = ["ChannelBase", "WorkerBase"]


class ChannelBase:
    """Puts and gets of a `Channel`; see `_rust.pyi`."""

    __slots__ = ("_direct_gets", "_direct_puts")
    __module__ = "shoal._backend"
    _direct_puts: dict[Any, Any]
    _direct_gets: dict[Any, Any]

    if TYPE_CHECKING:  # the subclass has these
        _put_slowly: Any
        _put_nowait_slowly: Any
        _get_slowly: Any
        _get_nowait_slowly: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Create a handle with no queues; the subclass adds and removes them at any time."""
        del args, kwargs
        self = object.__new__(cls)
        self._direct_puts, self._direct_gets = {}, {}
        return self

    def put(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = "default_queue",
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Hashable = None,
    ) -> Any:
        """Put an item, waiting for room.

        Args:
            item: Any object, or a reservation of this channel. With `async_op`, its arrays and
                tensors must not change until the work is done.
            weight: Weight of the item, which `get_batch` adds up.
            key: The queue: a str, bytes, int, float, bool, None or enum member, or a tuple or
                frozenset of them.
            async_op: Return a work at once. Puts of one key happen in the order of the calls.
            timeout: Seconds to wait for room; None for no limit.
            queue_name: Older name of `key`.

        Returns:
            None, or with `async_op` an `AsyncChannelWork`.

        Raises:
            ShoalTimeoutError: No room in time; the item is not in the channel.
            ChannelFull: No room, and the channel's policy is `error`.
            ChannelMemoryError: It can never fit; or no memory, and the memory policy is `error`.
            ChannelClosed: The channel was closed.
            PeerLostError: The channel is on another node, and its actor died during the call: the
                item may be in the channel or not.
            ShoalValueError: The item cannot be pickled, or the weight is not an integer from 0.
        """
        return self._put_slowly(item, weight, key, async_op, timeout, queue_name)

    def put_nowait(
        self,
        item: Any,
        weight: int = 0,
        key: Hashable = "default_queue",
        *,
        queue_name: Hashable = None,
    ) -> None:
        """Put an item if there is room now.

        Raises:
            ChannelFull: There is no room.
            ChannelClosed: The channel was closed. Other errors are the same as for `put`.
        """
        self._put_nowait_slowly(item, weight, key, queue_name)

    def get(
        self,
        key: Hashable = "default_queue",
        async_op: bool = False,
        *,
        timeout: float | None = None,
        queue_name: Hashable = None,
        lease: bool = False,
    ) -> Any:
        """Get the oldest item, waiting for one.

        Args:
            key: The queue.
            async_op: Return a work at once. Cancelling it, or the task that awaits it, loses no
                item.
            timeout: Seconds to wait; None for no limit.
            queue_name: Older name of `key`.
            lease: Return a lease instead, with `value`, `redelivered`, `ack()` and `give_back()`:
                the item is delivered again, at the end of its queue, if this process dies before
                `ack()`. As a context manager it acknowledges unless the block raises.

        Returns:
            The item, or its lease, or with `async_op` an `AsyncChannelWork` of it.

        Raises:
            ShoalTimeoutError: No item in time.
            ChannelClosed: The channel was closed and the key is empty.
            PeerLostError: The channel is on another node, and its actor died for good.
            ChannelDecodeError: The item cannot be rebuilt in this process; it is lost.
        """
        return self._get_slowly(key, async_op, timeout, queue_name, lease, 0.0)

    def get_nowait(
        self, key: Hashable = "default_queue", *, queue_name: Hashable = None, lease: bool = False
    ) -> Any:
        """Get the oldest item if there is one now.

        Raises:
            ChannelEmpty: The key holds no item. Other errors are the same as for `get`.
        """
        return self._get_nowait_slowly(key, queue_name, lease)


class WorkerBase:
    """Sends and receives of a `Worker`; see `_rust.pyi`."""

    __slots__ = ("_direct_receives", "_direct_sends")
    __module__ = "shoal._backend"
    _direct_sends: dict[str, dict[Any, tuple[Any, float, bool]]]
    _direct_receives: dict[str, dict[Any, Any]]

    if TYPE_CHECKING:  # the subclass has these
        _send_slowly: Any
        _recv_slowly: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make a worker with no queues; the subclass adds and removes them at any time."""
        del args, kwargs
        self = object.__new__(cls)
        self._direct_sends, self._direct_receives = {}, {}
        return self

    def send(
        self,
        object: Any,  # noqa: A002  (part of the API)
        dst_group_name: str,
        dst_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: Any = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Send an object or tensors to another worker; see `Collective.send`."""
        return self._send_slowly(
            object, dst_group_name, dst_rank, async_op, options, piggyback_payload, timeout
        )

    def recv(
        self,
        src_group_name: str,
        src_rank: int | list[int] | tuple[int, ...],
        async_op: bool = False,
        options: Any = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive what another worker sends; see `Collective.recv`."""
        return self._recv_slowly(src_group_name, src_rank, async_op, options, timeout, None)
