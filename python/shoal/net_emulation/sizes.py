"""Estimates the bytes of a payload, as programs that were written for `rlinf.scheduler` expect it."""

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any

from shoal.pickling import is_tensor

__all__ = ["estimate_payload_size_bytes"]

_TENSOR_BYTES = 256
"""Bytes of the description of each tensor in a container."""

_PROTOCOL = 4


def estimate_payload_size_bytes(payload: Any) -> int:
    """Return the bytes of a payload, without those of views that are not sent.

    A tensor counts its elements. A container or dataclass with tensors counts 256 more for each of
    them, and the pickles of its keys, field names and other values. Anything else counts the bytes
    of its pickle, or of its `repr` if it cannot be pickled.
    """
    if is_tensor(payload):
        return int(payload.numel() * payload.element_size())
    return _size(payload)


def _size(value: Any) -> int:
    if value is None:
        return 0
    if is_tensor(value):
        return int(value.numel() * value.element_size()) + _TENSOR_BYTES
    if not _has_tensors(value):
        return _pickled(value)
    names, parts = _parts(value)
    return sum(map(_size, parts)) + (_pickled(names) if names else 0)


def _parts(value: Any) -> tuple[list[Any], list[Any]]:
    """Return the keys or field names of a container, and its values."""
    if isinstance(value, Mapping):
        return list(value), list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return names, [getattr(value, name) for name in names]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [], list(value)
    return [], []


def _has_tensors(value: Any) -> bool:
    return is_tensor(value) or any(map(_has_tensors, _parts(value)[1]))


def _pickled(value: Any) -> int:
    try:
        return len(pickle.dumps(value, protocol=_PROTOCOL))
    except Exception:  # noqa: BLE001  (a class may raise anything when it is pickled)
        return len(repr(value))
