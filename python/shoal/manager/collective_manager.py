"""The manager of a job's collective groups: their members and their master's address and port."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import ray

from shoal._ray import find_actor, is_dead
from shoal.deadline import Deadline
from shoal.errors import NameTakenError, ShoalTimeoutError, ShoalValueError
from shoal.manager.base import Manager
from shoal.manager.node_manager import NodeManager
from shoal.manager.worker_manager import WorkerInfo

__all__ = ["CollectiveGroupInfo", "CollectiveManager"]

_START_S = 60.0
"""Seconds before a start of the manager fails."""
_RETRY_S = 0.02


@dataclass
class CollectiveGroupInfo:
    """The record of a collective group: its members, and where they meet.

    Attributes:
        group_name: The group's name, unique in the job.
        workers: The members; the first one is the master.
        master_addr: The master's IP address.
        master_port: The master's port, None until it is known. Ignored by `==`.

    Raises:
        ShoalValueError: A worker is a member twice.
    """

    group_name: str
    workers: list[WorkerInfo]
    master_addr: str
    master_port: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        names = [w.address.get_name() for w in self.workers]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ShoalValueError(
                f"collective group {self.group_name!r}: its members must be unique, and "
                f"{', '.join(twice)} is a member twice"
            )

    @property
    def world_size(self) -> int:
        """The number of members."""
        return len(self.workers)


class CollectiveManager(Manager):
    """Members register their group here; other workers look it up, or wait for it.

    Most jobs do not need it, so the `NodeManager` starts it when `get_proxy` is first called.
    """

    MANAGER_NAME: ClassVar[str] = "CollectiveManager"

    def __init__(self) -> None:
        self._groups: dict[str, CollectiveGroupInfo] = {}
        self._waiting: dict[str, asyncio.Event] = {}

    @classmethod
    def _find_actor(cls, namespace: str, *, starts: bool) -> Any | None:
        deadline = Deadline(_START_S)
        while True:
            actor = find_actor(cls.MANAGER_NAME, namespace)
            if actor is not None and not is_dead(actor):
                return actor
            if not starts:
                return None
            if actor is not None:
                ray.kill(actor)  # frees the name of an actor that died by itself
            if deadline.expired:
                raise ShoalTimeoutError(
                    f"starting {cls.MANAGER_NAME}: the name is still that of an actor that died, "
                    f"after {deadline.timeout:g} s"
                )
            try:
                nodes = NodeManager.get_proxy(timeout=deadline.remaining)
                return nodes.start_host(cls.MANAGER_NAME, cls)
            except NameTakenError:
                time.sleep(_RETRY_S)  # another process is starting it, or the name is not free yet

    def ping(self) -> None:
        """Answer: a caller learns from this that the manager runs."""

    def register_collective_group(
        self,
        collective_group: CollectiveGroupInfo,
        instead_of: CollectiveGroupInfo | None = None,
    ) -> None:
        """Record a group. An equal record replaces the previous one and forgets its port.

        Args:
            collective_group: The group.
            instead_of: The record of an ended group with this name, which may be replaced.

        Raises:
            ShoalValueError: Another group has this name.
        """
        name = collective_group.group_name
        known = self._groups.get(name)
        if known is not None and known not in (collective_group, instead_of):
            raise ShoalValueError(
                f"Collective group {name} already exists but tried to register a different group: "
                f"known is {_describe(known)}, given {_describe(collective_group)}; choose another "
                "name, or close the group that has it"
            )
        self._groups[name] = collective_group
        event = self._waiting.pop(name, None)
        if event is not None:
            event.set()

    def get_collective_group(self, group_name: str) -> CollectiveGroupInfo | None:
        """Return a group's record, or None."""
        return self._groups.get(group_name)

    async def wait_collective_group(
        self,
        group_name: str,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
    ) -> CollectiveGroupInfo | None:
        """Wait for a group's record and return it; None after the timeout."""
        deadline = Deadline(timeout)
        while group_name not in self._groups:
            event = self._waiting.setdefault(group_name, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), deadline.remaining_or_none())
            except TimeoutError:
                return None
        return self._groups[group_name]

    def remove_collective_group(
        self, group_name: str, info: CollectiveGroupInfo | None = None
    ) -> None:
        """Forget a group. Idempotent.

        Args:
            group_name: The group's name.
            info: The record to forget; a different record with this name stays. None for any.
        """
        if info is None or self._groups.get(group_name) == info:
            self._groups.pop(group_name, None)

    def remove_groups_of(self, worker_group: str) -> None:
        """Forget every collective group with a member from a worker group that was closed."""
        for name, info in list(self._groups.items()):
            if any(worker.address.root_group_name == worker_group for worker in info.workers):
                del self._groups[name]

    def set_master_port_info(self, group_name: str, port: int) -> None:
        """Record the port of a group's master.

        Raises:
            ShoalValueError: There is no such group.
        """
        self._known(group_name).master_port = port

    def get_master_port_info(self, group_name: str) -> int | None:
        """Return the port of a group's master; None while the port or the group is not known."""
        info = self._groups.get(group_name)
        return None if info is None else info.master_port

    def reset_master_port_info(self, group_name: str) -> None:
        """Forget the port of a group's master.

        Raises:
            ShoalValueError: There is no such group.
        """
        self._known(group_name).master_port = None

    def _known(self, group_name: str) -> CollectiveGroupInfo:
        info = self._groups.get(group_name)
        if info is None:
            known = ", ".join(sorted(self._groups)) or "none"
            raise ShoalValueError(
                f"Collective group {group_name} does not exist. Known groups: {known}"
            )
        return info


def _describe(info: CollectiveGroupInfo) -> str:
    members = ", ".join(
        f"{w.address.get_name()} (process {w.pid}, port {w.node_port})" for w in info.workers
    )
    return f"of {members} at {info.master_addr or 'an unknown address'}"
