"""The managers of a job's locks: which worker has which accelerators, and which port of a node."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from shoal._backend import WorkerAddress
from shoal.deadline import Deadline
from shoal.errors import (
    LockError,
    PlacementIndexError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
)
from shoal.integers import as_int, as_ints
from shoal.manager.base import Caller, Manager
from shoal.manager.lock_table import LockRequest, LockTable, Owner, show_devices
from shoal.manager.node_manager import NodeManager
from shoal.manager.process_watch import ProcessWatches
from shoal.manager.worker_manager import WorkerManager
from shoal.process import ProcessId, is_running, own_process

__all__ = ["DeviceLockManager", "PortLockManager", "WorkerDeviceLock"]

_log = logging.getLogger("shoal")

_MAX_PORT = 65_535
_OVERTAKEN = 1024
"""Maximum number of cancellations to keep for requests that have not arrived yet."""


class DeviceLockManager(Manager):
    """One lock for each accelerator of the cluster. Workers use it through `Worker.device_lock`.

    A request for several devices gets all of them together, in the order of the requests. What a
    worker holds is free again when its process ends. A worker may take a device again that it
    holds. Takes with a `number` are counted; those without one are not: the first release frees
    the device.

    Args:
        num_accelerators: The number of accelerators in the cluster; None to ask the NodeManager.
        watches: Notices the end of processes; None watches processes of this machine only.
    """

    MANAGER_NAME: ClassVar[str] = WorkerManager.MANAGER_NAME

    def __init__(
        self, num_accelerators: int | None = None, watches: ProcessWatches | None = None
    ) -> None:
        self._num_accelerators = num_accelerators
        self._process_watches = watches or ProcessWatches()
        self._table = LockTable()
        self._cancelled: dict[tuple[Owner, int], None] = {}

    async def acquire_devices(
        self,
        worker_address: WorkerAddress,
        accel_ids: Sequence[int],
        *,
        number: int = 0,
        caller: Caller | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
    ) -> None:
        """Wait until a worker has some devices.

        Args:
            worker_address: The worker.
            accel_ids: Cluster-wide ranks of the devices; none for a worker without accelerators.
            number: Identifies a take that is counted, unique among the worker's takes; 0 for one
                that is not counted.
            caller: The worker's process; its end releases the devices. The proxy adds it.
            timeout: Limit in seconds; None for the default, 0 to take only what is free.

        Raises:
            ShoalTypeError: `worker_address` is not a `WorkerAddress`, or a rank not an integer.
            PlacementIndexError: The cluster has no such device.
            ShoalTimeoutError: The devices were not free in time; the error names their holders.
        """
        owner = _owner(_name_of(worker_address), caller)
        devices = self._checked(accel_ids)
        deadline = Deadline(timeout)
        if (owner, number) in self._cancelled:
            del self._cancelled[owner, number]
            return
        ended = asyncio.Event()
        request = LockRequest(owner, devices, number, ended.set)
        self._table.ask(request)
        if caller is not None:
            self._process_watches.call_at_end(caller, self._drop, str(owner))
        if ended.is_set():
            return
        try:
            await asyncio.wait_for(ended.wait(), deadline.remaining_or_none())
        except TimeoutError:
            if ended.is_set():  # at the same time
                return
            reason, _ = self._table.explain(request)
            self._table.withdraw(request)
            raise ShoalTimeoutError(
                f"{owner.name}: acquiring the lock of {show_devices(devices)}: not granted within "
                f"{deadline.timeout:g} s: {reason}"
            ) from None
        except asyncio.CancelledError:
            self._table.withdraw(request)
            raise

    async def release_devices(
        self,
        worker_address: WorkerAddress,
        accel_ids: Sequence[int],
        *,
        number: int = 0,
        caller: Caller | None = None,
    ) -> None:
        """Give devices back; see `acquire_devices` for the arguments.

        Raises:
            LockError: The worker does not hold one of the devices; the others are released.
            PlacementIndexError: The cluster has no such device.
        """
        self._checked(accel_ids)
        owner = _owner(_name_of(worker_address), caller)
        self._table.release(owner, map(int, accel_ids), number)

    async def cancel_acquire(
        self, worker_address: WorkerAddress, number: int, *, caller: Caller | None = None
    ) -> None:
        """End a take that is not wanted any more: it waits, was granted, or arrives later."""
        owner = _owner(_name_of(worker_address), caller)
        if not self._table.cancel(owner, number):
            self._cancelled[owner, number] = None
            if len(self._cancelled) > _OVERTAKEN:
                del self._cancelled[next(iter(self._cancelled))]

    async def explain_wait(
        self, worker_address: WorkerAddress, number: int, *, caller: Caller | None = None
    ) -> tuple[str, list[str]]:
        """Return why a waiting take waits, and the addresses of the workers that it waits for.

        Both are empty if it does not wait.
        """
        owner = _owner(_name_of(worker_address), caller)
        return self._table.explain(self._table.find(owner, number))

    async def release_all_devices(self, worker_name: str) -> None:
        """Release what a worker holds, and forget its requests, because it has ended."""
        self._table.drop(lambda owner: owner.name == worker_name)

    def _checked(self, accel_ids: Sequence[int]) -> list[int]:
        """Return the devices, each once, or raise.

        Raises:
            ShoalTypeError: A rank is not an integer.
            PlacementIndexError: The cluster has no such device.
        """
        given = as_ints(accel_ids)
        if given is None:
            raise ShoalTypeError(
                f"accel_ids={accel_ids!r}: expected a list of cluster-wide ranks of accelerators"
            )
        devices = list(dict.fromkeys(given))
        if devices and self._num_accelerators is None:
            nodes = NodeManager.get_proxy().get_nodes()
            self._num_accelerators = sum(node.num_accelerators for node in nodes)
        count = self._num_accelerators or 0
        for device in devices:
            if not 0 <= device < count:
                has = f"accelerators 0 to {count - 1}" if count else "no accelerators"
                raise PlacementIndexError(f"device {device} does not exist: this cluster has {has}")
        return devices

    def _drop(self, process: ProcessId) -> None:
        """Forget an owner whose process has ended."""
        for owner, devices in self._table.drop(lambda owner: owner.process == process).items():
            _log.warning("%s ended while it held %s: released", owner, show_devices(devices))


class PortLockManager(Manager):
    """The ports that workers have reserved, by node; see `Worker.acquire_free_port`.

    A port is free again when it is released, or when its worker's process has ended.

    Args:
        watches: Notices the end of processes; None watches processes of this machine only.
    """

    MANAGER_NAME: ClassVar[str] = WorkerManager.MANAGER_NAME

    def __init__(self, watches: ProcessWatches | None = None) -> None:
        self._port_watches = watches or ProcessWatches()
        self._ports: dict[tuple[int, int], Owner] = {}

    def acquire(
        self, node_rank: int, worker_name: str, port: int, *, caller: Caller | None = None
    ) -> bool:
        """Reserve a port of a node for a worker.

        Args:
            node_rank: The node.
            worker_name: The worker's address.
            port: The port.
            caller: The worker's process; its end releases the port. The proxy adds it.

        Returns:
            Whether the port is the worker's now; False if a worker has it, also the same one.
        """
        key = (node_rank, _checked_port(port))
        if key in self._ports and not self._has_ended(self._ports[key]):
            return False
        self._ports[key] = _owner(worker_name, caller)
        return True

    def release(
        self, node_rank: int, worker_name: str, port: int, *, caller: Caller | None = None
    ) -> None:
        """Give a port back.

        Raises:
            LockError: The worker does not have the port.
        """
        key = (node_rank, _checked_port(port))
        owner, known = _owner(worker_name, caller), self._ports.get(key)
        if known != owner:
            has = "no worker has it" if known is None else f"{known} has it"
            raise LockError(f"{owner} releases port {port} of node {node_rank}, but {has}")
        del self._ports[key]

    def release_all_ports(self, worker_name: str) -> None:
        """Release all ports of a worker, because it has ended."""
        for key in [key for key, owner in self._ports.items() if owner.name == worker_name]:
            del self._ports[key]

    def _has_ended(self, owner: Owner) -> bool:
        """Whether the process that reserved a port has ended.

        A process of another machine cannot be checked at once: the port becomes free a moment
        after this call, or when it ends.
        """
        if owner.process is None:
            return False
        if owner.process.host == own_process().host:
            return not is_running(owner.process)
        caller = Caller(owner.process, owner.node_rank)
        self._port_watches.call_at_end(caller, self._release_ports, str(owner))
        return False

    def _release_ports(self, process: ProcessId) -> None:
        for key in [key for key, owner in self._ports.items() if owner.process == process]:
            del self._ports[key]


class WorkerDeviceLock:
    """The lock of one device, for direct use in an event loop; the owners are addresses."""

    def __init__(self) -> None:
        self._manager = DeviceLockManager(1)

    async def acquire(
        self,
        worker_address: WorkerAddress,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  (part of the API)
    ) -> None:
        """Wait until a worker has the device; see `DeviceLockManager.acquire_devices`."""
        await self._manager.acquire_devices(worker_address, [0], timeout=timeout)

    async def release(self, worker_address: WorkerAddress) -> None:
        """Give the device back; see `DeviceLockManager.release_devices`."""
        await self._manager.release_devices(worker_address, [0])


def _name_of(worker_address: Any) -> str:
    if not hasattr(worker_address, "get_name"):
        raise ShoalTypeError(
            f"worker_address={worker_address!r}: expected a WorkerAddress, such as "
            "worker.worker_address or WorkerAddress.from_name('trainer:0')"
        )
    name: str = worker_address.get_name()
    return name


def _owner(worker_name: str, caller: Caller | None) -> Owner:
    if caller is None:
        return Owner(worker_name)
    return Owner(worker_name, caller.process, caller.node_rank)


def _checked_port(port: int) -> int:
    checked = as_int(port, 1, _MAX_PORT)
    if checked is None:
        raise ShoalValueError(f"port={port!r}: expected a number from 1 to {_MAX_PORT}")
    return checked
