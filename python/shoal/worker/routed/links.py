"""How routed items travel: through a channel, or from worker to worker."""

import functools
import inspect
import math
import threading
from collections.abc import Callable, Hashable
from typing import Any, Protocol

from shoal.channel import Channel
from shoal.deadline import Deadline
from shoal.errors import ShoalValueError
from shoal.futures import done, fail
from shoal.work import AsyncFuncWork, AsyncWork
from shoal.worker.routed.kept import KeptItems, Taken
from shoal.worker.routed.state import RoutingState
from shoal.worker.routing import ROUTING_DEFAULT_TAG
from shoal.worker.routing.keys import RouteKey

__all__ = ["ChannelLink", "Link", "PeerLink", "link_of"]


class Link(Protocol):
    """Moves items to and from the ranks of one other group."""

    def put(self, item: Any, key: RouteKey, rank: int | None) -> None:
        """Send an item, and wait until it is sent."""

    def start_put(self, item: Any, key: RouteKey, rank: int | None) -> AsyncWork:
        """Start to send an item."""

    def get(self, key: RouteKey, rank: int | None) -> Taken:
        """Wait for an item."""

    def start_get(self, key: RouteKey, rank: int | None) -> AsyncWork:
        """Start to wait for an item."""

    def place(self, key: RouteKey, rank: int | None) -> Hashable:
        """Name the queue of a route; two links of one channel name it alike."""

    def opened(self, value: Any, key: RouteKey) -> Any:
        """Return the item of what arrived, or raise an error if it belongs to another route."""


def link_of(
    state: RoutingState,
    group: str,
    channel: Any,
    timeout: float | None,
    options: Any,
    *,
    operation: str,
    enable_p2p: bool,
    decoupled_mode: bool,
) -> Link:
    """Return the link of a call.

    Raises:
        ShoalValueError: The arguments do not go together.
    """
    if enable_p2p:
        if decoupled_mode:
            raise ShoalValueError(
                "decoupled_mode cannot be combined with enable_p2p: there, any rank takes an item, "
                "here, each item goes to one rank; set one of them to False"
            )
        return PeerLink(state.worker, group, timeout, options)
    if channel is None:
        raise ShoalValueError("requires ``channel`` when enable_p2p is False")
    return ChannelLink(channel, timeout, operation)


class ChannelLink:
    """Items in the keys of a channel.

    Args:
        channel: Anything with `put(item=, key=, async_op=)` and `get(key=, async_op=)`. Where its
            `get` takes `lease`, an item is delivered again if this process dies before it is
            received.
        timeout: Seconds for all operations together; None for the channel's default.
        operation: The method that is going to be called: `put` or `get`.

    Raises:
        ShoalValueError: There is a timeout, and the method takes none.
    """

    def __init__(self, channel: Any, timeout: float | None, operation: str) -> None:
        self._channel = channel
        self._deadline = None if timeout is None else Deadline(timeout, default=math.inf)
        if timeout is not None and not _takes(channel, operation, "timeout"):
            raise ShoalValueError(
                f"timeout={timeout!r}: {type(channel).__name__}.{operation} takes no timeout; "
                "leave it out, or use a channel of shoal"
            )

    def put(self, item: Any, key: RouteKey, rank: int | None) -> None:
        """Send an item, and wait until the channel has it."""
        del rank
        self._channel.put(item=item, key=key, async_op=False, **self._limit())

    def start_put(self, item: Any, key: RouteKey, rank: int | None) -> AsyncWork:
        """Start to send an item."""
        del rank
        return _started(self._channel.put, item=item, key=key, async_op=True, **self._limit())

    def get(self, key: RouteKey, rank: int | None) -> Taken:
        """Wait for an item."""
        leases = {"lease": True} if _takes(self._channel, "get", "lease") else {}
        number = KeptItems.next_number()
        got = self._channel.get(key=key, async_op=False, **leases, **self._limit())
        place = self.place(key, rank)
        if leases:
            return Taken(place, number, got.value, got, self)
        return Taken(place, number, got, None, self)

    def start_get(self, key: RouteKey, rank: int | None) -> AsyncWork:
        """Start to wait for an item."""
        del rank
        return _started(self._channel.get, key=key, async_op=True, **self._limit())

    def place(self, key: RouteKey, rank: int | None) -> Hashable:
        """Name a queue: handles of one channel are made again whenever they are pickled."""
        del rank
        channel = self._channel
        if isinstance(channel, Channel) and not channel.is_local:
            return ("channel", channel.name, key)
        return ("channel", id(channel), key)

    def opened(self, value: Any, key: RouteKey) -> Any:
        """Return the item: the key of a channel holds nothing else."""
        del key
        return value

    def _limit(self) -> dict[str, float]:
        return {} if self._deadline is None else {"timeout": self._deadline.remaining}


class PeerLink:
    """Items by `send` and `recv` of the workers, which arrive in the order of the sends.

    An item with a tag or a route key carries its key, so that the receiver does not take one kind
    of item for another.

    Args:
        worker: Has `send` and `recv`.
        group: The other group.
        timeout: Seconds for all operations together; None for the default of `send` and `recv`.
        options: For the accelerators' libraries.
    """

    def __init__(self, worker: Any, group: str, timeout: float | None, options: Any) -> None:
        self._worker = worker
        self._group = group
        self._options = options
        self._deadline = None if timeout is None else Deadline(timeout)

    def put(self, item: Any, key: RouteKey, rank: int | None) -> None:
        """Send an item."""
        self._send(item, key, rank, async_op=False)

    def start_put(self, item: Any, key: RouteKey, rank: int | None) -> AsyncWork:
        """Start to send an item."""
        return _started(self._send, item, key, rank, async_op=True)

    def get(self, key: RouteKey, rank: int | None) -> Taken:
        """Wait for the next item of a rank."""
        number = KeptItems.next_number()
        return Taken(self.place(key, rank), number, self._recv(rank, async_op=False))

    def start_get(self, key: RouteKey, rank: int | None) -> AsyncWork:
        """Start to wait for the next item of a rank."""
        del key
        return _started(self._recv, rank, async_op=True)

    def place(self, key: RouteKey, rank: int | None) -> Hashable:
        """Name the queue of a rank, which all its routes share."""
        del key
        return ("p2p", self._group, rank)

    def opened(self, value: Any, key: RouteKey) -> Any:
        """Return the item of a message.

        Raises:
            ShoalValueError: The message is of another route.
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

    def _send(self, item: Any, key: RouteKey, rank: int | None, *, async_op: bool) -> Any:
        label = _label_of(key)
        more: dict[str, Any] = self._limit()
        if label is not None:
            more["piggyback_payload"] = label
        return self._worker.send(
            item, self._group, rank, async_op=async_op, options=self._options, **more
        )

    def _recv(self, rank: int | None, *, async_op: bool) -> Any:
        return self._worker.recv(
            self._group, rank, async_op=async_op, options=self._options, **self._limit()
        )

    def _limit(self) -> dict[str, float]:
        return {} if self._deadline is None else {"timeout": self._deadline.remaining}


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
    """Whether a method of a channel has a parameter of that name."""
    function = getattr(type(channel), method, None)
    if function is None:  # an instance with functions of its own
        return name in _parameters(getattr(channel, method))
    return name in _parameters_of_class(function)


@functools.lru_cache(maxsize=64)
def _parameters_of_class(function: Callable[..., Any]) -> frozenset[str]:
    return _parameters(function)


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a function of an extension module that does not say
        return frozenset()


def _started(start: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncWork:
    """Start an operation; an error of the start is the error of its work."""
    try:
        begun = start(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (the other operations of the call go on)
        failed = AsyncWork(None, "a routed operation")
        fail(failed.future, error)
        return failed
    if isinstance(begun, AsyncWork):
        return begun
    if not hasattr(begun, "wait"):  # it was done at once
        return AsyncWork(done(begun), "a routed operation")
    work = AsyncFuncWork(begun.wait)
    threading.Thread(target=work, name="shoal-routed-wait", daemon=True).start()
    return work
