"""How this process reaches a channel's actors (shared memory or calls), and which one has a key."""

import logging
from collections.abc import Hashable, Iterator
from typing import Any

from shoal._backend import ShmQueue
from shoal.channel.backend import Backend
from shoal.channel.facts import Facts
from shoal.channel.remote import RemoteQueues
from shoal.channel.shared import SharedQueues
from shoal.errors import (
    ChannelClosed,
    ChannelError,
    ChannelNotFoundError,
    ShoalError,
    TransportError,
)
from shoal.shm import joined
from shoal.transport.choice import forced_transport

__all__ = ["Replicas"]

_log = logging.getLogger("shoal")

_MANY = 4096
"""Maximum number of keys whose actor a handle remembers."""


class Replicas:
    """The backends of a channel in this process: one per actor, by shared memory or by calls.

    Args:
        facts: The channel.
        namespace: The job's Ray namespace.
        handles: The actors' handles by index, where they are known already.
    """

    def __init__(self, facts: Facts, namespace: str, handles: dict[int, Any] | None = None) -> None:
        self.facts = facts
        self.namespace = namespace
        self._handles = handles or {}
        self._ways: dict[int, Backend] = {}
        self._remote: dict[int, RemoteQueues] = {}
        self._routes: dict[Hashable, int] = {}
        self.transport = forced_transport
        """Returns the transport that `SHOAL_TRANSPORT` forces."""
        self.direct: dict[Any, ShmQueue] = {}
        """Queues in this node's memory that the core may use directly, by key.

        The handle replaces this dict by the one that its class of the core looks into."""

    def of(self, key: Hashable) -> Backend:
        """Return the backend of a key; actor 0 decides once for each key which actor has it."""
        if self.facts.hosts == 1:
            return self.way(0)
        index = self._routes.get(key)
        if index is None:
            if len(self._routes) >= _MANY:
                self._routes.clear()  # actor 0 gives the same answers again
            index = self._routes[key] = self._route(key)
        return self.way(index)

    def _route(self, key: Hashable) -> int:
        try:
            return self._host(0).route(key)
        except TransportError:
            # A forked child cannot call actors, but it may read the notes of actor 0 in memory.
            way = self.way(0)
            index = way.noted_host(key) if isinstance(way, SharedQueues) else None
            if index is None:
                raise
            return index

    def way(self, index: int) -> Backend:
        """Return the backend of an actor.

        Raises:
            ChannelClosed: The channel is gone.
            TransportError: `SHOAL_TRANSPORT` forces a transport that cannot reach the actor.
        """
        way = self._ways.get(index)
        if way is None:
            # Two threads may come here at once: both use the backend that was set first.
            way = self._ways.setdefault(index, self._shared(index) or self._host(index))
        return way

    def _shared(self, index: int) -> SharedQueues | None:
        forced = self.transport()
        if forced == "ray":
            return None
        place = self.facts.places[index] if index < len(self.facts.places) else None
        if place is not None and place.is_here():
            try:
                return SharedQueues(self.facts, joined(place.token), self.direct)
            except ChannelNotFoundError as error:
                raise ChannelClosed(f"the channel {self.facts.name!r} is gone: {error}") from None
            except ChannelError as error:
                if forced == "shm":
                    raise
                _log.warning(
                    "the channel %r is used by calls to its host, which are slower: %s",
                    self.facts.name,
                    error,
                )
                return None
        if place is not None and forced == "shm" and place.is_gone():
            raise ChannelClosed(f"the channel {self.facts.name!r} is gone: its memory was removed")
        if forced in ("shm", "torch"):
            raise TransportError(
                f"SHOAL_TRANSPORT={forced}: the channel {self.facts.name!r} is on another node, "
                "which can be reached by ray only"
            )
        return None

    def _host(self, index: int) -> RemoteQueues:
        host = self._remote.get(index)
        if host is None:
            handle = self._handles.get(index)
            host = self._remote[index] = RemoteQueues(self.facts, self.namespace, index, handle)
        return host

    def end(self, *, now: bool) -> None:
        """Accept no more items, and have the actors end once they hold nothing, or `now`.

        Raises:
            ShoalError: An actor could not be ended; raised after all actors were tried.
        """
        failed: list[ShoalError] = []
        for index in range(self.facts.hosts):
            try:
                self._end(index, now=now)
            except ChannelClosed:
                pass
            except ShoalError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _end(self, index: int, *, now: bool) -> None:
        way, host = self.way(index), self._host(index)
        if way is not host:
            way.close()
        try:
            host.end(now=now)
        except TransportError:
            # A forked child cannot call actors; but an actor notices that its memory is closed.
            if now or way is host:
                raise

    def hosts(self) -> Iterator[RemoteQueues]:
        """Yield the queues of all actors, to be used by calls."""
        for index in range(self.facts.hosts):
            yield self._host(index)
