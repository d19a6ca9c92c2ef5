"""Mailboxes: one channel for each node, through which its workers receive from other nodes.

A sender puts by calling the channel's actor, which runs on the receiver's node; the receiver gets
from shared memory. A mailbox is made when the first worker of another node needs it, and lives as
long as the job.
"""

import contextlib
import threading
from functools import partial
from typing import Any

import ray

from shoal._ray import fetch
from shoal.channel.create import connect, create
from shoal.channel.routes import Routes
from shoal.deadline import Deadline
from shoal.errors import ChannelNotFoundError, ShoalError
from shoal.queues.settings import ChannelSettings
from shoal.queues.wait import Queues
from shoal.transport.choice import forced_transport

__all__ = ["MOST_MESSAGES", "Mailboxes"]

MOST_MESSAGES = 16
"""Maximum number of sent but unreceived messages between two workers; further sends wait."""

_START_S = 60.0


class Mailboxes:
    """The connections of this process to the mailboxes of the job's nodes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, Routes] = {}

    def queues(self, node_rank: int, key: str) -> Queues:
        """Return the queues of a node's mailbox; starts the mailbox if there is none."""
        return self._open(node_rank).for_key(key)

    def direct(self, node_rank: int) -> dict[Any, Any]:
        """Return the queues of a mailbox from which this process can get directly, by key."""
        return self._open(node_rank).direct["get"]

    def handle(self, node_rank: int) -> Any:
        """Return the handle of the actor of a node's mailbox."""
        return next(iter(self._open(node_rank).actors())).handle

    def forget(self, node_rank: int) -> bool:
        """Connect to a node's mailbox again; return whether it answers."""
        with self._lock:
            self._known.pop(node_rank, None)
        with contextlib.suppress(ShoalError, ray.exceptions.RayError):
            fetch(self.handle(node_rank).ping.remote(), 2.0)
            return True
        return False

    def _open(self, node_rank: int) -> Routes:
        with self._lock:
            found = self._known.get(node_rank)
            if found is None:
                found = self._known[node_rank] = self._connect(node_rank)
            return found

    @staticmethod
    def _connect(node_rank: int) -> Routes:
        settings = ChannelSettings(
            f"shoal-messages-{node_rank}",
            maxsize=MOST_MESSAGES,
            capacity=MOST_MESSAGES,
            is_internal=True,
        )
        try:
            found = connect(settings.name, None)[1]
        except ChannelNotFoundError:
            start = partial(create, settings, distributed=False, shared=True)
            found = start(node_rank=node_rank, deadline=Deadline(_START_S))[1]
        found.transport = _forced
        found.network = None  # the messages are held themselves, not their mailbox
        return found


def _forced() -> str | None:
    """Return the transport that `SHOAL_TRANSPORT` sets for objects; `torch` is for tensors only."""
    return "lane" if forced_transport() == "lane" else None
