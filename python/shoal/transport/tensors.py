"""Torch tensors inside messages: their memory travels as a raw buffer.

torch is never imported here unless a tensor shows up, which means that it is there already: on
the sending side a process without torch has no tensors to send.
"""

import pickle
import sys
from typing import Any

from shoal.errors import TransportError

__all__ = ["reduce_tensor", "tensor_facts"]


def tensor_facts(tensor: Any) -> tuple[tuple[int, ...], str, str]:
    """What must agree between a sent tensor and the one it is received into."""
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device.type


def reduce_tensor(obj: Any) -> Any:
    """Return a plain dense tensor's reduction for pickle, or None for anything else.

    The values are copied only where they are not contiguous CPU memory already. A tensor of an
    accelerator is copied to the CPU, and to the receiver's current device of that type there.
    """
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if torch is None or tensor_type is None or type(obj) is not tensor_type:
        return None
    if obj.layout is not torch.strided or obj.is_quantized or obj.device.type == "meta":
        return None
    shape, dtype, device = tensor_facts(obj)
    values = obj.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
    raw = values.reshape(-1).view(torch.uint8).numpy()
    # Only a leaf can ask for gradients in another process; a result's graph stays here.
    wants_grad = obj.requires_grad and obj.is_leaf
    return _rebuild_tensor, (pickle.PickleBuffer(raw), shape, dtype, device, wants_grad)


def _rebuild_tensor(
    raw: bytearray, shape: tuple[int, ...], dtype: str, device: str, wants_grad: bool
) -> Any:
    try:
        import torch
    except ImportError as error:
        raise TransportError(
            "the message holds a torch tensor and torch is not installed here: install shoal[torch]"
        ) from error
    kind = getattr(torch, dtype)
    if len(raw) == 0:
        tensor = torch.empty(shape, dtype=kind)
    else:
        tensor = torch.frombuffer(raw, dtype=kind).reshape(shape)
    if device != "cpu":
        tensor = tensor.to(device)
    return tensor.requires_grad_() if wants_grad else tensor
