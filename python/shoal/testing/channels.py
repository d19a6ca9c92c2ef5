"""The channels of a local cluster, by name; items are pickled on the way, as between processes."""

import threading
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

from shoal.channel.create import check_same, not_found
from shoal.channel.routes import DelayedQueues, Routes
from shoal.context import current, describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelClosed,
    ChannelDecodeError,
    ChannelExistsError,
    ShoalValueError,
)
from shoal.pickling import dumps, loads
from shoal.queues.local import LocalQueues
from shoal.queues.settings import ChannelSettings
from shoal.queues.wait import Queues
from shoal.shm import Session

__all__ = ["LocalChannels"]


class _Pickled:
    """An item on its way: its pickle, and a copy of the buffers beside it."""

    def __init__(self, item: Any) -> None:
        self._head, buffers = dumps(item)
        self._buffers = [bytes(buffer) for buffer in buffers]
        self.nbytes = len(self._head) + sum(map(len, self._buffers))

    def open(self) -> Any:
        # Writable copies, so that each receiver may change what it gets.
        return loads(self._head, [bytearray(buffer) for buffer in self._buffers])


def _as_pickled(item: Any, _: Hashable = None) -> _Pickled:
    return item if isinstance(item, _Pickled) else _Pickled(item)


def _queues(settings: ChannelSettings) -> LocalQueues:
    """Return the queues of a channel; unlike those of a `local=True` channel, they copy the items."""

    def opened(item: _Pickled, key: Hashable) -> Any:
        try:
            return item.open()
        except Exception as error:
            raise ChannelDecodeError(
                f"an item of {settings.shown(key)} cannot be rebuilt: "
                f"{type(error).__name__}: {error}"
            ) from error

    return LocalQueues(settings, _as_pickled, opened)


class _Routes(Routes):
    """The way to a channel of a local cluster: the same queues for all keys and ranks."""

    def __init__(self, settings: ChannelSettings, queues: LocalQueues) -> None:
        super().__init__(settings, "")
        self.queues = queues
        self._memory: Session | None = None
        self._reached: Queues = queues
        endpoint = self._endpoint(0)
        if self.network is not None and endpoint is not None:
            self._reached = DelayedQueues(queues, self.network, settings, endpoint, _as_pickled)
            self.network.note(settings.name, endpoint)

    def for_key(self, key: Hashable) -> Queues:
        """Return the queues.

        Raises:
            ChannelClosed: The cluster has ended.
        """
        del key
        self._check_job()
        return self._reached

    def queues_of(self, index: int) -> LocalQueues:
        """Return the queues."""
        del index
        return self.queues

    def end(self, *, now: bool) -> None:
        """Accept nothing more; throw away what there is if `now`."""
        if now:
            self.queues.delete()
        else:
            self.queues.close()
        if self._memory is not None:
            self._memory.close()

    def end_with_job(self) -> None:
        """Refuse all use from now on, and end the waits."""
        self._end_with_job()
        self.queues.has_ended = True
        self.end(now=False)

    def folder(self) -> str:
        """Return a folder in shared memory, for weights; it is removed with the channel.

        Raises:
            ChannelClosed: The channel was closed.
        """
        with _making:
            if self.queues.is_closed:
                raise ChannelClosed(f"the channel {self.settings.name!r} was closed")
            if self._memory is None:
                self._memory = Session.create(max_bytes=self.settings.max_bytes, backlog=1)
            return self._memory.token

    def actors(self) -> Iterator[Any]:
        """Yield nothing: there are no actors."""
        return iter(())


_making = threading.Lock()


class LocalChannels:
    """The channels of a local cluster.

    Args:
        num_nodes: The number of nodes of the cluster.
        is_group: Whether a name belongs to a worker group.
    """

    def __init__(self, num_nodes: int, is_group: Any) -> None:
        self._num_nodes = num_nodes
        self._is_group = is_group
        self._known: dict[str, _Routes] = {}
        self._changed = threading.Condition()

    def create(self, wanted: ChannelSettings, node_rank: int) -> tuple[ChannelSettings, Routes]:
        """Make a channel, or return the one of this name if it is the same.

        Raises:
            ChannelExistsError: The name belongs to another channel, or to a worker group.
            ShoalValueError: There is no such node.
        """
        if node_rank >= self._num_nodes:
            raise ShoalValueError(
                f"'{wanted.name}:0': node {node_rank} does not exist; this cluster has nodes "
                f"0 to {self._num_nodes - 1}"
            )
        if self._is_group(wanted.name):
            raise ChannelExistsError(_of_group(wanted.name))
        with self._changed:
            known = self._live(wanted.name)
            if known is None:
                settings = replace(wanted, node_ranks=(node_rank,))
                known = self._known[wanted.name] = _Routes(settings, _queues(settings))
                self._changed.notify_all()
            else:
                check_same(known.settings, wanted, closed=known.queues.is_closed)
        return known.settings, known

    def connect(self, name: str, deadline: Deadline | None) -> tuple[ChannelSettings, Routes]:
        """Find a channel; with a deadline, wait for it to appear.

        Raises:
            ChannelNotFoundError: There is none.
            ChannelExistsError: The name belongs to a worker group.
        """
        limit = deadline or Deadline(0)
        wait = LongWait(lambda: f"{describe_self()}: waits for the channel {name!r}", limit)
        while True:
            if self._is_group(name):
                raise ChannelExistsError(_of_group(name))
            with self._changed:
                known = self._live(name)
                if known is not None:
                    return known.settings, known
                if limit.expired:
                    waited = "" if deadline is None else f" within {limit.timeout:g} s"
                    raise not_found(name, current().namespace, waited)
                self._changed.wait(min(wait.step(), threading.TIMEOUT_MAX))
            wait.tick()

    def routes(self, settings: ChannelSettings) -> Routes:
        """Return the way to a channel whose handle was received; a closed one without a name too."""
        with self._changed:
            known = self._known.get(settings.name)
            if known is None:
                known = _Routes(settings, _queues(settings))
                known.queues.close()
            return known

    def close(self) -> None:
        """End all channels with their job, which ends the waits for them."""
        with self._changed:
            for known in self._known.values():
                known.end_with_job()
            self._known.clear()

    def _live(self, name: str) -> _Routes | None:
        """Return the channel of a name; the name of a closed channel that holds nothing is free."""
        known = self._known.get(name)
        if known is not None and known.queues.is_closed and known.queues.is_empty():
            del self._known[name]
            return None
        return known


def _of_group(name: str) -> str:
    return f"{describe_self()}: {name!r} is the name of a worker group, not of a channel"
