"""The manager of a job's workers: their records by address, and which worker waits for which."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shoal._backend import WorkerAddress
from shoal.deadline import Deadline
from shoal.manager.base import Manager
from shoal.manager.missing_workers import too_high
from shoal.process import ProcessId

__all__ = ["WorkerInfo", "WorkerManager"]

_UNKNOWN = ProcessId("", 0, 0)


@dataclass
class WorkerInfo:
    """The record that a worker registers when it starts.

    Attributes:
        address: Its address.
        rank: Its rank in the group.
        group_world_size: The number of ranks in the group.
        cluster_node_rank: The rank of its node in the cluster.
        accelerator_type: The type of its accelerators, `NO_ACCEL` if it has none.
        accelerator_model: Their model, empty if it has none.
        accelerator_rank: The first visible accelerator's rank on the node, -1 if it has none.
        node_ip: The node's IP address.
        node_port: A port that the worker holds; rank 0's is the group's MASTER_PORT.
        available_accelerators: Cluster-wide ranks of the visible accelerators.
        hardware_infos: The assigned hardware.
        pid: The pid of its process.
        process: Its process, identified across machines and reused pids.
        memory: Identifies its shared memory: equal for processes that can share memory.
        group: The group that it was launched in; empty for a process that Ray did not start. A
            worker with a `parent_address` has the address of a child of that worker instead.
    """

    address: WorkerAddress
    rank: int
    group_world_size: int
    cluster_node_rank: int
    accelerator_type: str = "NO_ACCEL"
    accelerator_model: str = ""
    accelerator_rank: int = -1
    node_ip: str = ""
    node_port: int = 0
    available_accelerators: list[int] = field(default_factory=list)
    hardware_infos: list[Any] = field(default_factory=list)
    pid: int = 0
    process: ProcessId = _UNKNOWN
    memory: str = ""
    group: str = ""

    def __hash__(self) -> int:
        return hash(self.address)

    @property
    def node_id(self) -> int:
        """Older name of `cluster_node_rank`."""
        return self.cluster_node_rank

    @property
    def gpu_id(self) -> int:
        """Older name of `accelerator_rank`."""
        return self.accelerator_rank

    @property
    def available_gpus(self) -> list[int]:
        """Older name of `available_accelerators`."""
        return self.available_accelerators


def _is_same(known: WorkerInfo, new: WorkerInfo) -> bool:
    """Whether a record is that of an earlier process of the same rank."""
    if known.group or new.group:
        return known.group == new.group
    return known.process == new.process


def _is_below(address: WorkerAddress, above: WorkerAddress) -> bool:
    path = above.rank_path
    return (
        address.root_group_name == above.root_group_name
        and len(address.rank_path) > len(path)
        and address.rank_path[: len(path)] == path
    )


class WorkerManager(Manager):
    """Workers register here; other workers look them up, or wait for them."""

    MANAGER_NAME: ClassVar[str] = "WorkerManager"

    def __init__(self) -> None:
        self._infos: dict[WorkerAddress, WorkerInfo] = {}
        self._waiting: dict[WorkerAddress, asyncio.Event] = {}
        # The world size of each launched group, and the process that launched it.
        self._launched: dict[str, tuple[int, str]] = {}
        self._sessions: dict[str, str] = {}
        self._waits: dict[str, dict[int, tuple[str, ...]]] = {}

    def register_worker(self, worker_address: WorkerAddress, worker_info: WorkerInfo) -> None:
        """Record a worker; a worker that is started again replaces its previous record."""
        self._infos[worker_address] = worker_info
        self._waits.pop(worker_address.get_name(), None)  # waits of its previous process
        event = self._waiting.pop(worker_address, None)
        if event is not None:
            event.set()

    def claim_worker(
        self,
        worker_address: WorkerAddress,
        worker_info: WorkerInfo,
        instead_of: WorkerInfo | None = None,
    ) -> WorkerInfo | None:
        """Record a worker, unless a worker of another group has the address.

        Args:
            worker_address: The address.
            worker_info: The record.
            instead_of: A worker that this method returned earlier and that has ended.

        Returns:
            The worker that has the address; None if the new one is recorded.
        """
        known = self._infos.get(worker_address)
        if known is not None and not _is_same(known, worker_info):
            ended = instead_of is not None and (known.group, known.process) == (
                instead_of.group,
                instead_of.process,
            )
            if not ended:
                return known
        self.register_worker(worker_address, worker_info)
        return None

    def get_worker_info(self, worker_address: WorkerAddress) -> WorkerInfo | None:
        """Return a worker's record, or None."""
        return self._infos.get(worker_address)

    async def wait_worker_info(
        self,
        worker_address: WorkerAddress,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
        group: str | None = None,
    ) -> WorkerInfo | None:
        """Wait for a worker's record and return it; None after the timeout.

        None also as soon as a group is known that has no such rank.
        With `group`, a record of a worker that was launched in another group is not taken.
        """
        deadline = Deadline(timeout)
        while self.find_worker(worker_address, group) is None:
            if self.is_too_high(worker_address):
                return None
            event = self._waiting.setdefault(worker_address, asyncio.Event())
            try:
                await asyncio.wait_for(event.wait(), deadline.remaining_or_none())
            except TimeoutError:
                return None
        return self._infos[worker_address]

    def find_worker(
        self, worker_address: WorkerAddress, group: str | None = None
    ) -> WorkerInfo | None:
        """Return a worker's record, if it was launched in this group; None for any group."""
        found = self._infos.get(worker_address)
        return found if found is None or group in (None, found.group) else None

    def announce_group(self, group_name: str, world_size: int, launcher: str) -> None:
        """Record the size of a group that is being launched.

        Args:
            group_name: The group.
            world_size: The number of its ranks.
            launcher: The worker that launches it, or `driver`; the group ends with this worker.
        """
        self._launched[group_name] = (world_size, launcher)
        for address in [a for a in self._waiting if self.is_too_high(a)]:
            self._waiting.pop(address).set()

    def get_group_size(self, group_name: str) -> int | None:
        """Return the number of ranks of a group, known from its launch on; None if there is none."""
        known = self._launched.get(group_name)
        return None if known is None else known[0]

    def get_group_sizes(self) -> dict[str, int | None]:
        """Return the number of ranks of each group; None if its workers were not launched."""
        started: dict[str, int | None] = {a.root_group_name: None for a in list(self._infos)}
        return started | {name: size for name, (size, _) in list(self._launched.items())}

    def is_too_high(self, worker_address: WorkerAddress) -> bool:
        """Whether a worker cannot exist, because its group was launched with fewer ranks."""
        group_name = worker_address.root_group_name
        return bool(too_high(worker_address, {group_name: self.get_group_size(group_name)}))

    def get_group(self, group_name: str) -> list[WorkerInfo]:
        """Return the records of a group's ranks, in rank order."""
        found = [
            i
            for a, i in self._infos.items()
            if i.group == group_name
            or (not i.group and len(a.rank_path) == 1 and a.root_group_name == group_name)
        ]
        return sorted(found, key=lambda info: info.rank)

    def unregister_group(self, group_name: str) -> None:
        """Forget a closed group, with all workers below it and the groups that they launched."""
        gone: set[WorkerAddress] = set()
        groups = {group_name}
        while True:
            more = {
                address
                for address, info in self._infos.items()
                if address not in gone
                and (
                    info.group in groups
                    or address.root_group_name in groups
                    or any(_is_below(address, above) for above in gone)
                )
            }
            gone |= more
            names = {address.get_name() for address in gone}
            launched = {g for g, (_, launcher) in self._launched.items() if launcher in names}
            if not more and launched <= groups:
                break
            groups |= launched
        for address in gone:
            del self._infos[address]
            self._waits.pop(address.get_name(), None)
        for group in groups:
            self._launched.pop(group, None)

    # The shared memory of each machine, for messages between its workers.

    def get_session(self, memory: str) -> str | None:
        """Return the token of the session that the workers with this memory use, or None."""
        return self._sessions.get(memory)

    def offer_session(self, memory: str, token: str, instead_of: str | None = None) -> str:
        """Propose a session for the workers with this memory; the first proposal wins.

        Args:
            memory: The memory, as in `WorkerInfo.memory`.
            token: The token of the proposed session.
            instead_of: A token that this manager returned earlier and whose session is gone.

        Returns:
            The token of the session to use.
        """
        known = self._sessions.get(memory)
        if known is None or known == instead_of:
            self._sessions[memory] = known = token
        return known

    # Which worker waits for which, to detect cycles.

    def note_wait(self, waiter: str, number: int, peers: tuple[str, ...]) -> None:
        """Record that a worker waits for others; `number` identifies the wait among its waits."""
        self._waits.setdefault(waiter, {})[number] = peers

    def end_wait(self, waiter: str, number: int) -> None:
        """Record that a wait has ended; does nothing if the wait is not known."""
        waits = self._waits.get(waiter, {})
        waits.pop(number, None)
        if not waits:
            self._waits.pop(waiter, None)

    def find_wait_cycle(self, waiter: str, number: int) -> list[str]:
        """Return the cycle of waiting workers that a wait is part of.

        Returns:
            The other workers of the cycle in order, starting with one that the wait is for; empty
            if the wait is not part of a cycle.
        """
        paths = [[peer] for peer in self._waits.get(waiter, {}).get(number, ())]
        seen: set[str] = set()
        while paths:
            path = paths.pop(0)
            last = path[-1]
            if last == waiter:
                return path[:-1]
            if last in seen:
                continue
            seen.add(last)
            for peers in self._waits.get(last, {}).values():
                paths += [[*path, peer] for peer in peers]
        return []
