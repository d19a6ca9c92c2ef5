"""`ServerState`: the state that all connections of a server use."""

import os
from typing import Final

from shoal._pure.lane.streams import Leases, Lent, Streams
from shoal._pure.shm.queue import ShmQueue
from shoal._pure.shm.session import ShmSession

__all__ = ["ServerState"]

_LEASE_S: Final = 12.0
"""Seconds that a lease is kept after its holder was heard of."""
_MANY: Final = 1024
"""Maximum number of queues that stay open."""


class ServerState:
    """The state that all connections of a server use.

    Args:
        session: The session.

    Attributes:
        epoch: A random number of this server.
        ends: Whether the server ends.
        lent: Counts the messages that clients have.
        streams: The streams of requests.
        leases: The leases of clients.
    """

    def __init__(self, session: ShmSession) -> None:
        self._session = session
        self.epoch = int.from_bytes(os.urandom(8), "little") or 1
        self.ends = False
        self.lent = Lent()
        self.streams = Streams(self.lent)
        self.leases = Leases(self.lent, _LEASE_S)
        self._queues: dict[bytes, ShmQueue] = {}

    def queue(self, key: bytes, maxsize: int | None, max_bytes: int | None) -> ShmQueue:
        """Return the queue of a key.

        Raises:
            ChannelExistsError: It has other bounds.
        """
        queue = self._queues.get(key)
        if (
            queue is None
            or maxsize not in (None, queue.maxsize)
            or max_bytes not in (None, queue.max_bytes)
        ):
            queue = ShmQueue(self._session, key, maxsize, max_bytes, "the queue", parcels=True)
            if len(self._queues) >= _MANY:
                self._queues.clear()
            self._queues[key] = queue
        return queue

    def forget_queue(self, key: bytes) -> None:
        """Do not keep a queue open, which is closed."""
        self._queues.pop(key, None)
