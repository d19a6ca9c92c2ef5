"""Messages that a worker has received and not yet answered, recorded in its `batch_router`.

The dict belongs to the user's class; by tag, it holds the indices of messages as texts. The texts
recorded here also have the stream of the message, and a flag that its answer is under way.
"""

import threading
from collections.abc import Sequence
from typing import Any, Self

from shoal.worker.routing import normalize_route_key
from shoal.worker.routing.decoupled_plans import tag_of_message

__all__ = ["UnansweredMessage", "UnansweredMessages"]


class UnansweredMessage(str):
    """A received message that has no answer yet: its index, as text.

    Attributes:
        stream: The normalised route key of the call that received it.
        answering: Whether an answer to it is under way.
    """

    __slots__ = ("answering", "stream")
    answering: bool
    stream: str

    def __new__(cls, index: str, stream: str = "") -> Self:
        """Make the text; `answering` is False."""
        self = super().__new__(cls, index)
        self.stream = stream
        self.answering = False
        return self


class UnansweredMessages:
    """The messages of one stream that have no answer yet.

    Args:
        router: The worker's `batch_router`.
        lock: Held while the router changes.
        route_key: The route key of the stream.
    """

    def __init__(
        self, router: dict[str, list[str]], lock: threading.Lock, route_key: object
    ) -> None:
        self._router = router
        self._lock = lock
        self._stream = normalize_route_key(route_key)

    def answers(self, tag: str) -> bool:
        """Whether the worker answers messages of a tag."""
        return tag in self._router

    def open(self, tag: str) -> list[UnansweredMessage]:
        """Return the messages of a tag that have no answer yet, oldest first."""
        with self._lock:
            recorded = self._router.get(tag, [])
            for at, index in enumerate(recorded):
                if not isinstance(index, UnansweredMessage):  # written by the user, for any stream
                    recorded[at] = UnansweredMessage(index, self._stream)
            return [
                message
                for message in recorded
                if isinstance(message, UnansweredMessage)
                and message.stream == self._stream
                and not message.answering
            ]

    def reserve(self, messages: Sequence[UnansweredMessage]) -> None:
        """Mark messages whose answers are under way; they stay recorded."""
        with self._lock:
            for message in messages:
                message.answering = True

    def settle(self, tag: str, message: UnansweredMessage, *, sent: bool) -> None:
        """Remove a message whose answer was sent; if it was not, allow another answer."""
        with self._lock:
            if sent:
                # By identity: two messages may have equal indices.
                recorded = self._router.get(tag, [])
                recorded[:] = [index for index in recorded if index is not message]
            else:
                message.answering = False

    def record(self, indices: Sequence[str], tag: Any) -> None:
        """Record messages that a call for a tag received, each under the tag of its own index."""
        with self._lock:
            for index in indices:
                messages = self._router.setdefault(tag_of_message(index, tag), [])
                messages.append(UnansweredMessage(index, self._stream))
