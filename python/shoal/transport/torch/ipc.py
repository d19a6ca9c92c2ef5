"""Moves tensors between two processes on one CUDA device, without host memory.

The receiver copies from the sender's memory. The sender's handles and the receiver's
acknowledgement travel over queues that the caller provides. The handles are JSON, not a pickle,
because a message must not be able to run code.
"""

import base64
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalValueError, TransportError, TransportRefusedError

if TYPE_CHECKING:
    import torch

__all__ = ["describe_handles", "device_index", "device_uuid", "receive_by_ipc", "send_by_ipc"]

Put = Callable[[bytes], None]
Take = Callable[[], bytes]

_DONE = b"done"
_REFUSED = b"refused: "
_WITHDRAWN = b"withdrawn"
_FIELDS = ("handle", "ref_counter", "event")


def send_by_ipc(tensors: "Sequence[torch.Tensor]", put: Put, take: Take) -> None:
    """Let another process on the same device copy tensors; return when it has copied them.

    Args:
        tensors: CUDA tensors; the receiver's copies have the same strides.
        put: Sends bytes to the receiver.
        take: Waits for bytes from the receiver; it enforces the deadline.

    Raises:
        ShoalValueError: A tensor is not on a CUDA device.
        TransportRefusedError: This process cannot share them, or the receiver cannot open them.
    """
    import torch

    try:
        # Memory of no bytes has no handle.
        filled = [(index, tensor) for index, tensor in enumerate(tensors) if tensor.numel()]
        handles = describe_handles([_share(index, tensor) for index, tensor in filled])
    except BaseException as error:
        reason = f"the sender cannot share memory of the device: {error}"
        put(_REFUSED + reason.encode())
        if isinstance(error, RuntimeError):  # of torch, for example on a system without CUDA IPC
            raise TransportRefusedError(reason) from error
        raise
    put(handles)
    try:
        answer = take()
    except BaseException:
        put(_WITHDRAWN)
        raise
    if filled:
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]  # torch has no types for it
    if answer != _DONE:
        raise TransportRefusedError(answer.decode(errors="replace"))


def receive_by_ipc(
    into: "Sequence[torch.Tensor]", put: Put, take: Take, has_more: Callable[[], bool]
) -> None:
    """Copy tensors of another process on the same device into tensors of this process.

    Args:
        into: Tensors of the shapes and dtypes that the sender sends.
        put: Sends bytes to the sender.
        take: Waits for bytes from the sender; it enforces the deadline.
        has_more: Whether the sender has sent further bytes, which it does if its wait for the copy
            ended early. It may have changed the tensors since.

    Raises:
        TransportRefusedError: This process cannot see the sender's device or open its memory, or
            the sender cannot share it, or did not wait for the copy.
    """
    message = take()
    if message.startswith(_REFUSED):
        raise TransportRefusedError(message.removeprefix(_REFUSED).decode())
    try:
        filled = [tensor for tensor in into if tensor.numel()]
        for tensor, described in zip(filled, json.loads(message), strict=True):
            _copy(described, tensor)
    except Exception as error:
        reason = f"the receiver cannot copy from the sender's memory: {error}"
        put(reason.encode())
        raise TransportRefusedError(reason) from error
    if has_more():
        raise TransportRefusedError("the sender's wait for the copy ended early")
    put(_DONE)


def describe_handles(shared: list[dict[str, Any]]) -> bytes:
    """Return handles as JSON, with their bytes in base64."""
    text = [
        {k: base64.b64encode(v).decode() if k in _FIELDS else v for k, v in handle.items()}
        for handle in shared
    ]
    return json.dumps(text).encode()


def device_uuid(index: int) -> str:
    """Return the UUID of a CUDA device that this process sees."""
    import torch

    return str(torch.cuda.get_device_properties(index).uuid)


def device_index(uuid: str, uuids: Sequence[str]) -> int:
    """Return the index of a device among those that this process sees.

    Raises:
        TransportError: The device is not among them.
    """
    if uuid not in uuids:
        raise TransportError(
            f"the tensor is on device {uuid}, which this process does not see; it sees "
            f"{', '.join(uuids) or 'none'}"
        )
    return list(uuids).index(uuid)


def _share(index: int, tensor: "torch.Tensor") -> dict[str, Any]:
    if tensor.device.type != "cuda":
        raise ShoalValueError(f"tensor {index} is on {tensor.device}; expected a CUDA device")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    storage: Any = tensor.untyped_storage()
    shared = storage._share_cuda_()
    _, handle, size, offset, ref_counter, ref_counter_offset, event, event_sync = shared
    return {
        "uuid": device_uuid(tensor.device.index),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
        "first": tensor.storage_offset(),
        "size": size,
        "offset": offset,
        "ref_counter_offset": ref_counter_offset,
        "event_sync": event_sync,
        "handle": handle,
        "ref_counter": ref_counter,
        "event": event,
    }


def _copy(described: dict[str, Any], into: "torch.Tensor") -> None:
    import torch

    seen = [device_uuid(index) for index in range(torch.cuda.device_count())]
    index = device_index(described["uuid"], seen)
    handle, ref_counter, event = (base64.b64decode(described[name]) for name in _FIELDS)
    with torch.cuda.device(index):
        kind: Any = torch.UntypedStorage
        storage = kind._new_shared_cuda(  # noqa: SLF001  (as above)
            index,
            handle,
            described["size"],
            described["offset"],
            ref_counter,
            described["ref_counter_offset"],
            event,
            described["event_sync"],
        )
        dtype = getattr(torch, described["dtype"])
        theirs = torch.empty(0, dtype=dtype, device=f"cuda:{index}")
        theirs.set_(storage, described["first"], described["shape"], described["strides"])
        into.copy_(theirs)
        torch.cuda.current_stream(index).synchronize()  # before the sender may write to its memory
        del theirs, storage
