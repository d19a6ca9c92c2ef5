"""`TensorLayout`: shape, dtype and device of tensors, which a receiver needs before the bytes arrive.

A layout is plain JSON, because it travels where nothing is unpickled.
"""

import math
from typing import Any, NamedTuple

from shoal.collective.message import Facts, is_tensor
from shoal.pickling import is_quantized, tensor_facts

__all__ = ["TensorLayout", "allocate", "describe", "fits", "rebuild"]

_ONE, _LIST, _DICT = "tensor", "list", "dict"


class TensorLayout(NamedTuple):
    """The tensors of a value: a tensor, a list of tensors, or a dict of them with text keys.

    Attributes:
        form: `tensor`, `list` or `dict`.
        keys: The keys of a dict, in order.
        facts: Shape, dtype and device type of each tensor.
        wants_grad: For each tensor, whether it requires gradients where it arrives.
    """

    form: str
    keys: list[str]
    facts: list[Facts]
    wants_grad: list[bool]

    def to_json(self) -> list[Any]:
        """Return the layout as JSON data."""
        return [self.form, self.keys, self.facts, self.wants_grad]

    @classmethod
    def of_json(cls, data: Any) -> "TensorLayout":
        """Make a layout from the result of `to_json`."""
        form, keys, facts, wants_grad = data
        found = [(tuple(shape), dtype, device) for shape, dtype, device in facts]
        return cls(form, list(keys), found, list(wants_grad))

    def sizes(self) -> list[int]:
        """Return the number of bytes of each tensor."""
        return [math.prod(shape) * _dtype(dtype).itemsize for shape, dtype, _ in self.facts]


def _dtype(name: str) -> Any:
    """Return the torch dtype with a name, which is not trusted: it may have come from anywhere."""
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name!r} is not a dtype of torch")
    return found


def describe(value: Any) -> tuple[TensorLayout, list[Any]] | None:
    """Return a value's layout and its tensors; None for a value that is more than tensors."""
    kind = type(value)
    keys: list[str] = []
    if is_tensor(value):
        form, tensors = _ONE, [value]
    elif kind in (list, tuple) and value:
        form, tensors = _LIST, list(value)
    elif kind is dict and value and all(type(key) is str for key in value):
        form, keys, tensors = _DICT, list(value), list(value.values())
    else:
        return None
    if not all(_is_plain(tensor) for tensor in tensors) or _overlap(tensors):
        return None
    wants_grad = [tensor.requires_grad and tensor.is_leaf for tensor in tensors]
    facts = [tensor_facts(tensor) for tensor in tensors]
    plain = [tensor.detach().contiguous() for tensor in tensors]
    return TensorLayout(form, keys, facts, wants_grad), plain


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor consists of its values alone; any other tensor travels by pickle."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not is_quantized(tensor.dtype)
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.device.type != "meta"
        # A copy on a device costs less than the way through the CPU's memory.
        and (tensor.device.type != "cpu" or tensor.is_contiguous())
    )


def _overlap(tensors: list[Any]) -> bool:
    """Whether tensors on the CPU share a storage: pickled, it travels once and stays shared."""
    if tensors[0].device.type != "cpu":
        return False
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    return len(set(storages)) < len(storages)


def allocate(layout: TensorLayout, *, staged: bool) -> list[Any]:
    """Return tensors of a layout, whose values are not set yet.

    Args:
        layout: The layout.
        staged: Whether the values come through the CPU's memory, whatever their device.
    """
    import torch

    return [
        torch.empty(shape, dtype=_dtype(dtype), device="cpu" if staged else device)
        for shape, dtype, device in layout.facts
    ]


def rebuild(layout: TensorLayout, tensors: list[Any]) -> Any:
    """Return the value that received tensors make up, each moved to its own device."""
    found = []
    for tensor, (_, _, device), wants_grad in zip(
        tensors, layout.facts, layout.wants_grad, strict=True
    ):
        placed = tensor if tensor.device.type == device else tensor.to(device)
        found.append(placed.requires_grad_() if wants_grad else placed)
    if layout.form == _ONE:
        return found[0]
    return dict(zip(layout.keys, found, strict=True)) if layout.form == _DICT else found


def fits(into: Any, facts: Facts) -> bool:
    """Whether values of these facts can be received into a given tensor directly."""
    return (
        into is not None
        and tensor_facts(into) == (tuple(facts[0]), *facts[1:])
        and into.is_contiguous()
        and not into.is_conj()
        and not into.is_neg()
    )
