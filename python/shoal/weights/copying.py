"""Copies the elements of tensors and arrays that do not lie in one buffer of the CPU."""

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.shm.shared_files.mapping import copy_into
from shoal.transport.torch.accelerator import stage_to_pinned_cpu

if TYPE_CHECKING:
    import torch

__all__ = ["cast", "gather", "stage"]

_PIECE = 64 * 2**20
"""Number of elements, or of bytes as they are, of an accelerator that are staged at once."""


def gather(value: Any, dtype: "torch.dtype | None", target: "memoryview | torch.Tensor") -> None:
    """Copy the elements of a tensor or array one after the other."""
    if isinstance(value, np.ndarray) and isinstance(target, memoryview):
        np.copyto(np.ndarray(value.shape, value.dtype, target), value)
    else:
        _tensor_on(target, dtype or value.dtype).view(value.shape).copy_(value)


def _tensor_on(target: "memoryview | torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
    import torch

    if isinstance(target, torch.Tensor):  # bytes of the same device
        return target.view(dtype)
    return torch.frombuffer(target, dtype=torch.uint8).view(dtype)


def cast(
    tensor: "torch.Tensor",
    start: int,
    count: int,
    dtype: "torch.dtype",
    target: "memoryview | torch.Tensor",
) -> None:
    """Copy elements from an address of the tensor's memory, as another dtype."""
    whole = _elements(tensor, tensor.dtype, start, count)
    values = _tensor_on(target, dtype)
    for offset in range(0, count, _PIECE):
        piece = whole[offset : offset + _PIECE]
        if tensor.device != values.device:
            piece = stage_to_pinned_cpu(piece.to(dtype))
        values[offset : offset + _PIECE].copy_(piece)


def _elements(
    tensor: "torch.Tensor", dtype: "torch.dtype", start: int, count: int
) -> "torch.Tensor":
    """Return the elements from an address of the tensor's memory."""
    import torch

    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=dtype, device=tensor.device)
    return whole.set_(storage, (start - storage.data_ptr()) // dtype.itemsize, (count,), (1,))


def stage(tensor: "torch.Tensor", start: int, target: "memoryview | torch.Tensor") -> None:
    """Copy the bytes from an address of an accelerator's memory; to the CPU through pinned memory."""
    import torch

    whole = _elements(tensor, torch.uint8, start, len(target))
    if isinstance(target, torch.Tensor):
        target.copy_(whole)
        return
    for offset in range(0, len(target), _PIECE):
        piece = stage_to_pinned_cpu(whole[offset : offset + _PIECE])
        copy_into(target, [(offset, piece.numpy())])
