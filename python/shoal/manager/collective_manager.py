"""Knows the job's collective groups and where they meet."""

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar

from shoal.deadline import Deadline
from shoal.errors import ShoalValueError
from shoal.manager.base import Manager
from shoal.manager.worker_manager import WorkerInfo

__all__ = ["CollectiveGroupInfo", "CollectiveManager"]


@dataclass
class CollectiveGroupInfo:
    """Members and meeting point of a collective group.

    Attributes:
        group_name: Unique in the job.
        workers: The members; the first one is the master.
        master_addr: The master's IP address.
        master_port: Its port, once it is known. Not part of equality.

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
                f"collective group {self.group_name!r}: {', '.join(twice)} is a member twice"
            )

    @property
    def world_size(self) -> int:
        """The number of members."""
        return len(self.workers)


class CollectiveManager(Manager):
    """Masters register groups here; the other members look them up, or wait for them."""

    MANAGER_NAME: ClassVar[str] = "CollectiveManager"

    def __init__(self) -> None:
        self._groups: dict[str, CollectiveGroupInfo] = {}
        self._changed = asyncio.Condition()

    async def register_collective_group(self, collective_group: CollectiveGroupInfo) -> None:
        """Record a group; recording an equal one again is harmless.

        Raises:
            ShoalValueError: Another group has this name.
        """
        name = collective_group.group_name
        known = self._groups.get(name)
        if known is not None and known != collective_group:
            members = ", ".join(w.address.get_name() for w in known.workers)
            raise ShoalValueError(
                f"the collective group {name!r} exists with other members: {members}"
            )
        if known is None:
            self._groups[name] = collective_group
            await self._notify()

    def get_collective_group(self, group_name: str) -> CollectiveGroupInfo | None:
        """Return a group's record, or None."""
        return self._groups.get(group_name)

    async def wait_collective_group(
        self,
        group_name: str,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
    ) -> CollectiveGroupInfo | None:
        """Return a group's record as soon as there is one; None when the time is over."""
        deadline = Deadline(timeout)
        async with self._changed:
            try:
                await asyncio.wait_for(
                    self._changed.wait_for(lambda: group_name in self._groups),
                    deadline.remaining_or_none(),
                )
            except TimeoutError:
                return None
        return self._groups.get(group_name)

    def remove_collective_group(self, group_name: str) -> None:
        """Forget a group; harmless where there is none."""
        self._groups.pop(group_name, None)

    async def set_master_port_info(self, group_name: str, port: int) -> None:
        """Record the port on which a group meets.

        Raises:
            ShoalValueError: There is no such group.
        """
        self._known(group_name).master_port = port
        await self._notify()

    def get_master_port_info(self, group_name: str) -> int | None:
        """Return a group's port, or None while it, or the group, is not known."""
        info = self._groups.get(group_name)
        return None if info is None else info.master_port

    def reset_master_port_info(self, group_name: str) -> None:
        """Forget a group's port.

        Raises:
            ShoalValueError: There is no such group.
        """
        self._known(group_name).master_port = None

    def _known(self, group_name: str) -> CollectiveGroupInfo:
        info = self._groups.get(group_name)
        if info is None:
            known = ", ".join(sorted(self._groups)) or "none"
            raise ShoalValueError(f"no collective group {group_name!r}; known: {known}")
        return info

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
