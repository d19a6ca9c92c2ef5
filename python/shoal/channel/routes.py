"""How this process reaches a channel's actors (shared memory or a lane), and which one has a key."""

import logging
from collections.abc import Hashable, Iterator
from typing import Any

from shoal.channel.delayed import DelayedQueues
from shoal.channel.remote import RemoteQueues
from shoal.errors import (
    ChannelClosed,
    ChannelError,
    ChannelNotFoundError,
    ShoalError,
    TransportError,
)
from shoal.job_end import tie_to_job
from shoal.net_emulation import Endpoint, emulated_network
from shoal.queues.order import Direct
from shoal.queues.protocol import Queues
from shoal.queues.settings import ChannelSettings
from shoal.queues.shared import SharedQueues
from shoal.queues.wait import JOB_HAS_ENDED
from shoal.shm import Session, joined
from shoal.transport.choice import forced_transport

__all__ = ["Routes"]

_log = logging.getLogger("shoal")

_MANY = 4096
"""Maximum number of keys whose actor a handle remembers."""


class Routes:
    """The queues of a channel in this process: one per actor, by shared memory or over a lane.

    Args:
        settings: The channel.
        namespace: The job's Ray namespace.
        handles: The actors' handles by index, where they are known already.
    """

    def __init__(
        self, settings: ChannelSettings, namespace: str, handles: dict[int, Any] | None = None
    ) -> None:
        self.settings = settings
        self.namespace = namespace
        self._handles = handles or {}
        self._queues: dict[int, Queues] = {}
        self._remote: dict[int, RemoteQueues] = {}
        self._routes: dict[Hashable, int] = {}
        self.transport = forced_transport
        """Returns the transport that `SHOAL_TRANSPORT` forces."""
        self.network = emulated_network()
        """The emulated links of the job; None if there are none, or not for this channel."""
        self._emulated: dict[int, Queues] = {}
        self.direct: Direct = {"put": {}, "get": {}}
        """Queues in this node's memory that the core may use directly.

        The handle replaces these dicts by those that its class of the core looks into."""
        self._has_ended = False
        tie_to_job(self, Routes._end_with_job)

    def _end_with_job(self) -> None:
        self._has_ended = True
        for queues in self.direct.values():
            queues.clear()

    def for_key(self, key: Hashable) -> Queues:
        """Return the queues of a key; actor 0 decides once for each key which actor has it."""
        self._check_job()
        if self.settings.num_actors == 1:
            index: int | None = 0
        else:
            index = self._routes.get(key)
        if index is None:
            if len(self._routes) >= _MANY:
                self._routes.clear()  # actor 0 gives the same answers again
            index = self._routes[key] = self._route(key)
        return self.queues_of(index) if self.network is None else self._behind_links(index)

    def _behind_links(self, index: int) -> Queues:
        """Return the queues of an actor as emulated links lead to them."""
        queues = self._emulated.get(index)
        if queues is None:
            queues, endpoint = self.queues_of(index), self._endpoint(index)
            if self.network is not None and endpoint is not None:
                queues = DelayedQueues(queues, self.network, self.settings, endpoint)
                self.network.note(self.settings.name, endpoint)
            queues = self._emulated.setdefault(index, queues)
        return queues

    def _endpoint(self, index: int) -> Endpoint | None:
        if self.network is None:
            return None
        ranks = self.settings.node_ranks
        node_rank = ranks[index] if index < len(ranks) else -1
        return self.network.channel(self.settings.name, index, node_rank)

    def _route(self, key: Hashable) -> int:
        try:
            return self._actor(0).route(key)
        except TransportError:
            # A forked child cannot call actors, but it may read the notes of actor 0 in memory.
            queues = self.queues_of(0)
            index = queues.noted_actor(key) if isinstance(queues, SharedQueues) else None
            if index is None:
                raise
            return index

    def queues_of(self, index: int) -> Queues:
        """Return the queues of an actor.

        Raises:
            ChannelClosed: The channel is gone.
            TransportError: `SHOAL_TRANSPORT` forces a transport that cannot reach the actor.
        """
        queues = self._queues.get(index)
        if queues is None:
            # Two threads may come here at once: both use the queues that were set first.
            queues = self._queues.setdefault(index, self._shared(index) or self._actor(index))
        return queues

    def _shared(self, index: int) -> SharedQueues | None:
        forced = self.transport()
        if forced == "lane":
            return None
        location = self.settings.locations[index] if index < len(self.settings.locations) else None
        if location is not None and location.is_here():
            try:
                # Behind an emulated link no queue may be used directly.
                direct = self.direct if self._endpoint(index) is None else None
                session = joined(location.token)
                # Waits may go on when this handle is dropped; closing the session ends them.
                tie_to_job(session, Session.close)
                return SharedQueues(self.settings, session, direct)
            except ChannelNotFoundError as error:
                raise ChannelClosed(
                    f"the channel {self.settings.name!r} is gone: {error}"
                ) from None
            except ChannelError as error:
                if forced == "shm":
                    raise
                _log.warning(
                    "the channel %r is used over a lane to its actor, which is slower: %s",
                    self.settings.name,
                    error,
                )
                return None
        if location is not None and forced == "shm" and location.is_gone():
            raise ChannelClosed(
                f"the channel {self.settings.name!r} is gone: its memory was removed"
            )
        if forced in ("shm", "torch"):
            raise TransportError(
                f"SHOAL_TRANSPORT={forced}: the channel {self.settings.name!r} is on another node, "
                "which can be reached by lane only"
            )
        return None

    def _actor(self, index: int) -> RemoteQueues:
        actor = self._remote.get(index)
        if actor is None:
            handle = self._handles.get(index)
            actor = self._remote[index] = RemoteQueues(self.settings, self.namespace, index, handle)
        return actor

    def end(self, *, now: bool) -> None:
        """Accept no more items, and have the actors end once they hold nothing, or `now`.

        Raises:
            ShoalError: An actor could not be ended; raised after all actors were tried.
        """
        if self._has_ended:
            return  # with its job
        failed: list[ShoalError] = []
        for index in range(self.settings.num_actors):
            try:
                self._end(index, now=now)
            except ChannelClosed:
                pass
            except ShoalError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _end(self, index: int, *, now: bool) -> None:
        queues, actor = self.queues_of(index), self._actor(index)
        if queues is not actor:
            queues.close()
        try:
            actor.end(now=now)
        except TransportError:
            # A forked child cannot call actors; but an actor notices that its memory is closed.
            if now or queues is actor:
                raise

    def _check_job(self) -> None:
        if self._has_ended:
            raise ChannelClosed(f"the channel {self.settings.name!r} is gone: {JOB_HAS_ENDED}")

    def actors(self) -> Iterator[RemoteQueues]:
        """Yield the queues of all actors, as processes of other nodes have them."""
        for index in range(self.settings.num_actors):
            yield self._actor(index)
