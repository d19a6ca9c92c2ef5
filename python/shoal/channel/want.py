"""`Want`: which items a get asks for; `Taken`: the items of an asynchronous get."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from shoal.deadline import Deadline

__all__ = ["ONE", "Taken", "Want"]


class Want(NamedTuple):
    """The items that a get takes.

    Attributes:
        kind: One item, up to `amount` items, or a batch of the weight `amount`.
        amount: See `kind`.
        least: The weight that is enough for a batch after `linger`; None if the batch must be
            complete.
        linger: Seconds to wait for a complete batch; only with `least`.
        lease: Whether the items return unless they are acknowledged.
    """

    kind: Literal["one", "many", "batch"] = "one"
    amount: int = 1
    least: int | None = None
    linger: float = 0.0
    lease: bool = False

    def phases(self, deadline: Deadline) -> Iterator[tuple["Want", Deadline]]:
        """Yield the wants to wait for, one after the other, each with its deadline."""
        if self.least is not None and self.linger > 0:
            complete = self._replace(least=None)
            yield complete, Deadline(min(self.linger, deadline.remaining))
        yield self, deadline


ONE = Want()


def _nothing() -> None:
    """Do nothing; the default callback of `Taken`."""


@dataclass(slots=True)
class Taken:
    """The items of an asynchronous get, until the caller has its result.

    Attributes:
        value: The result.
        deliver: Called when the caller has the result.
        give_back: Called when no caller will have the result.
    """

    value: Any
    deliver: Callable[[], None] = _nothing
    give_back: Callable[[], None] = _nothing
