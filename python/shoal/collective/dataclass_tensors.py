"""Extracts the tensors in a dataclass's fields as a flat list, and puts them back."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from shoal.collective.message import is_tensor
from shoal.errors import ShoalTypeError, ShoalValueError

__all__ = ["extract_dataclass_tensor_fields", "unflatten_dataclass_tensor_fields"]

_TENSOR = "tensor"
_SEQUENCES = {"list": list, "tuple": tuple}
_DICT = "dict"

Metadata = dict[str, dict[str, Any]]
"""By field: its `kind`, and the `length` of a list or tuple, or the `keys` of a dict."""


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
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name, None)  # a field without `init` may not be set
        described = _describe(value)
        if described is not None:
            found[field.name] = value
            metadata[field.name], tensors = described
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
