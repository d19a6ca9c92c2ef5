"""The queues that hold the items of routes: in a channel, or between two workers."""

import functools
import inspect
import math
import threading
from collections.abc import Callable, Hashable
from typing import Any

from shoal.channel import Channel
from shoal.deadline import Deadline
from shoal.errors import ShoalValueError
from shoal.futures import done, fail, without_frames
from shoal.work import AsyncFuncWork, AsyncWork
from shoal.worker.routing import ROUTING_DEFAULT_TAG
from shoal.worker.routing.kept_items import KeptItems, TakenItem
from shoal.worker.routing.keys import RouteKey
from shoal.worker.routing.state import RoutingState

__all__ = ["ChannelRouteQueues", "PeerRouteQueues", "RouteQueues", "queues_of", "started"]


class ChannelRouteQueues:
    """The queues of a channel: each item is put into the key of its route.

    Args:
        channel: Anything with `put(item=, key=, async_op=)` and `get(key=, async_op=)`. If its
            `get` has a parameter `lease`, an item is delivered again if this process dies before
            it has received the item.
        timeout: Seconds for all operations together; None for the channel's default.
        operation: The method that will be called: `put` or `get`.

    Raises:
        ShoalValueError: A timeout is given, and the method has no such parameter.
    """

    def __init__(self, channel: Any, timeout: float | None, operation: str) -> None:
        self._channel = channel
        self._deadline = None if timeout is None else Deadline(timeout, default=math.inf)
        if timeout is not None and not _takes(channel, operation, "timeout"):
            raise ShoalValueError(
                f"timeout={timeout!r}: {type(channel).__name__}.{operation} takes no timeout; "
                "leave it out, or use a channel of shoal"
            )

    def put(self, item: Any, key: RouteKey, rank: int | None, *, async_op: bool) -> Any:
        """Send an item; wait until the channel has it, or return a work."""
        del rank
        return self._channel.put(item=item, key=key, async_op=async_op, **self._limit())

    def get(self, key: RouteKey, rank: int | None, *, async_op: bool) -> Any:
        """Wait for an item and return a `TakenItem`, or return the work of an item."""
        if async_op:
            return self._channel.get(key=key, async_op=True, **self._limit())
        leases = {"lease": True} if _takes(self._channel, "get", "lease") else {}
        number = KeptItems.next_number()
        got = self._channel.get(key=key, async_op=False, **leases, **self._limit())
        queue_id = self.queue_id(key, rank)
        if leases:
            return TakenItem(queue_id, number, got.value, got, self)
        return TakenItem(queue_id, number, got, None, self)

    def queue_id(self, key: RouteKey, rank: int | None) -> Hashable:
        """Identify the queue of a route; two objects of one channel return equal values.

        It has the channel's name, if there is one, because unpickling makes new handles.
        """
        del rank
        channel = self._channel
        if isinstance(channel, Channel) and not channel.is_local:
            return ("channel", channel.name, key)
        return ("channel", id(channel), key)

    def opened(self, value: Any, key: RouteKey) -> Any:
        """Return the value, which is the item: a key of a channel holds only one route."""
        del key
        return value

    def _limit(self) -> dict[str, float]:
        return {} if self._deadline is None else {"timeout": self._deadline.remaining}


class PeerRouteQueues:
    """The messages of `send` and `recv` of the workers; they arrive in the order of the sends.

    An item with a tag or a route key carries both as a label, so that the receiver does not
    confuse one kind of item with another.

    Args:
        worker: The worker, with `send` and `recv`.
        group: The other group.
        timeout: Seconds for all operations together; None for the default of `send` and `recv`.
        options: Options for the accelerators' libraries.
    """

    def __init__(self, worker: Any, group: str, timeout: float | None, options: Any) -> None:
        self._worker = worker
        self._group = group
        self._options = options
        self._deadline = None if timeout is None else Deadline(timeout)

    def put(self, item: Any, key: RouteKey, rank: int | None, *, async_op: bool) -> Any:
        """Send an item; wait until it is sent, or return a work."""
        label = _label_of(key)
        more: dict[str, Any] = self._limit()
        if label is not None:
            more["piggyback_payload"] = label
        return self._worker.send(
            item, self._group, rank, async_op=async_op, options=self._options, **more
        )

    def get(self, key: RouteKey, rank: int | None, *, async_op: bool) -> Any:
        """Wait for the next item of a rank, or return the work of it."""
        number = KeptItems.next_number()
        got = self._worker.recv(
            self._group, rank, async_op=async_op, options=self._options, **self._limit()
        )
        return got if async_op else TakenItem(self.queue_id(key, rank), number, got)

    def queue_id(self, key: RouteKey, rank: int | None) -> Hashable:
        """Identify the queue of a rank, which all its routes share."""
        del key
        return ("p2p", self._group, rank)

    def opened(self, value: Any, key: RouteKey) -> Any:
        """Return the item of a message.

        Raises:
            ShoalValueError: The message belongs to another route.
        """
        label = None
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], _Label):  # noqa: PLR2004  (an object and its piggyback)
            value, label = value
        expected = _label_of(key)
        if label != expected:
            raise ShoalValueError(
                f"the next message of {self._group}:{key[5]} has {_shown(label)}, and recv_from "
                f"expects {_shown(expected)}: with enable_p2p messages arrive in the order of the "
                "sends, so receive them in that order, or use a channel, which separates them"
            )
        return value

    def _limit(self) -> dict[str, float]:
        return {} if self._deadline is None else {"timeout": self._deadline.remaining}


RouteQueues = ChannelRouteQueues | PeerRouteQueues
"""The queues to and from the ranks of one other group."""


def queues_of(
    state: RoutingState,
    group: str,
    channel: Any,
    timeout: float | None,
    options: Any,
    *,
    operation: str,
    enable_p2p: bool,
    decoupled_mode: bool,
) -> RouteQueues:
    """Return the queues that a call uses.

    Raises:
        ShoalValueError: The arguments contradict each other.
    """
    if enable_p2p:
        if decoupled_mode:
            raise ShoalValueError(
                "decoupled_mode cannot be combined with enable_p2p: there, any rank takes an item, "
                "here, each item goes to one rank; set one of them to False"
            )
        return PeerRouteQueues(state.worker, group, timeout, options)
    if channel is None:
        raise ShoalValueError("requires ``channel`` when enable_p2p is False")
    return ChannelRouteQueues(channel, timeout, operation)


class _Label(tuple[str, str]):
    """The tag and the route key of a message between two workers."""

    __slots__ = ()


def _label_of(key: RouteKey) -> _Label | None:
    label = _Label(key[3:5])
    return None if label == (ROUTING_DEFAULT_TAG, "") else label


def _shown(label: _Label | None) -> str:
    return (
        "no tag and no route_key" if label is None else f"tag {label[0]!r}, route_key {label[1]!r}"
    )


def _takes(channel: Any, method: str, name: str) -> bool:
    """Whether a method of a channel has a parameter with this name."""
    function = getattr(type(channel), method, None)
    if function is None:  # the method is an attribute of the instance
        return name in _parameters(getattr(channel, method))
    return name in _parameters_of_class(function)


@functools.lru_cache(maxsize=64)
def _parameters_of_class(function: Callable[..., Any]) -> frozenset[str]:
    return _parameters(function)


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function of an extension module without a signature
        return frozenset()


def started(start: Callable[..., Any], *args: Any) -> AsyncWork:
    """Start a put or a get of queues with `async_op`; if that fails, return a work with the error."""
    try:
        begun = start(*args, async_op=True)
    except Exception as error:  # noqa: BLE001  (the other operations of the call go on)
        failed = AsyncWork(None, "a routed operation")
        fail(failed.future, without_frames(error))
        return failed
    if isinstance(begun, AsyncWork):
        return begun
    if not hasattr(begun, "wait"):  # it has completed already
        return AsyncWork(done(begun), "a routed operation")
    work = AsyncFuncWork(begun.wait)
    threading.Thread(target=work, name="shoal-routed-wait", daemon=True).start()
    return work
