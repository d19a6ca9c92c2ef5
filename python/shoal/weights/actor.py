"""`WeightsWorker`: the Ray actor that makes the memory of weights on one node, and removes it."""

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from shoal.channel.actor import ChannelWorker, ask_manager
from shoal.channel.remote import RemoteQueues
from shoal.deadline import Deadline
from shoal.errors import ShoalError
from shoal.manager import NodeManager
from shoal.manager.base import required_namespace
from shoal.queues.settings import ChannelSettings
from shoal.queues.shared import SessionQueues
from shoal.shm import Queue
from shoal.weights import timing
from shoal.weights.following import follow, serve, source_of
from shoal.weights.store import Store

__all__ = ["PREFIX", "WeightsSettings", "WeightsWorker", "home_of"]

PREFIX = "weights/"
"""The name of the actors begins with it, so that a channel may have the name of weights."""

_MANY = 64
"""Maximum number of queues that stay open."""

_SKIPPED = 2**16
"""Epochs that are left out after a loss of memory: as many may have begun since the last note."""


@dataclass(frozen=True)
class WeightsSettings(ChannelSettings):
    """Description of weights: those of the channel through which they are found, and their bounds.

    Attributes:
        keep: Number of versions that stay.
        version_bytes: Maximum bytes of all versions; None for no bound.
        home: The index of the actor on whose node versions are published; None for the node of the
            process that publishes first.
        push: Whether each version is sent to all nodes at once, not only to those with readers.
        device_memory: Whether tensors of GPUs stay in the memory of these, for readers of one node.
        unique: A text that no other weights have, also of the same name.
    """

    is_internal: bool = True
    keep: int = 2
    version_bytes: int | None = None
    home: int | None = 0
    push: bool = False
    device_memory: bool = False
    unique: str = ""

    def differing(self, wanted: ChannelSettings) -> list[str]:
        """Describe each argument that differs from those of wanted weights."""
        pairs = {"keep": "keep", "version_bytes": "max_bytes", "push": "push"}
        pairs["device_memory"] = "device_memory"
        return [
            f"{shown}={getattr(self, name)!r} (asked for: {getattr(wanted, name, None)!r})"
            for name, shown in pairs.items()
            if getattr(self, name) != getattr(wanted, name, None)
        ]


def home_of(settings: WeightsSettings, claimed_by: int | None = None) -> int | None:
    """Return the index of the home; None if there is none yet.

    Args:
        settings: The weights.
        claimed_by: The index that becomes the home if there is none; None for none.
    """
    if settings.home is not None:
        return settings.home
    note = f"home of {settings.name} {settings.unique}"
    if claimed_by is None:
        found: int | None = ask_manager("noted", note)
        return found
    home: int = ask_manager("note_once", note, claimed_by)
    return home


class WeightsWorker(ChannelWorker):
    """Makes the folder of weights, and removes what dead processes leave in it.

    Versions that are published on its node do not go through the actor: processes publish into the
    folder and read there. On another node than the publisher's, the actor receives the versions for
    all processes of its node.
    """

    def __init__(
        self, name: str, settings: WeightsSettings, namespace: str, *, log: str = ""
    ) -> None:
        super().__init__(name, settings, namespace, log=log)
        self._epoch_note, self._noted_epoch = f"{name}, epoch", 0
        least = 0
        if self._former is not None:  # a page that is not there was lost with all versions
            least = (ask_manager("noted", self._epoch_note) or 0) + _SKIPPED
        if settings.num_actors > 1:
            index = int(name.rpartition(":")[2])
            if home_of(settings) not in (None, index):
                least = 0  # no version is published here
        with contextlib.suppress(FileExistsError):
            Store.create(self._session.token, settings.keep, settings.version_bytes, least)
        shown = settings.name.removeprefix(PREFIX)
        self._store = Store.of(self._session.token, f"the weights {shown!r}", lambda: None)
        if settings.num_actors > 1 and not settings.device_memory:
            self._weights, self._index = settings, int(name.rpartition(":")[2])
            self._store.follows = True
            if home_of(settings) == self._index:
                self._store.control.make_home()
            for target in (self._serve, self._follow):
                threading.Thread(target=target, name="shoal-weights", daemon=True).start()

    def _serve(self) -> None:
        queues = SessionQueues(self._settings, self._session)
        serve(self._store, OwnQueues(queues))
        self._session.close_queues()  # else other nodes put on, and no process takes it

    def _follow(self) -> None:
        """Follow the home, once there is one, if that is another node."""
        settings, store = self._weights, self._store
        while store.follows and store.control.is_there():
            home = None
            with contextlib.suppress(Exception):  # the manager ends first at the end of a job
                home = home_of(settings)
            if home is None:
                # No event tells this actor that a process of another node publishes first.
                time.sleep(timing.TIMING.claim_s)
                continue
            if home == self._index:
                store.control.make_home()  # the process that claimed it may have died
                break
            source = source_of(self._index, home, settings.num_actors)
            sources = [
                RemoteQueues(settings, required_namespace(), index)
                for index in dict.fromkeys((source, home))
            ]
            follow(store, sources, f"to {self._index}", always=settings.push)
            break

    async def close_weights(self, reason: str) -> None:
        """End all waits on this node."""
        self._store.close(reason)

    def _look_around(self) -> None:
        super()._look_around()
        with contextlib.suppress(ShoalError):
            self._note_epoch()
            self._store.sweep()

    def _note_epoch(self) -> None:
        """Tell the job's manager the newest epoch, in case that this memory is lost."""
        newest = self._store.control.newest
        if newest is not None and newest.epoch > self._noted_epoch:
            self._noted_epoch = newest.epoch
            NodeManager.get_proxy().actor.note.remote(self._epoch_note, newest.epoch)


class OwnQueues:
    """The queues of the actor's own session, with the methods of those of another node."""

    def __init__(self, queues: SessionQueues) -> None:
        self._queues = queues
        self._open: dict[str, Queue] = {}

    def _queue(self, key: str) -> Queue:
        if len(self._open) >= _MANY:
            self._open.clear()
        return self._open.setdefault(key, self._queues.open(key))

    def put(self, key: str, item: Any, weight: int, deadline: Deadline | None) -> None:
        """Put an item."""
        del weight
        self._queue(key).put(item, 0, 0.0 if deadline is None else deadline.remaining)

    def take(self, key: str, want: Any, deadline: Deadline | None) -> Any:
        """Take an item."""
        del want
        return self._queue(key).get(0.0 if deadline is None else deadline.remaining)
