"""What a get asks for, and what became of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from shoal.deadline import Deadline

__all__ = ["ONE", "Taken", "Want"]


class Want(NamedTuple):
    """How much a get takes.

    Attributes:
        kind: One item, up to `amount` items, or a batch of the weight `amount`.
        amount: See `kind`.
        least: The weight from which on a batch will do once it has waited for `linger`; None
            where it must be complete.
        linger: Seconds; with `least` only.
        lease: Whether the items come back unless they are acknowledged.
    """

    kind: Literal["one", "many", "batch"] = "one"
    amount: int = 1
    least: int | None = None
    linger: float = 0.0
    lease: bool = False

    def phases(self, deadline: Deadline) -> Iterator[tuple["Want", Deadline]]:
        """Yield what to wait for, one after the other, and until when."""
        if self.least is not None and self.linger > 0:
            complete = self._replace(least=None)
            yield complete, Deadline(min(self.linger, deadline.remaining))
        yield self, deadline


ONE = Want()


def _nothing() -> None:
    """Stand for what has not to be done."""


@dataclass(slots=True)
class Taken:
    """What an asynchronous get took, until its result is with the one who asked.

    Attributes:
        value: The result.
        deliver: Called when it is.
        give_back: Called when nobody will have it.
    """

    value: Any
    deliver: Callable[[], None] = _nothing
    give_back: Callable[[], None] = _nothing
