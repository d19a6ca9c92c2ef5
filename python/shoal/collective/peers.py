"""Finding other workers, and noticing that one has died while it is waited for."""

from collections.abc import Sequence
from typing import Any

import ray

from shoal._backend import WorkerAddress
from shoal._ray import find_actor, is_dead, lost, timed_out
from shoal.context import current
from shoal.deadline import Deadline
from shoal.errors import NameTakenError, ShoalTypeError
from shoal.manager import NodeManager, WorkerInfo, WorkerManager
from shoal.transport.client import HostClient, HostLostError, Request, Steps
from shoal.transport.mailbox import MailboxHost, mailbox_name

__all__ = ["Peers", "peer_address"]

_SLICE_S = 0.8
"""Twice this must be less than 2 s: a death is seen at the latest at the second look."""


def peer_address(group_name: Any, rank: int | Sequence[int]) -> WorkerAddress:
    """Return a worker's address; a list of ranks is a path.

    Raises:
        ShoalTypeError: The group's name or the rank is of another type.
        AddressError: They are no address.
    """
    path = [rank] if isinstance(rank, int) else rank
    if not isinstance(group_name, str) or isinstance(path, (str, bytes)):
        raise ShoalTypeError(
            f"group {group_name!r}, rank {rank!r}: expected a text and an integer, or a list of "
            "integers for a worker below another"
        )
    return WorkerAddress(group_name, list(path))


class Peers:
    """What this worker knows of others: their records, their nodes' mailboxes, their death."""

    def __init__(self) -> None:
        self._infos: dict[WorkerAddress, WorkerInfo] = {}
        self._mailboxes: dict[int, HostClient] = {}
        self._watches: dict[tuple[int, int], Any] = {}

    def find(self, address: WorkerAddress, what: str, deadline: Deadline) -> Steps[WorkerInfo]:
        """Wait for a worker to exist.

        Raises:
            ShoalTimeoutError: It did not register in time.
        """
        info = self._infos.get(address)
        while info is None:
            left = min(deadline.remaining, _SLICE_S)
            manager = WorkerManager.get_proxy().actor
            info = yield Request(manager, "wait_worker_info", address, left, more=(left,))
            if info is None and deadline.expired:
                raise timed_out(what, f"{address.get_name()} (it never registered)", deadline)
        self._infos[address] = info
        return info

    def known(self, address: WorkerAddress) -> WorkerInfo | None:
        """Return a worker's record if it was found before."""
        return self._infos.get(address)

    def moved(self, address: WorkerAddress) -> Steps[bool]:
        """Whether a worker whose process died has been started again; then `find` finds it."""
        old = self._infos.pop(address, None)
        manager = WorkerManager.get_proxy().actor
        info = yield Request(manager, "get_worker_info", address)
        return info is not None and (old is None or info.pid != old.pid)

    def mailbox(self, node_rank: int) -> Steps[HostClient]:
        """Return a node's mailbox, which is started by whoever needs it first."""
        client = self._mailboxes.get(node_rank)
        if client is not None:
            return client
        name, namespace = mailbox_name(node_rank), current().namespace
        handle = find_actor(name, namespace)
        if handle is None:
            nodes = NodeManager.get_proxy().actor
            start: tuple[Any, ...] = (MailboxHost, (name,), {}, node_rank)
            try:
                handle = yield Request(nodes, "start_host", name, 60.0, more=start)
            except NameTakenError:  # another worker was faster
                handle = find_actor(name, namespace)
        if handle is None:
            raise HostLostError(f"there is no actor {name!r}")
        client = self._mailboxes[node_rank] = HostClient(handle, _SLICE_S)
        return client

    def forget_mailbox(self, node_rank: int) -> None:
        """Look a node's mailbox up again next time, or start another one if it has died."""
        client = self._mailboxes.pop(node_rank, None)
        if client is not None and is_dead(client.handle):
            ray.kill(client.handle)  # frees its name

    def check(
        self, address: WorkerAddress, what: str, deadline: Deadline, seen_alive: set[int]
    ) -> Steps[None]:
        """Raise when a worker is known and dead; one that does not exist yet may still come.

        The mailbox of its node is asked once to tell when the process ends, so that a worker that
        is busy is not disturbed.

        Args:
            address: The worker.
            what: The operation that waits for it.
            deadline: The operation's deadline.
            seen_alive: The processes that this operation saw alive, kept by this method: one that
                ended before the operation began, and was started again since, is no loss.

        Raises:
            PeerLostError: It has died.
        """
        info = self._infos.get(address)
        if info is None:
            manager = WorkerManager.get_proxy().actor
            info = yield Request(manager, "get_worker_info", address)
            if info is None:
                return
            self._infos[address] = info
        name = (info.cluster_node_rank, info.pid)
        watch = self._watches.get(name)
        if watch is None:
            client = yield from self.mailbox(info.cluster_node_rank)
            try:
                watch = client.handle.watch.remote(info.pid)
            except ray.exceptions.RayActorError as error:
                raise HostLostError(str(error)) from None
            self._watches[name] = watch
            return  # the answer is not there yet
        ended, _ = ray.wait([watch], timeout=0)
        if not ended:
            seen_alive.add(info.pid)
            return
        self._watches.pop(name, None)
        try:
            ray.get(watch, timeout=0)
        except ray.exceptions.RayActorError as error:  # the end of the one that watched
            self.forget_mailbox(info.cluster_node_rank)
            raise HostLostError(str(error)) from None
        again = yield from self.moved(address)
        if again and info.pid not in seen_alive:
            return
        note = f"process {info.pid} ended" + (", and it was started again" if again else "")
        raise lost(what, address.get_name(), deadline, note)
