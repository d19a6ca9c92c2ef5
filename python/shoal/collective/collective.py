"""`Collective`: a worker's sends, receives and broadcasts, and the groups it is a member of."""

import threading
from collections.abc import Sequence
from typing import Any

from shoal._backend import WorkerAddress
from shoal.collective.collective_group import CollectiveGroup, agree, checked_members, default_name
from shoal.collective.directory import Directory
from shoal.collective.exchange import Exchange, Ranks
from shoal.collective.message import is_tensor
from shoal.collective.peer_routes import PeerRoutes
from shoal.deadline import Deadline
from shoal.errors import PeerLostError
from shoal.manager import WorkerInfo
from shoal.transport.choice import OBJECTS, Choice, choose

__all__ = ["Collective"]

_P2P = "p2p"


class Collective(Exchange):
    """Sends, receives and broadcasts of one worker, and its collective groups; see `Exchange`.

    Args:
        cur_worker: The worker, or any object with a `worker_info`.
        directory: Where workers look each other up; None for the job's managers.
        direct: Same as for `Exchange`.
    """

    def __init__(
        self,
        cur_worker: Any,
        directory: Directory | None = None,
        *,
        direct: tuple[dict[str, dict[Any, Any]], dict[str, dict[Any, Any]]] | None = None,
    ) -> None:
        super().__init__(PeerRoutes(cur_worker.worker_info, directory), _P2P, direct=direct)
        self._groups: dict[str, CollectiveGroup] = {}
        self._groups_lock = threading.Lock()

    def join(self) -> None:
        """Join the node's shared memory; called before other workers can find this one."""
        self._routes.memory.join()

    def create_collective_group(
        self,
        worker_addresses: Sequence[WorkerAddress],
        group_name: str | None = None,
        *,
        timeout: float | None = None,
    ) -> CollectiveGroup:
        """Make a group of workers; every member calls this with the same addresses and name.

        The messages of a group are kept apart from those of other groups, of `send` and of
        `broadcast`. A call with the same arguments returns the same group until it is closed.

        Args:
            worker_addresses: The members, this worker among them; the first one is the master.
            group_name: A name that is unique in the job; by default `cg-` and the addresses.
            timeout: Seconds to wait for the members to exist; None for the default.

        Raises:
            ShoalTimeoutError: Some members did not register in time; the error names them.
            PeerLostError: A member has died.
            ShoalValueError: Another group has the name, a member is named twice, or this worker
                is not a member.
        """
        me = self._routes.info.address
        members = checked_members(worker_addresses, me)
        name = default_name(members) if group_name is None else group_name
        info = agree(self._routes.directory, name, members, Deadline(timeout))
        with self._groups_lock:
            group = self._groups.get(name)
            if group is None or group.worker_addresses != members:
                if group is not None:
                    group.end()  # a member of it has ended, so that its name was free again
                group = self._groups[name] = CollectiveGroup(info, self, name, members, me)
            group.group_info = info
            return group

    def find_loss(
        self, info: WorkerInfo, what: str, deadline: Deadline, seen: set[int]
    ) -> PeerLostError | None:
        """Return the error with which a wait for another worker ends; None while it may go on.

        Args:
            info: The worker's record.
            what: The operation that waits.
            deadline: Its deadline.
            seen: Ids of the processes that this wait saw alive; this method adds to them.
        """
        return self._routes.peers.check(info.address, what, deadline, seen, info)

    def apart(self, kind: str, label: str) -> Exchange:
        """Return an exchange of this worker whose messages are kept apart from all others.

        Args:
            kind: Identifies the exchange; the other workers use the same text.
            label: Prefix of its operations in errors and log lines.
        """
        return Exchange(self._routes, kind, label)

    def forget_group(self, group: CollectiveGroup) -> None:
        """Remove the record of a group that was closed, so that its name is free."""
        with self._groups_lock:
            if self._groups.get(group.group_name) is group:
                del self._groups[group.group_name]
        self._routes.directory.remove_group(group.group_info)

    def transport_to(self, group_name: str, rank: Ranks, data: Any = None) -> Choice:
        """Return which transport carries a kind of data to another worker, and why.

        Args:
            group_name: The receiver's group.
            rank: Its rank; a list is a path to a worker below another.
            data: A tensor, or a device type (`cpu`, `cuda`); None for objects.

        Returns:
            The transport's `name` and the `reason` for it.

        Raises:
            ShoalTimeoutError: The receiver did not register in time.
            TransportError: `SHOAL_TRANSPORT` asks for one that cannot carry it.
        """
        info = self._outbox(group_name, rank).info(Deadline(None))
        if data is None:
            return choose(self._routes.info, info, OBJECTS)
        device = data.device.type if is_tensor(data) else str(data)
        refused = self._routes.refused_by(info.address)
        return choose(self._routes.info, info, device, refused=refused)

    def close(self) -> None:
        """Close the groups, leave the node's memory, and release resources held for others."""
        if self._parents:
            return  # in a forked child: the parent closes it
        for group in list(self._groups.values()):
            group.close()
        super().close()
        self._routes.memory.close()
