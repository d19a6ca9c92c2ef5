"""Access to the bytes of CPU tensors: checks before a transfer, views of memory, and copies."""

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.transport.torch.framing import Part

if TYPE_CHECKING:
    import torch

__all__ = ["alias", "as_bytes", "check_tensors", "gather", "own", "scatter"]


@functools.cache
def _from_buffer() -> "Callable[[Any], torch.Tensor]":
    import torch

    return functools.partial(torch.frombuffer, dtype=torch.uint8)


def own(size: int) -> "tuple[bytearray, torch.Tensor]":
    """Return new memory of `size` bytes (at least 1), and a tensor over it."""
    memory = bytearray(size)
    return memory, _from_buffer()(memory)


def as_bytes(memory: bytes | bytearray) -> "torch.Tensor":
    """Return a tensor of bytes that are not empty; the tensor must not be written to."""
    return _from_buffer()(bytearray(memory) if isinstance(memory, bytes) else memory)


def alias(address: int, size: int) -> "torch.Tensor":
    """Return a tensor over memory that it does not keep alive.

    torch keeps the tensors of a transfer as long as its work, which outlives the transfer; a
    caller's tensor must become free as soon as the transfer is over.
    """
    return _from_buffer()((ctypes.c_ubyte * size).from_address(address))


def check_tensors(
    tensors: "Sequence[torch.Tensor]", what: str, *, written: bool
) -> "list[torch.Tensor]":
    """Return tensors whose memory holds exactly their values.

    Args:
        tensors: Dense tensors in host memory.
        what: The name of this process, the operation and the peer, for errors.
        written: Whether the transfer writes to them.

    Raises:
        ShoalTypeError: An item is not a tensor.
        ShoalValueError: A tensor is not contiguous, not dense or not in host memory.
    """
    import torch

    checked = []
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise ShoalTypeError(
                f"{what}: item {index} is a {type(tensor).__name__}; expected a torch.Tensor"
            )
        if tensor.layout is not torch.strided or not tensor.is_cpu:
            raise ShoalValueError(
                f"{what}: tensor {index} is {tensor.layout} on {tensor.device}; expected a dense "
                "tensor in host memory"
            )
        if not tensor.is_contiguous():
            raise ShoalValueError(
                f"{what}: tensor {index} of shape {tuple(tensor.shape)} and strides "
                f"{tensor.stride()} must be contiguous when using P2P communication: "
                "call .contiguous()"
            )
        if tensor.is_conj() or tensor.is_neg():
            # Its memory holds the values before the conjugation, which torch does on reading.
            if written:
                raise ShoalValueError(
                    f"{what}: tensor {index} is a conjugated or negated view; expected a tensor "
                    "of its own"
                )
            tensor = tensor.detach().resolve_conj().resolve_neg()  # noqa: PLW2901  (the one to send)
        checked.append(tensor)
    return checked


def gather(tensors: "Sequence[torch.Tensor]", part: Part) -> "torch.Tensor":
    """Return the bytes of a part to send: one tensor's own memory, or a copy of several tensors."""
    if part.tensors == 1:
        return alias(tensors[part.first].data_ptr() + part.offset, part.size)
    memory, tensor = own(part.size)
    target = tensor.data_ptr()
    for source in tensors[part.first : part.first + part.tensors]:
        size = source.nbytes
        ctypes.memmove(target, source.data_ptr(), size)
        target += size
    del memory  # the tensor keeps it alive
    return tensor


def scatter(source: Any, tensors: "Sequence[torch.Tensor]") -> None:
    """Copy bytes into tensors, one after the other; `source` has as many bytes as they have."""
    view = memoryview(source)
    for tensor in tensors:
        size = tensor.nbytes
        if size:
            target = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
            memoryview(target).cast("B")[:] = view[:size]
            view = view[size:]
