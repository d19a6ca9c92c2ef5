"""`PendingReceive`: an asynchronous receive of a message from another worker."""

from collections.abc import Callable
from functools import partial
from typing import Any

from shoal.collective.message import Accept, Received
from shoal.deadline import Deadline
from shoal.queues.order import Sent

__all__ = ["PendingReceive", "Then"]

Then = Callable[[Received], Any]
"""Makes the result of a receive from its message."""


class PendingReceive(Sent):
    """An asynchronous receive, and the future of its result.

    It is `sent` from when its message begins to arrive in the caller's tensor; then it cannot be
    cancelled any more.

    Args:
        take: Takes the message that it gets from those that are kept, or raises `NotYet`.
        accept: Raises if the receiver does not expect the message, which then stays.
        then: Makes the result from the message.
        deadline: Its deadline.
        too_late: Makes the error for that.
        into: The tensor into which values may be received directly.
    """

    def __init__(
        self,
        take: "Callable[[PendingReceive], Received]",
        accept: Accept,
        then: Then,
        deadline: Deadline,
        too_late: Callable[[Deadline], BaseException],
        into: Any,
    ) -> None:
        super().__init__(deadline, lambda _: too_late(deadline))
        self._attempt = partial(take, self)
        self._finish = then
        self.accept = accept
        self.into = into
        self.seen: set[int] = set()
        self.taken: tuple[int, Received] | None = None
        self.is_given_up = False  # while its message was arriving

    def claim(self) -> bool:
        """Make the receive uncancellable, to give it a message; return False if it is over."""
        with self._condition:
            return self.send() and self.set_running_or_notify_cancel()

    def set_running_or_notify_cancel(self) -> bool:
        """Same as for every future, for one that may be claimed."""
        return self.running() or super().set_running_or_notify_cancel()
