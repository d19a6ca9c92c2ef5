"""The tensors in a payload: `TensorData`, and the tensors in the fields of a dataclass.

Sending does not need them, because the tensors of any object travel beside its pickle. They are for
callers that want to know what their payloads are made of.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from shoal.collective.message import is_tensor, tensors_of
from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = [
    "DATACLASS_WITH_TENSORS",
    "OBJECT",
    "TENSOR",
    "TENSOR_DICT",
    "TENSOR_LIST",
    "TensorData",
    "extract_dataclass_tensor_fields",
    "object_type",
    "unflatten_dataclass_tensor_fields",
]

TENSOR, TENSOR_LIST, TENSOR_DICT, OBJECT, DATACLASS_WITH_TENSORS = range(5)

_TENSOR = "tensor"
_SEQUENCES = {"list": list, "tuple": tuple}
_DICT = "dict"

Metadata = dict[str, dict[str, Any]]
"""By field: its `kind`, and the `length` of a list or tuple, or the `keys` of a dict."""


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


def extract_dataclass_tensor_fields(
    obj: Any,
) -> tuple[dict[str, Any], list[Any], Metadata]:
    """Find the fields of a dataclass that are tensors, or containers of tensors alone.

    An empty list, tuple or dict counts as such a container. Fields of any other kind, including
    nested containers, are left out.

    Args:
        obj: An instance of a dataclass.

    Returns:
        The values of these fields by name, in the order of the fields; their tensors as one flat
        list; and what `unflatten_dataclass_tensor_fields` needs beside that list.

    Raises:
        ShoalTypeError: It is not an instance of a dataclass; a dataclass itself is not one.
    """
    if not dataclasses.is_dataclass(obj) or isinstance(obj, type):
        raise ShoalTypeError(
            f"extract_dataclass_tensor_fields: expected an instance of a dataclass, got {obj!r}"
        )
    found: dict[str, Any] = {}
    flat: list[Any] = []
    metadata: Metadata = {}
    for entry in dataclasses.fields(obj):
        value = getattr(obj, entry.name, None)  # a field without `init` may not be set
        described = _describe(value)
        if described is not None:
            found[entry.name] = value
            metadata[entry.name], tensors = described
            flat += tensors
    return found, flat, metadata


def _describe(value: Any) -> tuple[dict[str, Any], list[Any]] | None:
    if is_tensor(value):
        return {"kind": _TENSOR}, [value]
    kind = type(value)
    described: dict[str, Any]
    if kind is dict:
        described = {"kind": _DICT, "keys": list(value)}
        tensors = list(value.values())
    elif kind in (list, tuple):
        described = {"kind": kind.__name__, "length": len(value)}
        tensors = list(value)
    else:
        return None
    return (described, tensors) if all(map(is_tensor, tensors)) else None


def unflatten_dataclass_tensor_fields(
    metadata: Metadata, flat_tensors: Sequence[Any]
) -> dict[str, Any]:
    """Put the tensors of a flat list back into the fields they belong to.

    Args:
        metadata: As `extract_dataclass_tensor_fields` returned it.
        flat_tensors: The tensors, in the order of its list.

    Returns:
        The values of the fields by name, in containers of the kinds they had.

    Raises:
        ShoalValueError: A field is of an unknown kind, or there are more or fewer tensors than
            the fields have.
    """
    wanted = sum(_count(name, described) for name, described in metadata.items())
    if wanted != len(flat_tensors):
        raise ShoalValueError(
            f"unflatten_dataclass_tensor_fields: the fields {', '.join(metadata) or '(none)'} have "
            f"{wanted} tensors, but {len(flat_tensors)} were given"
        )
    fields: dict[str, Any] = {}
    rest = iter(flat_tensors)
    for name, described in metadata.items():
        tensors = [next(rest) for _ in range(_count(name, described))]
        kind = described["kind"]
        if kind == _TENSOR:
            fields[name] = tensors[0]
        elif kind == _DICT:
            fields[name] = dict(zip(described["keys"], tensors, strict=True))
        else:
            fields[name] = _SEQUENCES[kind](tensors)
    return fields


def _count(name: str, described: dict[str, Any]) -> int:
    kind = described.get("kind")
    if kind == _TENSOR:
        return 1
    if kind == _DICT:
        return len(described["keys"])
    if kind in _SEQUENCES:
        return int(described["length"])
    raise ShoalValueError(
        f"unflatten_dataclass_tensor_fields: field {name!r} is of the unknown kind {kind!r}; "
        f"expected {_TENSOR}, list, tuple or {_DICT}"
    )
