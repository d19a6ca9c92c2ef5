"""A node's mailbox: the host through which the workers of a node receive messages.

A queue belongs to one pair and to one incarnation of the receiver, its process: what was sent
to a worker that died is not received by the one that takes its name.
"""

import os
from collections.abc import Hashable
from typing import Any, NamedTuple

from shoal._ray import find_actor
from shoal.deadline import Deadline
from shoal.errors import NameTakenError
from shoal.manager import NodeManager
from shoal.transport.process import is_alive, wait_for_exit
from shoal.transport.queue_host import Packed, QueueHost
from shoal.transport.queues import Outcome
from shoal.transport.wire import pack, unpack

__all__ = ["PairKey", "forget_mailboxes", "mailbox"]

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

    async def put(self, request: Packed) -> Packed:
        """Append a message, unless its receiver is dead: then GONE."""
        key = unpack(request)[0]
        if not self._has_receiver(PairKey(*key)):
            self._forget_the_dead()
            return pack((int(Outcome.GONE), None))
        return await super().put(request)

    async def watch(self, pid: int) -> None:
        """Return when a process of this node has ended."""
        await wait_for_exit(pid)

    def _has_receiver(self, key: Hashable) -> bool:
        return isinstance(key, tuple) and is_alive(PairKey(*key).dst_pid)

    def _forget_the_dead(self) -> None:
        for key in self._queues.keys():
            if not self._has_receiver(key):
                self._queues.drop(key)


_known: dict[tuple[int, str, int], Any] = {}


def mailbox(node_rank: int, namespace: str, deadline: Deadline) -> Any:
    """Return the handle of a node's mailbox, which is started by whoever needs it first.

    Raises:
        ShoalTimeoutError: It did not start in time.
    """
    known = (os.getpid(), namespace, node_rank)
    handle = _known.get(known)
    if handle is not None:
        return handle
    name = f"ShoalMailbox:{node_rank}"
    handle = find_actor(name, namespace)
    if handle is None:
        try:
            handle = NodeManager.get_proxy().start_host(
                name, MailboxHost, (name,), {}, node_rank, timeout=deadline.remaining
            )
        except NameTakenError:  # another worker of the node was faster
            handle = find_actor(name, namespace)
    _known[known] = handle
    return handle


def forget_mailboxes() -> None:
    """Look mailboxes up again: one of them has died, or the job has."""
    _known.clear()
