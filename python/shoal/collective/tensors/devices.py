"""Built-in transports for tensors on accelerators, with the interface of registered transports.

`torch` goes from device to device by the vendor's library, `cuda_ipc` within one device. `torch` was
written against torch's interfaces; the documentation marks it as not run on hardware.
"""

import importlib
import secrets
from contextlib import nullcontext
from functools import partial
from typing import Any

from shoal.collective.node_memory import NodeMemory
from shoal.collective.options import CollectiveGroupOptions
from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError, TransportError
from shoal.hardware import AcceleratorUtil
from shoal.manager import WorkerInfo
from shoal.shm import Queue
from shoal.transport.choice import IPC, TensorCarrier, Transport, Watch, find_transport

__all__ = ["tensor_transport"]

_SLICE_S = 0.8


def tensor_transport(
    name: str, memory: NodeMemory, options: CollectiveGroupOptions | None = None
) -> Transport:
    """Return the transport with this name.

    Args:
        name: A `Choice.name`.
        memory: The shared memory of this node.
        options: Options of the vendor's library, if this worker is the sender.

    Raises:
        TransportError: This process has no transport with this name.
    """
    if name == "torch":
        return _Vendor(options)
    if name == IPC:
        return _Ipc(memory)
    return find_transport(name)


class _Vendor:
    """Transport between different devices of one kind, by NCCL or another vendor's library."""

    name = "torch"

    def __init__(self, options: CollectiveGroupOptions | None) -> None:
        self._options = options

    def reason(self, here: WorkerInfo, there: WorkerInfo, data: str) -> str | None:
        """Leave the choice to `choose`."""
        del here, there, data
        return None

    def sender(self, here: WorkerInfo, there: WorkerInfo) -> tuple[TensorCarrier, dict[str, Any]]:
        """Offer a pair to the receiver."""
        pair = _pairs().offer(
            here.node_ip,
            here.address.get_name(),
            there.address.get_name(),
            _device(here),
            self._options,
        )
        # The receiver makes its group with the options of the first send.
        given = None if self._options is None else vars(self._options)
        return _VendorCarrier(pair), {"pair": pair.address, "options": given}

    def receiver(
        self, address: dict[str, Any], here: WorkerInfo, there: WorkerInfo, deadline: Deadline
    ) -> TensorCarrier:
        """Join the sender's pair."""
        given = address["options"]
        pair = _pairs().join(
            address["pair"],
            there.node_ip,
            there.address.get_name(),
            here.address.get_name(),
            _device(there),
            deadline,
            options=None if given is None else CollectiveGroupOptions(**given),
        )
        return _VendorCarrier(pair, connected=True)


class _VendorCarrier:
    def __init__(self, pair: Any, *, connected: bool = False) -> None:
        self._pair = pair
        self._connected = connected

    def send(self, tensors: list[Any], deadline: Deadline, watch: Watch) -> None:
        """Send tensors from device to device."""
        if not self._connected:
            self._pair.connect(deadline, watch)
            self._connected = True
        self._pair.send(b"", tensors, deadline, watch)

    def recv(self, into: list[Any], deadline: Deadline, watch: Watch) -> None:
        """Receive tensors from device to device."""
        self._pair.recv_frame(deadline, watch)
        self._pair.recv_tensors(into, deadline, watch)

    def close(self) -> None:
        """End the pair."""
        self._pair.close()


class _Ipc:
    """Transport within one device: send a handle; the receiver copies and acknowledges."""

    name = IPC

    def __init__(self, memory: NodeMemory) -> None:
        self._memory = memory

    def reason(self, here: WorkerInfo, there: WorkerInfo, data: str) -> str | None:
        """Leave the choice to `choose`."""
        del here, there, data
        return None

    def sender(self, here: WorkerInfo, there: WorkerInfo) -> tuple[TensorCarrier, dict[str, Any]]:
        """Make a queue of handles and a queue of acknowledgements."""
        token = secrets.token_hex(8)
        mine, theirs = here.address.get_name(), there.address.get_name()
        what = f"{mine}: send to {theirs}: waits for {theirs} to copy tensors on the device"
        return self._carrier(token, "handles", "acknowledgements", what), {"token": token}

    def receiver(
        self, address: dict[str, Any], here: WorkerInfo, there: WorkerInfo, deadline: Deadline
    ) -> TensorCarrier:
        """Open the same queues from the other side."""
        del here, there, deadline
        return self._carrier(address["token"], "acknowledgements", "handles")

    def _carrier(self, token: str, out: str, into: str, what: str | None = None) -> "_IpcCarrier":
        session = self._memory.session()
        return _IpcCarrier(
            session.queue(f"ipc {token} {out}"), session.queue(f"ipc {token} {into}"), what
        )


class _IpcCarrier:
    def __init__(self, out: Queue, into: Queue, what: str | None) -> None:
        self._out, self._in, self._what = out, into, what

    def send(self, tensors: list[Any], deadline: Deadline, watch: Watch) -> None:
        """Let the receiver copy tensors; return when it has done so."""
        _ipc().send_by_ipc(tensors, self._out.put, lambda: self._take(deadline, watch))

    def recv(self, into: list[Any], deadline: Deadline, watch: Watch) -> None:
        """Copy the sender's tensors."""
        _ipc().receive_by_ipc(
            into, self._out.put, lambda: self._take(deadline, watch), lambda: self._in.qsize() > 0
        )

    def close(self) -> None:
        """Do nothing: the queues are empty, or their other end is gone."""

    def _take(self, deadline: Deadline, watch: Watch) -> bytes:
        # A receive that is long is logged by the inbox.
        wait = None if self._what is None else LongWait(partial(str, self._what), deadline)
        with wait or nullcontext():
            while True:
                seconds = min(_SLICE_S, deadline.remaining)
                try:
                    taken: bytes = self._in.get(seconds if wait is None else wait.step(seconds))
                except ShoalTimeoutError:
                    if wait is not None:
                        wait.tick()
                    error = watch()
                    if error is not None:
                        raise error from None
                    if deadline.expired:
                        raise
                else:
                    return taken


def _device(worker: WorkerInfo) -> Any:
    """Return the current device of this process, of the kind that a worker's record names."""
    import torch

    kind = AcceleratorUtil.get_device_type(worker.accelerator_type)
    platform = AcceleratorUtil.get_torch_platform(worker.accelerator_type)
    if kind is None or platform is None:
        raise TransportError(
            f"{worker.address.get_name()} has {worker.accelerator_type}, for which the installed "
            "torch has no devices"
        )
    return torch.device(kind, platform.current_device())


def _pairs() -> Any:
    return importlib.import_module("shoal.transport.torch.accelerator").AcceleratorPair


def _ipc() -> Any:
    return importlib.import_module("shoal.transport.torch.ipc")
