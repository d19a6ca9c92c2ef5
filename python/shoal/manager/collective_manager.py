"""The manager of a job's collective groups: their members and their master's address and port."""

from dataclasses import dataclass, field

from shoal.errors import ShoalValueError
from shoal.manager.worker_manager import WorkerInfo, WorkerManager

__all__ = ["CollectiveGroupInfo", "CollectiveManager"]


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


class CollectiveManager(WorkerManager):
    """Members register their group here, and other workers look it up.

    The actor that is the job's `WorkerManager` is of this class.
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[str, CollectiveGroupInfo] = {}

    def unregister_group(self, group_name: str) -> None:
        """Forget a closed group of workers, and every collective group with one of its workers."""
        super().unregister_group(group_name)
        for name, info in list(self._groups.items()):
            if any(worker.address.root_group_name == group_name for worker in info.workers):
                del self._groups[name]

    def register_collective_group(
        self,
        group_info: CollectiveGroupInfo,
        instead_of: CollectiveGroupInfo | None = None,
    ) -> None:
        """Record a group. An equal record replaces the previous one and forgets its port.

        Args:
            group_info: The group.
            instead_of: The record of an ended group with this name, which may be replaced.

        Raises:
            ShoalValueError: Another group has this name.
        """
        name = group_info.group_name
        known = self._groups.get(name)
        if known is not None and known not in (group_info, instead_of):
            raise ShoalValueError(
                f"Collective group {name} already exists but tried to register a different group: "
                f"known is {_describe(known)}, given {_describe(group_info)}; choose another "
                "name, or close the group that has it"
            )
        self._groups[name] = group_info

    def get_collective_group(self, group_name: str) -> CollectiveGroupInfo | None:
        """Return a group's record, or None."""
        return self._groups.get(group_name)

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

    def set_master_port_info(self, group_name: str, master_port: int) -> None:
        """Record the port of a group's master.

        Raises:
            ShoalValueError: There is no such group.
        """
        self._known(group_name).master_port = master_port

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
