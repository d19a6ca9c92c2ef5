"""Chooses the transport between two workers for each kind of data, and gives the reason.

Also defines the interface of transports that other packages register.
"""

import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from shoal.context import env_var
from shoal.deadline import Deadline
from shoal.errors import ShoalValueError, TransportError, TransportRefusedError
from shoal.manager import WorkerInfo

__all__ = [
    "ENTRY_POINT",
    "IPC",
    "OBJECTS",
    "Choice",
    "TensorCarrier",
    "TensorLane",
    "Transport",
    "Watch",
    "choose",
    "find_transport",
    "forced_transport",
    "has_registered",
]

ENTRY_POINT = "shoal.transports"
"""The group of entry points under which packages register transports of their own."""

OBJECTS = "objects"
"""The kind of data that is not a tensor; the other kinds are torch's device types."""

_BUILT_IN = ("shm", "lane", "torch")
_OLD_NAMES = {"ray": "lane"}
IPC = "cuda_ipc"
"""The transport between two processes that use the same NVIDIA GPU."""

Watch = Callable[[], BaseException | None]
"""Called about once a second by a transport that waits: returns the error to end with, or None."""


class Choice(NamedTuple):
    """A transport, and the reason for choosing it.

    Attributes:
        name: `shm`, `torch`, `cuda_ipc`, `lane`, or the name of a registered transport.
        reason: The reason, as text for users.
        staged: Whether tensors of an accelerator go through the CPU's memory.
    """

    name: str
    reason: str
    staged: bool = False


class TensorCarrier(Protocol):
    """One direction between two workers; tensors arrive in the order in which they were sent.

    Shoal itself sends the description of the tensors ahead, so the receiver has tensors of the
    same shapes and dtypes when it calls `recv`.
    """

    def send(self, tensors: list[Any], deadline: Deadline, watch: Watch) -> None:
        """Send tensors; return when the caller may reuse their memory.

        Raises:
            TransportRefusedError: This way is impossible between the two workers. `recv` of these
                tensors raises it too. They, and all further ones, take another way.
        """

    def recv(self, into: list[Any], deadline: Deadline, watch: Watch) -> None:
        """Receive into tensors that have the shapes and dtypes of the sent ones.

        Raises:
            TransportRefusedError: As of `send`, which raises it too.
        """

    def close(self) -> None:
        """Release the carrier's resources. Idempotent."""


TensorLane = TensorCarrier
"""The name of `TensorCarrier` in version 0.1.0, for packages that import it."""


class Transport(Protocol):
    """An object that a package registers under the entry point group `shoal.transports`.

    Attributes:
        name: Its name; `SHOAL_TRANSPORT` accepts it as a value.
    """

    name: str

    def reason(self, here: WorkerInfo, there: WorkerInfo, data: str) -> str | None:
        """Return why it carries this kind of data between two workers; None if it does not.

        Shoal calls this in both workers, with the sender as `here`; both answers must be equal.

        Args:
            here: The sender.
            there: The receiver.
            data: The device type of the tensors: `cpu`, `cuda`, ...
        """

    def sender(self, here: WorkerInfo, there: WorkerInfo) -> tuple[TensorCarrier, dict[str, Any]]:
        """Make the sender's end, and plain data from which the receiver makes its end."""

    def receiver(
        self, address: dict[str, Any], here: WorkerInfo, there: WorkerInfo, deadline: Deadline
    ) -> TensorCarrier:
        """Make the receiver's end from the data that `sender` returned."""


@cache
def _registered() -> dict[str, Transport]:
    found: dict[str, Transport] = {}
    for point in entry_points(group=ENTRY_POINT):
        transport: Transport = point.load()
        if transport.name in (*_BUILT_IN, *_OLD_NAMES, IPC) or transport.name in found:
            raise TransportError(
                f"the entry point {point.name!r} of {point.value} registers a transport named "
                f"{transport.name!r}, which exists: it needs another name"
            )
        found[transport.name] = transport
    return found


def has_registered() -> bool:
    """Whether any package registers a transport in this process."""
    return bool(_registered())


def find_transport(name: str) -> Transport:
    """Return a registered transport.

    Raises:
        TransportError: No package registers a transport of this name in this process.
    """
    transport = _registered().get(name)
    if transport is None:
        raise TransportError(
            f"no transport {name!r} is registered in this process: install the package that the "
            f"sender has (entry point group {ENTRY_POINT})"
        )
    return transport


def forced_transport() -> str | None:
    """Return the transport that `SHOAL_TRANSPORT` asks for; None if shoal chooses the best one.

    Raises:
        ShoalValueError: `SHOAL_TRANSPORT` does not name a transport.
    """
    text, name = env_var("TRANSPORT")
    text = _OLD_NAMES.get(text or "", text)
    if not text or text in _BUILT_IN:
        return text or None
    if text not in _registered():
        known = ", ".join((*_BUILT_IN, *sorted(_registered())))
        raise ShoalValueError(f"{name}={text!r}: expected one of {known}")
    return text


def choose(
    here: WorkerInfo,
    there: WorkerInfo,
    data: str,
    device_rank: int | None = None,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> Choice:
    """Choose the transport from one worker to another.

    Args:
        here: The sender.
        there: The receiver.
        data: `OBJECTS`, or the device type of tensors: `cpu`, `cuda`, ...
        device_rank: The cluster-wide rank of the accelerator that holds the tensors; None if it
            is not known.
        refused: The transports that refused to carry tensors between the two, with the reasons.

    Raises:
        TransportRefusedError: `SHOAL_TRANSPORT` asks for one of them.
        TransportError: `SHOAL_TRANSPORT` asks for a transport that cannot carry this data.
    """
    forced = forced_transport()
    together = bool(here.memory) and here.memory == there.memory
    if data == OBJECTS:
        return _objects(forced, together, there)
    own = _own_transport(forced, here, there, data, refused)
    if own is not None:
        return own
    if data == "cpu":
        return _cpu_tensors(forced, together, there)
    return _accelerator_tensors(forced, together, here, there, device_rank, refused)


def _objects(forced: str | None, together: bool, there: WorkerInfo) -> Choice:
    if together and forced in (None, "shm"):
        return Choice("shm", f"{_name(there)} can use the same shared memory")
    _refuse_shm(forced, there)
    if together:
        return Choice("lane", f"SHOAL_TRANSPORT={forced}: as if on another node")
    return Choice("lane", f"{_name(there)} is on node {there.cluster_node_rank}, with other memory")


def _own_transport(
    forced: str | None, here: WorkerInfo, there: WorkerInfo, data: str, refused: Mapping[str, str]
) -> Choice | None:
    for name, transport in _registered().items():
        if name in refused:
            if forced == name:
                raise TransportRefusedError(
                    f"SHOAL_TRANSPORT={name}: it refused to carry tensors from {_name(here)} to "
                    f"{_name(there)}: {refused[name]}"
                )
            continue
        if forced in (None, name):
            reason = transport.reason(here, there, data)
            if reason is not None:
                return Choice(name, reason)
        if forced == name:
            raise TransportError(
                f"SHOAL_TRANSPORT={name}: it does not carry tensors on {data} from {_name(here)} "
                f"to {_name(there)}"
            )
    return None


def _cpu_tensors(forced: str | None, together: bool, there: WorkerInfo) -> Choice:
    if together and forced in (None, "shm"):
        return Choice("shm", f"{_name(there)} can use the same shared memory")
    _refuse_shm(forced, there)
    if forced == "lane":
        return Choice("lane", "SHOAL_TRANSPORT=lane: with the objects")
    if importlib.util.find_spec("torch") is None:
        return Choice("lane", "torch is not installed here")
    if forced == "torch":
        return Choice("torch", "SHOAL_TRANSPORT=torch: gloo")
    return Choice("torch", f"{_name(there)} is on node {there.cluster_node_rank}: gloo")


def _accelerator_tensors(
    forced: str | None,
    together: bool,
    here: WorkerInfo,
    there: WorkerInfo,
    device_rank: int | None,
    refused: Mapping[str, str],
) -> Choice:
    """Choose for tensors on an accelerator of the sender."""
    why = f"{_name(there)} has {there.accelerator_type}, {_name(here)} {here.accelerator_type}"
    mine, theirs = set(here.available_accelerators), set(there.available_accelerators)
    same_kind = here.accelerator_type == there.accelerator_type and bool(mine and theirs)
    if forced in (None, "torch") and same_kind:
        device = (
            device_rank if device_rank is not None else (mine.pop() if len(mine) == 1 else None)
        )
        why = "some of their accelerators are the same, and this tensor's is not one of them"
        if forced is None and together and device in theirs:
            if IPC not in refused:
                return Choice(IPC, f"both see accelerator {device}")
            why = f"{IPC} is impossible: {refused[IPC]}"
        if not set(here.available_accelerators) & theirs:
            return Choice(
                "torch", f"different {here.accelerator_type} devices: the vendor's library"
            )
    staged = _cpu_tensors(forced, together, there)
    reason = f"{staged.reason}; through the CPU's memory: {why}"
    return Choice(staged.name, reason, staged=True)


def _refuse_shm(forced: str | None, there: WorkerInfo) -> None:
    if forced == "shm":
        raise TransportError(
            f"SHOAL_TRANSPORT=shm: {_name(there)}, on node {there.cluster_node_rank}, cannot use "
            "the shared memory of this process"
        )


def _name(worker: WorkerInfo) -> str:
    return worker.address.get_name()
