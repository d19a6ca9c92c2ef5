"""Messages of which a part does not lie in the queue: fetched when they are received."""

from typing import Any

from shoal._backend import WorkerAddress
from shoal.collective.message import BESIDE, Received, open_message, special_of
from shoal.collective.routes import Routes
from shoal.deadline import Deadline
from shoal.errors import ChannelNotFoundError, TransportError
from shoal.pickling import loads
from shoal.shm import Queue
from shoal.shm.payloads import PayloadRef, open_payload

__all__ = ["Parts", "open_beside"]


def open_beside(reference: PayloadRef, where: str) -> Any:
    """Rebuild a message that lies beside its queue.

    Raises:
        TransportError: It cannot be rebuilt in this process.
    """
    try:
        head, buffers = open_payload(reference)
    except ChannelNotFoundError as error:
        raise TransportError(f"{where}: {error}") from error
    try:
        return loads(head, buffers)
    except Exception as error:
        raise TransportError(
            f"{where}: the message cannot be rebuilt here: {type(error).__name__}: {error}"
        ) from error


class Parts:
    """What one worker receives from another beside the queue.

    Args:
        routes: The way to other workers.
        peer: The sender.
        what: Names the operation in messages.
    """

    def __init__(self, routes: Routes, peer: WorkerAddress, what: str) -> None:
        self._routes = routes
        self._where = f"{routes.name}: message from {peer.get_name()}"
        self.queue: Queue | None = None

    @property
    def by_frames(self) -> bool:
        """Whether the next message is announced by a frame."""
        return False

    def fetch(self, message: Any, deadline: Deadline, into: Any) -> Received:
        """Complete a message of the queue."""
        special = special_of(message)
        if special is None:
            return open_message(message)
        kind, parts = special
        if kind == BESIDE:
            return open_message(open_beside(parts[0], self._where))
        raise TransportError(f"{self._where}: an envelope of an unknown kind, {kind!r}")

    def next(self, deadline: Deadline, into: Any) -> Received:
        """Wait for the next frame, and receive its message."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what is held for the sender."""
