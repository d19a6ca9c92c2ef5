"""`CollectiveGroup`: a named group of workers whose messages are kept apart from all others.

The members agree on a record of it: `agree` waits for them and registers it.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

from shoal._backend import WorkerAddress
from shoal._ray import lost, timed_out
from shoal.collective import tensor_data
from shoal.collective.directory import Directory
from shoal.collective.exchange import Exchange
from shoal.collective.options import CollectiveGroupOptions
from shoal.collective.peers import registered
from shoal.collective.tensor_data import TensorData, object_type
from shoal.collective.work_queue import CollectiveWorkQueue
from shoal.deadline import Deadline
from shoal.errors import ShoalTypeError, ShoalValueError, TransportError
from shoal.hardware import AcceleratorUtil
from shoal.manager import CollectiveGroupInfo, WorkerInfo
from shoal.process import is_running, own_process
from shoal.work import AsyncWork

__all__ = [
    "CollectiveGroup",
    "CollectiveGroupOptions",
    "CollectiveWorkQueue",
    "TensorData",
    "agree",
    "checked_members",
    "default_name",
]

_A_PAIR = 2


class _Owner(Protocol):
    """The part of `Collective` that a group uses."""

    def apart(self, kind: str, label: str) -> Exchange:
        """Return an exchange whose messages are kept apart from all others."""

    def forget_group(self, group: Any) -> None:
        """Remove the record of a group that was closed."""


class CollectiveGroup:
    """A named group of workers, made by `Collective.create_collective_group`.

    Point to point (`send`, `recv`) needs a group of two members; `broadcast` works in any group.
    The messages are kept apart from those of other groups with the same members, and from the
    workers' own `send` and `broadcast`. A group that is made again with the same name and members
    continues where the former one ended: it receives the messages that the former one did not.

    Args:
        group_info: The group's record.
        collective: The `Collective` of this worker.
        group_name: The group's name.
        worker_addresses: The members, in the order of their ranks in the group.
        cur_worker_address: This worker, one of them.

    Attributes:
        group_info: The group's record.
        group_name: Its name.
        worker_addresses: Its members.

    Raises:
        ShoalTypeError: The members are not addresses.
        ShoalValueError: A member is named twice, or this worker is not a member.
    """

    ACCEL: ClassVar[str | None] = AcceleratorUtil.get_device_type(
        os.environ.get("ACCELERATOR_TYPE") or "NO_ACCEL"
    )
    """torch's device type of this process's accelerators; None for a process without any."""
    CPU: ClassVar[str] = "cpu"
    TENSOR: ClassVar[int] = tensor_data.TENSOR
    TENSOR_LIST: ClassVar[int] = tensor_data.TENSOR_LIST
    TENSOR_DICT: ClassVar[int] = tensor_data.TENSOR_DICT
    OBJECT: ClassVar[int] = tensor_data.OBJECT
    DATACLASS_WITH_TENSORS: ClassVar[int] = tensor_data.DATACLASS_WITH_TENSORS
    POOL_SIZE: ClassVar[int] = 1
    """Number of independent orders of messages between two members."""

    def __init__(
        self,
        group_info: CollectiveGroupInfo,
        collective: _Owner,
        group_name: str,
        worker_addresses: Sequence[WorkerAddress],
        cur_worker_address: WorkerAddress,
    ) -> None:
        self._group_info = group_info
        self._collective = collective
        self.group_name = group_name
        self.worker_addresses = checked_members(worker_addresses, cur_worker_address)
        others = [member for member in self.worker_addresses if member != cur_worker_address]
        self._peer = others[0] if len(self.worker_addresses) == _A_PAIR else None
        self._to = (others[0].root_group_name, tuple(others[0].rank_path)) if self._peer else None
        names = [member.get_name() for member in self.worker_addresses]
        digest = hashlib.blake2s("\n".join([group_name, *names]).encode(), digest_size=12)
        kind, label = f"group {digest.hexdigest()}", f"group {group_name}: "
        self._exchange = collective.apart(kind, label)
        self._closed = False

    @property
    def group_info(self) -> CollectiveGroupInfo:
        """The group's record; replaced when a member is started again."""
        return self._group_info

    @group_info.setter
    def group_info(self, info: CollectiveGroupInfo) -> None:
        self._group_info = info

    def send(
        self,
        object: Any,  # noqa: A002  (part of the API)
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        piggyback_payload: Any = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Send an object to the other of two members; see `Collective.send`.

        Raises:
            ShoalValueError: The group does not have two members.
            TransportError: The group is closed.
        """
        peer, path = self._other("send")
        return self._exchange.send(
            object, peer, path, async_op, options, piggyback_payload, timeout=timeout
        )

    def recv(
        self,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Receive an object that the other of two members sent; see `Collective.recv`."""
        peer, path = self._other("recv")
        return self._exchange.recv(peer, path, async_op, options, timeout=timeout)

    def send_tensor(
        self,
        tensor: Any,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Send a tensor to the other of two members; see `Collective.send_tensor`."""
        peer, path = self._other("send_tensor")
        return self._exchange.send_tensor(tensor, peer, path, async_op, options, timeout=timeout)

    def recv_tensor(
        self,
        tensor: Any,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncWork | None:
        """Receive into a tensor from the other of two members; see `Collective.recv_tensor`."""
        peer, path = self._other("recv_tensor")
        return self._exchange.recv_tensor(tensor, peer, path, async_op, options, timeout=timeout)

    def broadcast(
        self,
        object: Any,  # noqa: A002  (part of the API)
        src_addr: WorkerAddress,
        async_op: bool = False,
        options: CollectiveGroupOptions | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Give one member's object to all members; every member calls this with the same source.

        Args:
            object: The object, at the source; other members pass None.
            src_addr: The source, one of the members.
            async_op: Return an `AsyncWork` at once.
            options: Options of the accelerators' libraries.
            timeout: Seconds to wait for the others; None for the default.

        Returns:
            The object, which at the source is the one it passed; an `AsyncWork` with `async_op`.

        Raises:
            ShoalTypeError: `src_addr` is not a WorkerAddress.
            ShoalValueError: The source is not a member.
            ShoalTimeoutError: The others did not take part in time.
            PeerLostError: One of them died.
            TransportError: The group is closed.
        """
        self._check_open("broadcast")
        if not isinstance(src_addr, WorkerAddress):
            raise ShoalTypeError(
                f"{self._name_of('broadcast')}: src_addr={src_addr!r}: expected a WorkerAddress"
            )
        if src_addr not in self.worker_addresses:
            raise ShoalValueError(
                f"{self._name_of('broadcast')}: the source {src_addr.get_name()} is not a member; "
                f"members: {self._names()}"
            )
        return self._exchange.broadcast_among(
            self.worker_addresses, src_addr, object, async_op, options, timeout
        )

    def close(self) -> None:
        """End this worker's part in the group, and free the group's name. Idempotent."""
        if not self._closed:
            self.end()
            self._collective.forget_group(self)

    def end(self) -> None:
        """End this worker's part in the group, but keep the group's record. Idempotent."""
        self._closed = True
        self._exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CollectiveGroup {self.group_name} of {self._names()}>"

    # How it works.

    def _other(self, what: str) -> tuple[str, tuple[int, ...]]:
        self._check_open(what)
        if self._to is None:
            count = len(self.worker_addresses)
            raise ShoalValueError(
                f"{self._name_of(what)}: point to point needs a group of two members, this one has "
                f"{count}: {self._names()}; use broadcast, or make a group of two"
            )
        return self._to

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise TransportError(
                f"{self._name_of(what)}: the group is closed; make it again with "
                "create_collective_group"
            )

    def _name_of(self, what: str) -> str:
        return f"group {self.group_name}: {what}"

    def _names(self) -> str:
        return ", ".join(member.get_name() for member in self.worker_addresses)

    @staticmethod
    def _get_object_info(object: Any) -> tuple[int, TensorData]:  # noqa: A002  (as in `send`)
        """Return the type id of a payload and a description of its tensors."""
        return object_type(object), TensorData.of(object)

    # Which members share accelerators, according to their records.

    def _classify_broadcast_ranks(self, src_rank: int) -> tuple[list[int], list[int], list[int]]:
        """Sort the other ranks by what they share with a source.

        Returns:
            The ranks whose only accelerator is the source's only one; the other ranks that share
            an accelerator with the source, for which only the tensor's device decides; and the
            ranks that share none.
        """
        workers = self._group_info.workers
        same: list[int] = []
        uncertain: list[int] = []
        different: list[int] = []
        mine = _devices(workers[src_rank])
        for rank, worker in enumerate(workers):
            if rank == src_rank:
                continue
            theirs = _devices(worker)
            if not mine & theirs:
                different.append(rank)
            elif len(mine) == len(theirs) == 1:
                same.append(rank)
            else:
                uncertain.append(rank)
        return same, uncertain, different

    def _group_ranks_by_device(self, ranks: Sequence[int]) -> list[list[int]]:
        """Group the ranks that have the same single accelerator, in the order given.

        Returns:
            One list for each accelerator; then one for each rank with several accelerators or none.
        """
        together: dict[frozenset[tuple[int, int]], list[int]] = {}
        alone: list[list[int]] = []
        for rank in ranks:
            devices = _devices(self._group_info.workers[rank])
            if len(devices) == 1:
                together.setdefault(devices, []).append(rank)
            else:
                alone.append([rank])
        return [*together.values(), *alone]


def _devices(worker: WorkerInfo) -> frozenset[tuple[int, int]]:
    node = worker.cluster_node_rank
    return frozenset((node, rank) for rank in worker.available_accelerators)


def default_name(members: Sequence[WorkerAddress]) -> str:
    """Return the name of a group that was made without a name."""
    return "cg-" + "-".join(member.get_name() for member in members)


def checked_members(addresses: Sequence[WorkerAddress], me: WorkerAddress) -> list[WorkerAddress]:
    """Check the members of a group, and return them as a list.

    Raises:
        ShoalTypeError: The members are not a list of addresses.
        ShoalValueError: A member is named twice, or the worker itself is not a member.
    """
    members = list(addresses) if isinstance(addresses, (list, tuple)) else None
    if members is None or not all(isinstance(member, WorkerAddress) for member in members):
        raise ShoalTypeError(
            f"collective group: worker_addresses={addresses!r}: expected a list of WorkerAddress"
        )
    names = [member.get_name() for member in members]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ShoalValueError(
            f"collective group: worker_addresses names {', '.join(twice)} twice; expected each "
            "member once"
        )
    if me not in members:
        raise ShoalValueError(
            f"collective group: {me.get_name()} is not a member; members: "
            f"{', '.join(names) or 'none'}"
        )
    return members


def agree(
    directory: Directory, name: str, members: Sequence[WorkerAddress], deadline: Deadline
) -> CollectiveGroupInfo:
    """Wait for all members of a group to exist, and register its record.

    Each member calls this. The first one registers the record, the others find an equal one. The
    record of a former group is replaced when one of its members has ended or was started again.

    Raises:
        ShoalTimeoutError: Some members did not register as workers in time.
        PeerLostError: A member has died.
        ShoalValueError: Another group has the name.
    """
    what = f"collective group {name!r}: waits for its members"
    workers = [_member(directory, member, members, what, deadline) for member in members]
    info = CollectiveGroupInfo(name, workers, workers[0].node_ip)
    known = directory.group(name, deadline)
    if known != info:
        ended = known if known is not None and _has_ended(known, directory) else None
        directory.register_group(info, ended, deadline)
    return info


def _member(
    directory: Directory,
    address: WorkerAddress,
    members: Sequence[WorkerAddress],
    what: str,
    deadline: Deadline,
) -> WorkerInfo:
    found = registered(directory, address, what, deadline)
    if found is None:
        absent = [member.get_name() for member in members if directory.look_up(member) is None]
        names = ", ".join(absent) or address.get_name()
        raise timed_out(what, f"{names} (not registered as a worker)", deadline)
    if _is_dead(found):
        raise lost(what, address.get_name(), deadline, f"process {found.pid} ended")
    return found


def _has_ended(info: CollectiveGroupInfo, directory: Directory) -> bool:
    """Whether a member of a group has ended, or was started again as another process."""
    for worker in info.workers:
        now = directory.look_up(worker.address)
        if now is None or now.process != worker.process or _is_dead(now):
            return True
    return False


def _is_dead(info: WorkerInfo) -> bool:
    """Whether a process of this node has ended; False for other nodes, where it is not known."""
    return info.process.host == own_process().host and not is_running(info.process)
