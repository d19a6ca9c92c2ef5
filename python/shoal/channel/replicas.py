"""The ways from this process to a channel's hosts, and which host has a key."""

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
"""Of so many keys a handle remembers the host."""


class Replicas:
    """The hosts of a channel, as this process reaches them: by memory, or by calls.

    Args:
        facts: The channel.
        namespace: The job's Ray namespace.
        handles: The hosts' handles, where they are known already.
    """

    def __init__(self, facts: Facts, namespace: str, handles: dict[int, Any] | None = None) -> None:
        self.facts = facts
        self.namespace = namespace
        self._handles = handles or {}
        self._ways: dict[int, Backend] = {}
        self._remote: dict[int, RemoteQueues] = {}
        self._routes: dict[Hashable, int] = {}
        self.transport = forced_transport
        """Says which transport is asked for."""
        self.direct: dict[Any, ShmQueue] = {}
        """The queues of this host that the core may use without asking."""

    def of(self, key: Hashable) -> Backend:
        """Return the way to the host of a key: decided once for a key, by host 0."""
        if self.facts.hosts == 1:
            return self.way(0)
        index = self._routes.get(key)
        if index is None:
            if len(self._routes) >= _MANY:
                self._routes.clear()  # host 0 says the same again
            index = self._routes[key] = self._route(key)
        return self.way(index)

    def _route(self, key: Hashable) -> int:
        try:
            return self._host(0).route(key)
        except TransportError:
            # A child that was forked has no calls, but it may see what host 0 has noted.
            way = self.way(0)
            index = way.noted_host(key) if isinstance(way, SharedQueues) else None
            if index is None:
                raise
            return index

    def way(self, index: int) -> Backend:
        """Return the way to a host.

        Raises:
            ChannelClosed: The channel is gone.
            TransportError: `SHOAL_TRANSPORT` asks for what is not possible.
        """
        way = self._ways.get(index)
        if way is None:
            # Of two threads that come first one wins.
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
        """Accept nothing more, and let the hosts end once they hold nothing, or `now`.

        Raises:
            ShoalError: What could not be done at a host, after what could be at the others.
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
            # A child that was forked has no calls; but a host notices that its memory is closed.
            if now or way is host:
                raise

    def hosts(self) -> Iterator[RemoteQueues]:
        """Yield all hosts, to be asked by calls."""
        for index in range(self.facts.hosts):
            yield self._host(index)
