"""The values that cross the interface of queues, `shoal.queues.wait.Queues`.

`Want` (the items that a get asks for), `Taken` (the items of an asynchronous get), `ItemLease` and
`WeightedItem`; and the checks of keys, weights and counts.
"""

import concurrent.futures
import operator
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from shoal.deadline import Deadline
from shoal.errors import ChannelDecodeError, ShoalValueError
from shoal.shm.keys import refusal
from shoal.shm.refusals import Refusal

__all__ = [
    "DEFAULT_KEY",
    "NOTHING",
    "ONE",
    "Future",
    "Got",
    "ItemLease",
    "Leased",
    "Taken",
    "Want",
    "WeightedItem",
    "checked_count",
    "checked_key",
    "checked_weight",
    "leased",
    "set_done",
]

DEFAULT_KEY = "default_queue"
"""The key of calls without one."""

_LARGEST = 2**63 - 1


@dataclass(order=True)
class WeightedItem:
    """An item and its weight; ordered by weight.

    Attributes:
        weight: The weight, which `get_batch` adds up.
        item: Any object.
    """

    weight: int
    item: Any = field(compare=False)


Future = concurrent.futures.Future[Any]
Got = list[WeightedItem]


class Want(NamedTuple):
    """The items that a get takes.

    Attributes:
        kind: One item, up to `amount` items, or a batch of the weight `amount`.
        amount: See `kind`.
        least: The weight that is enough for a batch after `linger`; None if the batch must be
            complete.
        linger: Seconds to wait for a complete batch; only with `least`.
        lease: Whether the items return unless they are acknowledged.
        again: Whether a get that waits on another node goes on at the actor's next process; otherwise
            it ends with `PeerLostError`, for items that only the former process would have put.
    """

    kind: Literal["one", "many", "batch"] = "one"
    amount: int = 1
    least: int | None = None
    linger: float = 0.0
    lease: bool = False
    again: bool = True

    @property
    def operation(self) -> str:
        """The name of the call, for errors."""
        return {"one": "get", "many": "get_many", "batch": "get_batch"}[self.kind]

    def phases(self, deadline: Deadline) -> Iterator[tuple["Want", Deadline]]:
        """Yield the wants to wait for, one after the other, each with its deadline."""
        if self.least is not None and self.linger > 0:
            complete = self._replace(least=None)
            yield complete, Deadline(min(self.linger, deadline.remaining))
        yield self, deadline


ONE = Want()

NOTHING = Refusal("empty", 0, 0, 0)
"""Why a get was refused that found no item."""


def _nothing() -> None:
    """Do nothing; the default callback of `Taken`."""


@dataclass(slots=True)
class Taken:
    """The items of an asynchronous get, until the caller has its result.

    Attributes:
        value: The result.
        deliver: Called when the caller has the result.
        give_back: Called when no caller will have the result.
        error: The error about other items that were taken with these and cannot be rebuilt; the
            caller gets it, with these as its `items`, instead of the value.
    """

    value: Any
    deliver: Callable[[], None] = _nothing
    give_back: Callable[[], None] = _nothing
    error: ChannelDecodeError | None = None

    @classmethod
    def of(
        cls,
        values: list[Any],
        want: Want,
        error: ChannelDecodeError | None,
        deliver: Callable[[], None] = _nothing,
        give_back: Callable[[], None] = _nothing,
    ) -> "Taken":
        """Return the items of a get from a list of them."""
        if error is not None:
            error.items = values
            return cls(None, deliver, give_back, error)
        return cls(values[0] if want.kind == "one" else values, deliver, give_back)

    def received(self) -> Any:
        """Return the value, or raise the error that has the items, for a caller that has them now."""
        self.deliver()
        if self.error is not None:
            raise self.error
        return self.value


Leased = tuple[list[Any], ChannelDecodeError | None]
"""Leased messages, and the error about others that were taken with them and cannot be rebuilt."""


def leased(take: Callable[[], Any], want: Want) -> Leased:
    """Take messages on lease."""
    try:
        found = take()
    except ChannelDecodeError as error:
        if not error.items:
            raise
        return list(error.items), error.with_traceback(None)
    return [found] if want.kind == "one" else found, None


class ItemLease:
    """An item that is delivered again unless it is acknowledged.

    Args:
        value: The item.
        redelivered: Whether it was delivered before.
        give_back: Returns it to its queue.
        ack: Notes that it is not delivered again.

    Attributes:
        redelivered: Same as the argument.
    """

    def __init__(
        self,
        value: Any,
        redelivered: bool,
        give_back: Callable[[], None],
        ack: Callable[[], None] = _nothing,
    ) -> None:
        self._value = value
        self._give_back, self._ack = give_back, ack
        self.redelivered = redelivered
        self._given_back = False
        self._over = False

    @property
    def value(self) -> Any:
        """The item."""
        if self._given_back:
            raise ShoalValueError("the message was given back")
        return self._value

    def ack(self) -> None:
        """Acknowledge the item, so that it is not delivered again. Idempotent."""
        if not self._over:
            self._ack()
            self._over = True

    def give_back(self) -> None:
        """Return the item to the end of its queue. Idempotent; does nothing after `ack`."""
        if not self._over:
            self._give_back()
            self._over = self._given_back = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.ack()


def set_done(error: Exception, done: int) -> None:
    """Set the `done` of an error of `put_many`: how many items were put."""
    error.__dict__["done"] = done


def checked_key(key: Hashable, queue_name: Hashable = None) -> Hashable:
    """Return `queue_name`, the older name of the argument, where it is given, otherwise `key`.

    Raises:
        ShoalTypeError: The key is not hashable.
    """
    key = key if queue_name is None else queue_name
    try:
        hash(key)
    except TypeError:
        raise refusal(key, key) from None
    return key


def checked_weight(value: Any, name: str = "weight", least: int = 0, most: int = _LARGEST) -> int:
    """Return a weight, or another number, as an integer.

    Raises:
        ShoalValueError: The value is not an integer, or is too small or too large.
    """
    try:
        weight = operator.index(value)
    except TypeError:
        raise ShoalValueError(f"{name}={value!r}: expected an integer") from None
    if not least <= weight <= most:
        expected = f"{least} or more" if weight < least else f"{most} or less"
        raise ShoalValueError(f"{name}={value!r}: expected {expected}")
    return weight


def checked_count(weights: int, items: int) -> None:
    """Check that there is a weight for each item.

    Raises:
        ShoalValueError: The numbers differ.
    """
    if weights != items:
        raise ShoalValueError(f"weights: expected {items}, one for each item, got {weights}")
