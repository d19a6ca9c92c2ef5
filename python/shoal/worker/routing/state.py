"""`RoutingState`: the state that a worker keeps between its routed calls."""

import contextlib
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.worker.routing import get_group_world_size
from shoal.worker.routing.kept_items import KeptItems

__all__ = ["Routed", "RoutingState"]


class RoutingState:
    """The routing state of one worker: its identity, its peers' world sizes, and kept items.

    Args:
        worker: The worker, with `send`, `recv`, `manager_proxy`, and in decoupled mode
            `batch_router`.
        group: The worker's group.
        rank: Its rank.
        world_size: The size of its group.
    """

    def __init__(self, worker: Any, group: str, rank: int, world_size: int) -> None:
        self.worker = worker
        self.group = group
        self.rank = rank
        self.world_size = world_size
        self.name = f"{group}:{rank}"
        self.kept = KeptItems()
        self.router_lock = threading.Lock()
        self._peer_world_sizes: dict[str, int] = {}

    def peer_world_size(self, group: str) -> int:
        """Return the size of another group; asks the manager only once.

        Raises:
            ShoalValueError: There is no such group.
        """
        size = self._peer_world_sizes.get(group)
        if size is None:
            size = get_group_world_size(self.worker.manager_proxy, group)
            self._peer_world_sizes[group] = size
        return size

    def forget_peer(self, group: str) -> None:
        """Ask the manager again at the next call: the group may have been launched again."""
        self._peer_world_sizes.pop(group, None)

    def batch_router(self) -> dict[str, list[str]]:
        """Return the messages that the worker has to answer, by tag.

        Raises:
            ShoalValueError: The worker has no `batch_router`.
            ShoalTypeError: It is not a dict.
        """
        router = getattr(self.worker, "batch_router", None)
        if router is None:
            raise ShoalValueError(
                "batch_router must be provided in decoupled mode: set self.batch_router = {} in a "
                "worker that asks, and self.batch_router = {tag: []} in one that answers"
            )
        if not isinstance(router, dict):
            raise ShoalTypeError(f"batch_router must be a dict, got {type(router).__name__}")
        return router

    @contextlib.contextmanager
    def call(self, operation: str, peer: str) -> Iterator[None]:
        """On an error in the block, name worker and call in it, and forget the peer's size."""
        try:
            yield
        except ShoalValueError as error:
            self.forget_peer(peer)
            if error.met_by is None:
                error.met_by = self.name
                text = f"{self.name}: {operation} {peer!r}: {error}"
                error.args = (text, *error.args[1:])
            raise
        except BaseException:
            self.forget_peer(peer)
            raise


class Routed:
    """A worker that has a routing state."""

    _group_name: str
    _rank: int
    _world_size: int

    @cached_property
    def _routing(self) -> RoutingState:
        return RoutingState(self, self._group_name, self._rank, self._world_size)
