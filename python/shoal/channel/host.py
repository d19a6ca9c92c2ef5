"""The actor behind a channel."""

from collections.abc import Hashable
from typing import Any

from shoal.transport.queue_host import Packed, QueueHost
from shoal.transport.queues import CAPACITY, Outcome
from shoal.transport.wire import pack, unpack

__all__ = ["ChannelWorker"]


class ChannelWorker(QueueHost):
    """Holds a channel's items, or those of some keys where the channel is distributed.

    Args:
        name: The actor's name.
        maxsize: Items per key, 0 for `capacity`.
        capacity: The bound of a key without `maxsize`.
        hosts: How many hosts the channel has.
    """

    def __init__(
        self, name: str, maxsize: int = 0, capacity: int = CAPACITY, hosts: int = 1
    ) -> None:
        super().__init__(name, maxsize, capacity)
        self._facts = {"maxsize": maxsize, "capacity": capacity, "hosts": hosts}
        self._replicas: dict[Hashable, int] = {}

    async def shoal_channel_facts(self) -> dict[str, Any]:
        """Tell how the channel was made, and whether it is closed."""
        closed = self._queues.closed
        return {**self._facts, "closed": closed, "ending": closed and self._queues.empty}

    async def ensure_key_replica(self, key: Hashable, src_node_rank: int = -1) -> int:
        """Return which host has a key: that of the node which used it first, for ever."""
        known = self._replicas.get(key)
        if known is None:
            in_range = 0 <= src_node_rank < self._facts["hosts"]
            known = self._replicas[key] = src_node_rank if in_range else 0
        return known

    async def route(self, request: Packed) -> Packed:
        """Do the same for a packed (key, node rank)."""
        key, node_rank = unpack(request)
        return pack((int(Outcome.OK), await self.ensure_key_replica(key, node_rank)))
