"""`TensorData`: kinds of payloads, and the tensors in one.

Sending does not need it, because the tensors of any object travel beside its pickle. It is for
callers that want to know what their payloads are made of.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from shoal.collective.dataclass_tensors import Metadata, extract_dataclass_tensor_fields
from shoal.collective.message import is_tensor, tensors_of

__all__ = [
    "DATACLASS_WITH_TENSORS",
    "OBJECT",
    "TENSOR",
    "TENSOR_DICT",
    "TENSOR_LIST",
    "TensorData",
    "object_type",
]

TENSOR, TENSOR_LIST, TENSOR_DICT, OBJECT, DATACLASS_WITH_TENSORS = range(5)


def object_type(value: Any) -> int:
    """Return which kind of payload an object is: one of the five constants of this module."""
    return _split(value)[0]


@dataclass
class TensorData:
    """The tensors of a payload, in order and by where they are.

    Attributes:
        cpu_tensor_mask: For each tensor of `tensors_list` whether it is on the CPU.
        cpu_tensors: Those on the CPU.
        accel_tensors: Those on accelerators.
        tensor_fields: Of a dataclass, the values of its fields with tensors, by name; else None.
        metadata: Of a dataclass, how the tensors are put back into these fields; else None.
        tensors_list: All tensors.
    """

    cpu_tensor_mask: list[bool] = field(default_factory=list)
    cpu_tensors: list[Any] = field(default_factory=list)
    accel_tensors: list[Any] = field(default_factory=list)
    tensor_fields: dict[str, Any] | None = None
    metadata: Metadata | None = None
    tensors_list: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, value: Any) -> Self:
        """Describe a payload; one of the kind `OBJECT` counts as having no tensors."""
        _, tensors, fields, metadata = _split(value)
        mask = [tensor.device.type == "cpu" for tensor in tensors]
        return cls(
            cpu_tensor_mask=mask,
            cpu_tensors=[t for t, on_cpu in zip(tensors, mask, strict=True) if on_cpu],
            accel_tensors=[t for t, on_cpu in zip(tensors, mask, strict=True) if not on_cpu],
            tensor_fields=fields,
            metadata=metadata,
            tensors_list=tensors,
        )

    @property
    def has_cpu_tensor(self) -> bool:
        """Whether any tensor is on the CPU."""
        return bool(self.cpu_tensors)

    @property
    def has_accel_tensor(self) -> bool:
        """Whether any tensor is on an accelerator."""
        return bool(self.accel_tensors)


def _split(value: Any) -> tuple[int, list[Any], dict[str, Any] | None, Metadata | None]:
    """Return a payload's kind, its tensors, and a dataclass's fields with their metadata."""
    if is_tensor(value):
        return TENSOR, [value], None, None
    kind = type(value)
    if kind in (list, tuple, dict):
        tensors = list(tensors_of(value))
        if len(tensors) == len(value):
            return TENSOR_DICT if kind is dict else TENSOR_LIST, tensors, None, None
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields, tensors, metadata = extract_dataclass_tensor_fields(value)
        if fields:
            return DATACLASS_WITH_TENSORS, tensors, fields, metadata
    return OBJECT, [], None, None
