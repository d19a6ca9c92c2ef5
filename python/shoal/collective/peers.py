"""`Peers`: finds other workers, and notices when one dies while a caller waits for it."""

import threading
from collections.abc import Sequence
from typing import Any

import ray

from shoal._backend import WorkerAddress
from shoal._ray import lost, timed_out
from shoal.collective.directory import Directory
from shoal.collective.mailbox import Mailboxes
from shoal.context import describe_self
from shoal.deadline import Deadline
from shoal.errors import PeerLostError, ShoalTypeError, ShoalValueError
from shoal.manager import WorkerInfo, too_high, unknown_group
from shoal.process import ProcessId, is_running, own_process

__all__ = ["Peers", "peer_address", "registered"]


def peer_address(group_name: Any, rank: int | Sequence[int]) -> WorkerAddress:
    """Return a worker's address; a list of ranks is a path.

    Raises:
        ShoalTypeError: The group's name or the rank is of the wrong type.
        AddressError: They do not form an address.
    """
    try:
        return WorkerAddress(group_name, rank)
    except TypeError:
        raise ShoalTypeError(
            f"group {group_name!r}, rank {rank!r}: expected a text and an integer, or a list of "
            "integers for a worker below another"
        ) from None


class Peers:
    """Records of the workers that this one communicates with, and whether they are alive.

    Args:
        directory: Where workers look each other up.
        mailboxes: The mailboxes of the nodes, whose actors watch processes on other nodes.
    """

    def __init__(self, directory: Directory, mailboxes: Mailboxes) -> None:
        self._directory = directory
        self._mailboxes = mailboxes
        self._infos: dict[WorkerAddress, WorkerInfo] = {}
        self._watches: dict[tuple[int, ProcessId], Any] = {}
        self._ended: set[ProcessId] = set()
        self._lock = threading.Lock()

    def find(self, address: WorkerAddress, what: str, deadline: Deadline) -> WorkerInfo:
        """Wait for a worker to exist.

        Raises:
            ShoalTimeoutError: It did not register in time.
            ShoalValueError: Its group has no such rank.
        """
        info = self._infos.get(address)
        if info is not None:
            return info
        info = registered(self._directory, address, what, deadline)
        if info is None:
            peer = f"{address.get_name()} (it never registered)"
            hint = unknown_group(address.root_group_name, self._directory.group_sizes())
            raise timed_out(what, peer, deadline, hint)
        self._infos[address] = info
        return info

    def found(self, address: WorkerAddress) -> WorkerInfo | None:
        """Return a worker's record if it was found before."""
        return self._infos.get(address)

    def is_dead(self, info: WorkerInfo) -> bool:
        """Whether a worker's process has ended, as far as is known now.

        For a process on another node, the first call makes an actor there watch it. The actor
        answers when the process has ended.
        """
        process = info.process
        if process.host == own_process().host:
            return not is_running(process)
        return self._watched_has_ended(info, process)

    def _watched_has_ended(self, info: WorkerInfo, process: ProcessId) -> bool:
        if process in self._ended:
            return True
        key = (info.cluster_node_rank, process)
        with self._lock:
            watch = self._watches.get(key)
            if watch is None:
                handle = self._mailboxes.handle(info.cluster_node_rank)
                self._watches[key] = handle.watch.remote(process)
                return False  # the answer is not there yet
        ended, _ = ray.wait([watch], timeout=0)
        if not ended:
            return False
        with self._lock:
            self._watches.pop(key, None)
        try:
            ray.get(watch, timeout=0)
        except ray.exceptions.RayError as error:
            # The watching actor has ended. If its node is alive, another actor takes its place.
            if isinstance(error, ray.exceptions.ActorUnavailableError):
                return False
            if self._mailboxes.forget(info.cluster_node_rank):
                return False
        self._ended.add(process)
        return True

    def successor(self, dead: WorkerInfo) -> WorkerInfo | None:
        """Return the record of the process that replaced a dead one, if any."""
        info = self._directory.look_up(dead.address)
        if info is None or info.process == dead.process:
            return None
        self._infos[dead.address] = info
        return info

    def check(
        self,
        address: WorkerAddress,
        what: str,
        deadline: Deadline,
        seen: set[int],
        info: WorkerInfo | None = None,
    ) -> PeerLostError | None:
        """Return the error with which a wait for a dead worker ends; None while it may go on.

        Args:
            address: The worker.
            what: The operation that waits.
            deadline: Its deadline.
            seen: Ids of the processes that this operation saw alive; this method adds to them. A
                process that ended before the operation began, and has a successor, is not a loss.
            info: The record of the process to check; None for the one that was found last.
        """
        info = info or self._infos.get(address)
        if info is None:
            return None
        if seen and info.pid not in seen:
            note = "it was started again"
            return lost(what, address.get_name(), deadline, note)
        if not self.is_dead(info):
            seen.add(info.pid)
            return None
        again = self.successor(info)
        if again is not None and info.pid not in seen:
            return None
        note = f"process {info.pid} ended" + (", and it was started again" if again else "")
        return lost(what, address.get_name(), deadline, note)


def registered(
    directory: Directory, address: WorkerAddress, what: str, deadline: Deadline
) -> WorkerInfo | None:
    """Return a worker's record as soon as it has registered; None at the deadline.

    Raises:
        ShoalValueError: Its group has no such rank.
    """
    while (info := directory.wait_for(address, what, deadline)) is None and not deadline.expired:
        if ranks := too_high(address, directory.group_sizes()):
            raise ShoalValueError(f"{describe_self()}: {what}: {ranks}")
        # A group that was too small has just been closed, and may be launched again.
    return info
