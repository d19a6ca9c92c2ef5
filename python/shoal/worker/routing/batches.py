"""Count the rows of a batch, cut a batch into pieces, and join batches.

A batch is a torch tensor, a numpy array or a list, whose first dimension counts rows, or a dict of
batches. Within a dict None stays None, and a number, a flag or a text belongs to every row.
"""

import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from shoal.errors import ShoalTypeError, ShoalValueError
from shoal.integers import as_ints
from shoal.pickling import is_tensor
from shoal.problems import shown

__all__ = [
    "count_rows",
    "get_batch_size",
    "has_rows",
    "infer_batch_size",
    "merge_batches",
    "split_batch",
    "validate_batch_size",
]

_SCALARS = (bool, int, float, str)


def infer_batch_size(data: Any) -> int:
    """Return the number of rows; for a dict that of its first value that is not None.

    Raises:
        ShoalValueError: The data is not a batch, or a dict that contains none.
    """
    return _infer(data, "data")


def _infer(data: Any, where: str) -> int:
    if not isinstance(data, dict):
        return _rows(data, where)
    for key, value in data.items():
        if value is not None:
            return _infer(value, f"{where}[{key!r}]")
    raise ShoalValueError("Cannot infer batch size from an all-None dict payload.")


def count_rows(data: Any, where: str = "data") -> int:
    """Return the number of rows of a message: for a dict, that of its first value that has rows.

    Raises:
        ShoalValueError: The data is not a batch, or a dict in which nothing has rows.
    """
    if not isinstance(data, dict):
        return _rows(data, where)
    for key, value in data.items():
        if has_rows(value):
            return count_rows(value, f"{where}[{key!r}]")
    raise ShoalValueError(
        f"Cannot infer batch size from {where}, a dict with the keys {list(data)}: expected a "
        "tensor, an array or a list under one of them"
    )


def get_batch_size(data: Any, infer_batch_size_fn: Callable[[Any], int] | None = None) -> int:
    """Return the number of rows, counted by `infer_batch_size_fn` if it is given."""
    return infer_batch_size(data) if infer_batch_size_fn is None else infer_batch_size_fn(data)


def validate_batch_size(
    data: Any,
    expected_batch_size: int | None,
    infer_batch_size_fn: Callable[[Any], int] | None = None,
) -> None:
    """Check the number of rows; None skips the check.

    Raises:
        ShoalValueError: There are more or fewer rows.
    """
    if expected_batch_size is None:
        return
    found = get_batch_size(data, infer_batch_size_fn)
    if found != expected_batch_size:
        raise ShoalValueError(f"Expected batch size {expected_batch_size}, but received {found}.")


def split_batch(data: Any, split_sizes: Sequence[int]) -> list[Any]:
    """Cut a batch into pieces; each row is in exactly one piece.

    Tensors become contiguous chunks and arrays become views, both of the same memory where
    possible. A number, a flag or a text is in every piece.

    Args:
        data: The batch.
        split_sizes: Rows of each piece.

    Returns:
        The pieces, each of the type of the batch.

    Raises:
        ShoalValueError: The sizes do not sum exactly to the rows of every part of the batch, or a
            part has an unsupported type.
    """
    sizes = as_ints(split_sizes)
    if sizes is None:
        raise ShoalTypeError(
            f"split sizes {split_sizes!r}: expected a list of integers, the rows of each piece"
        )
    if any(size < 0 for size in sizes):
        raise ShoalValueError(f"split sizes {sizes}: expected 0 or more rows for each piece")
    return _split(data, sizes, "data")


def merge_batches(batches: Sequence[Any]) -> Any:
    """Join batches: tensors and arrays along their first dimension, lists end to end.

    Dicts are joined value by value and must have the same keys. Other values must be equal, and
    stay as they are.

    Returns:
        The joined batch. A single batch is returned as it is; None, if all batches are None.

    Raises:
        ShoalTypeError: They are not a list.
        ShoalValueError: There are no batches, or they cannot be joined.
    """
    given: Any = batches  # typed, but it comes from a user
    if not isinstance(given, Collection) or isinstance(given, (str, Mapping)):
        raise ShoalTypeError(f"batches={shown(batches)}: expected a list of batches")
    if not batches:
        raise ShoalValueError("Cannot merge an empty batch list.")
    found = list(batches)
    return found[0] if len(found) == 1 else _merge(found, "data")


def has_rows(value: Any) -> bool:
    """Whether a message has rows. Numbers and texts belong to every row."""
    if isinstance(value, dict):
        return any(map(has_rows, value.values()))
    return _kind(value) not in ("none", "scalar")


def _kind(value: Any) -> str:
    if is_tensor(value):
        return "tensor"
    if _is_array(value):
        return "array"
    if isinstance(value, list):
        return "list"
    if isinstance(value, dict):
        return "dict"
    if value is None:
        return "none"
    return "scalar" if isinstance(value, _SCALARS) else "other"


def _rows(value: Any, where: str) -> int:
    if isinstance(value, list):
        return len(value)
    if _kind(value) not in ("tensor", "array"):
        raise ShoalValueError(
            f"Unsupported payload type for batch-size inference: {type(value).__name__} ({where}); "
            "expected a tensor, an array, a list, or a dict of them"
        )
    if not value.ndim:
        raise ShoalValueError(
            f"{where}: Cannot infer batch size from a {type(value).__name__} of no dimension, "
            "which has no rows"
        )
    return int(value.shape[0])


def _split(data: Any, sizes: list[int], where: str) -> list[Any]:
    kind = _kind(data)
    if kind == "scalar":
        return [data] * len(sizes)
    if kind == "dict":
        columns = {
            key: [None] * len(sizes) if value is None else _split(value, sizes, f"{where}[{key!r}]")
            for key, value in data.items()
        }
        return [{key: column[at] for key, column in columns.items()} for at in range(len(sizes))]
    if kind in ("none", "other"):
        raise ShoalValueError(
            f"Unsupported payload type for batch split: {where} is of type {type(data).__name__}; "
            "expected tensors, arrays, lists, numbers, texts, and dicts of them"
        )
    rows = _rows(data, where)
    if sum(sizes) != rows:
        raise ShoalValueError(
            f"split sizes {sizes} must sum exactly to the rows of {where}: they are {sum(sizes)}, "
            f"and it has {rows}"
        )
    if kind == "tensor":
        return [chunk.contiguous() for chunk in data.split(sizes)] if sizes else []
    ends = list(itertools.accumulate(sizes))
    return [data[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _merge(batches: list[Any], where: str) -> Any:
    kinds = [_kind(batch) for batch in batches]
    if "none" in kinds:
        if set(kinds) == {"none"}:
            return None
        raise ShoalValueError(
            f"Cannot merge a mix of None and non-None: {where} is None in batch "
            f"{kinds.index('none')} of {len(batches)}, and not in all"
        )
    joined = {"tensor", "array", "list", "dict"} & set(kinds)
    if joined and len(set(kinds)) > 1:
        names = ", ".join(type(batch).__name__ for batch in batches)
        raise ShoalValueError(
            f"Unsupported payload type for batch merge: {where} is of different types: {names}"
        )
    if kinds[0] == "dict":
        _check_keys(batches, where)
        return {
            key: _merge([batch[key] for batch in batches], f"{where}[{key!r}]")
            for key in batches[0]
        }
    if kinds[0] == "list":
        return list(itertools.chain.from_iterable(batches))
    if joined:
        try:
            if kinds[0] == "array":
                return sys.modules["numpy"].concatenate(batches)
            return sys.modules["torch"].cat(batches)
        except (ValueError, TypeError, RuntimeError) as error:
            shapes = ", ".join(str(tuple(batch.shape)) for batch in batches)
            raise ShoalValueError(
                f"Cannot merge batches: {where} has the shapes {shapes}: {error}"
            ) from error
    return _same(batches, where)


def _check_keys(batches: list[dict[Any, Any]], where: str) -> None:
    for number, batch in enumerate(batches):
        if batch.keys() != batches[0].keys():
            different = sorted(map(repr, batch.keys() ^ batches[0].keys()))
            raise ShoalValueError(
                f"Cannot merge batches: {where} has the keys {', '.join(different)} in one of the "
                f"batches 0 and {number} only"
            )


def _same(batches: list[Any], where: str) -> Any:
    try:
        equal = all(bool(batch == batches[0]) for batch in batches[1:])
    except (TypeError, ValueError, RuntimeError):  # the value compares element by element
        equal = False
    if not equal:
        raise ShoalValueError(
            f"Unsupported payload type for batch merge: {where} is of type "
            f"{type(batches[0]).__name__}, which has no rows, and differs between the batches"
        )
    return batches[0]


def _is_array(value: Any) -> bool:
    """Whether a value is a numpy array; does not load numpy."""
    # Another thread may be importing numpy.
    return isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ()))
