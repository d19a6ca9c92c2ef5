"""A node's mailbox: the host through which the workers of a node receive messages.

A queue belongs to one pair and to one incarnation of the receiver, its process: what was sent
to a worker that died is not received by the one that takes its name.
"""

import asyncio
from collections.abc import Hashable
from typing import NamedTuple

from shoal.process import is_alive, wait_for_exit
from shoal.transport.queue_host import Packed, QueueHost
from shoal.transport.queues import Outcome
from shoal.transport.wire import pack, unpack

__all__ = ["MailboxHost", "PairKey", "mailbox_name"]

_MAX_MESSAGES = 16
_MAX_BYTES = 64 * 1024 * 1024


class PairKey(NamedTuple):
    """The queue from one worker to another.

    Attributes:
        kind: Keeps the point to point messages and each broadcast apart.
        src: The sender's address.
        dst: The receiver's address.
        dst_pid: The receiver's process on the mailbox's node.
    """

    kind: str
    src: str
    dst: str
    dst_pid: int


class MailboxHost(QueueHost):
    """Holds the messages to the workers of its node, 16 or 64 MiB for each pair."""

    def __init__(self, name: str) -> None:
        super().__init__(name, _MAX_MESSAGES, _MAX_MESSAGES, _MAX_BYTES)
        self._receivers: dict[int, asyncio.Task[None]] = {}

    async def put(self, request: Packed) -> Packed:
        """Append a message, unless its receiver is dead: then GONE."""
        key = unpack(request)[0]
        if not self._has_receiver(PairKey(*key)):
            return pack((int(Outcome.GONE), None))
        return await super().put(request)

    async def put_many(self, request: Packed) -> Packed:
        """Append messages, none when their receiver is dead."""
        key = unpack(request)[0]
        if not self._has_receiver(PairKey(*key)):
            return pack((int(Outcome.OK), 0))
        return await super().put_many(request)

    async def watch(self, pid: int) -> None:
        """Return when a process of this node has ended."""
        await wait_for_exit(pid)

    def _has_receiver(self, key: Hashable) -> bool:
        if not isinstance(key, tuple):
            return False
        pid = PairKey(*key).dst_pid
        if not is_alive(pid):
            return False
        if pid not in self._receivers:
            task = asyncio.get_running_loop().create_task(self._forget_at_exit(pid))
            self._receivers[pid] = task
        return True

    async def _forget_at_exit(self, pid: int) -> None:
        """Free the messages to a receiver once it is dead; nobody else may take them."""
        await wait_for_exit(pid)
        del self._receivers[pid]
        for key in self._queues.active_keys():
            if isinstance(key, tuple) and PairKey(*key).dst_pid == pid:
                self._queues.drop(key)


def mailbox_name(node_rank: int) -> str:
    """Return the name of a node's mailbox actor."""
    return f"ShoalMailbox:{node_rank}"
