"""What a channel makes of arguments and outcomes: values, or errors that name the channel."""

import logging
import operator
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from shoal.channel.backend import Got
from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelEmpty,
    ChannelFull,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.transport.queues import Outcome

__all__ = ["Verdicts", "checked_key", "checked_weight"]

_log = logging.getLogger("shoal")
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The meaning of the outcomes of one operation.

    Attributes:
        name: The channel's name.
        facts: How it was made: `maxsize` and `capacity`.
        key: The operation's key.
        deadline: The operation's deadline, None when it does not wait.
    """

    name: str
    facts: dict[str, Any]
    key: Hashable
    deadline: Deadline | None

    def put(self, outcome: Outcome) -> None:
        """Raise what the outcome of a put stands for.

        Raises:
            ChannelFull: There was no room and the put did not wait.
            ChannelClosed: The channel was closed.
            ShoalTimeoutError: There was no room in time.
        """
        if outcome is Outcome.OK:
            return
        if outcome is Outcome.NEAR_CAPACITY:
            self._warn_once()
            return
        self._raise_if_over(outcome, "put: no room")
        raise ChannelFull(f"{self._where()}: it holds all it may ({self._bound()} items)")

    def one(self, outcome: Outcome, items: Got) -> Any:
        """Return the item of a get; the errors are as for `batch`."""
        return self.batch(outcome, items)[0]

    def batch(self, outcome: Outcome, items: Got) -> list[Any]:
        """Return the items of a get.

        Raises:
            ChannelEmpty: There was none and the get did not wait.
            ChannelClosed: The channel was closed and there was none.
            ShoalTimeoutError: There was none in time, or not enough.
        """
        if items:
            return [item.item for item in items]
        self._raise_if_over(outcome, "get: no item")
        raise ChannelEmpty(f"{self._where()}: it holds nothing")

    def _where(self) -> str:
        return f"{describe_self()}: the channel {self.name!r}, key {self.key!r}"

    def _raise_if_over(self, outcome: Outcome, what: str) -> None:
        if outcome is Outcome.TIMEOUT and self.deadline is not None:
            limit = self.deadline.timeout
            raise ShoalTimeoutError(f"{self._where()}: {what} within {limit:g} s")
        if outcome in (Outcome.CLOSED, Outcome.CANCELLED, Outcome.GONE):
            raise ChannelClosed(f"{self._where()}: it was closed")

    def _bound(self) -> int:
        return int(self.facts["maxsize"] or self.facts["capacity"])

    def _warn_once(self) -> None:
        if self.name not in _warned:
            _warned.add(self.name)
            _log.warning(
                "%s: it holds more than 80 %% of the %d items a key without maxsize may hold; "
                "then puts will wait",
                self._where(),
                self._bound(),
            )


def checked_key(key: Hashable, queue_name: Hashable) -> Hashable:
    """Return the key that a caller means.

    Raises:
        ShoalTypeError: It is not hashable.
        ShoalValueError: Its class exists in this process only.
    """
    key = key if queue_name is None else queue_name
    try:
        hash(key)
    except TypeError:
        raise ShoalTypeError(f"key={key!r}: expected something hashable") from None
    if type(key).__module__ == "__main__":
        # Another process would rebuild the class, and its instances would not be equal to ours.
        raise ShoalValueError(
            f"key={key!r}: the class {type(key).__qualname__} is defined in the script that runs; "
            "move it into a module, or use a tuple as the key"
        )
    return key


def checked_weight(value: Any, name: str = "weight") -> int:
    """Return a weight as an integer.

    Raises:
        ShoalValueError: It is none, or negative.
    """
    try:
        weight = operator.index(value)
    except TypeError:
        raise ShoalValueError(f"{name}={value!r}: expected an integer") from None
    if weight < 0:
        raise ShoalValueError(f"{name}={value!r}: expected 0 or more")
    return weight
