"""Shape and dtype of an array to reserve, and such an array in memory of this process."""

import importlib
import math
import sys
from collections.abc import Sequence
from typing import Any

from shoal.errors import ChannelMemoryError, DependencyError, ShoalTypeError, ShoalValueError
from shoal.integers import as_int
from shoal.pickling import is_quantized

__all__ = ["as_dtype", "checked_form", "load_numpy", "most_dimensions", "new_array"]

_LARGEST = 2**63 - 1


def new_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a new array, or a tensor for a torch dtype, with undefined values.

    Args:
        shape: The shape, from `checked_form`.
        dtype: The dtype, from `checked_form`.

    Raises:
        ShoalValueError: numpy cannot make such an array.
        ChannelMemoryError: The process has no memory for it.
    """
    torch: Any = sys.modules.get("torch")
    size = math.prod(shape) * dtype.itemsize
    try:
        if isinstance(dtype, getattr(torch, "dtype", ())):
            raw = torch.empty(size, dtype=torch.uint8)  # with the dtype, torch warns of some
            return raw.view(dtype).reshape(shape)
        return load_numpy().empty(shape, dtype)
    except ValueError as error:  # numpy counts the bytes of an empty array without its size of 0
        raise ShoalValueError(f"room for shape {shape} cannot be reserved: {error}") from error
    except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError
        raise ChannelMemoryError(
            f"reserve: this process has no memory for shape {shape}: {error}"
        ) from error


def checked_form(shape: Any, dtype: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape as a tuple, and the dtype of numpy or torch.

    Raises:
        ShoalTypeError: They have other types.
        ShoalValueError: A size is out of range, or there can be no such array in memory.
        DependencyError: It is a dtype of numpy, which is not installed.
    """
    sizes, kind = _sizes(shape), as_dtype(dtype)
    most = most_dimensions(kind)
    if len(sizes) > most or math.prod(sizes) * kind.itemsize > _LARGEST:
        raise ShoalValueError(
            f"room for shape {shape} cannot be reserved: expected at most {most} dimensions, and "
            "no more bytes than memory can have"
        )
    return sizes, kind


def _sizes(shape: Any) -> tuple[int, ...]:
    if isinstance(shape, Sequence) and not isinstance(shape, (str, bytes)):
        return tuple(_size(size, shape) for size in shape)
    return (_size(shape, shape),)


def _size(size: Any, shape: Any) -> int:
    checked = as_int(size)
    if checked is None:
        raise ShoalTypeError(f"shape={shape!r}: expected an int or a sequence of ints")
    if not 0 <= checked <= _LARGEST:
        raise ShoalValueError(f"shape={shape!r}: expected sizes from 0 to {_LARGEST}")
    return checked


def as_dtype(dtype: Any) -> Any:
    """Return the dtype of numpy or torch whose values can lie in shared memory.

    Raises:
        ShoalTypeError: It is none.
        ShoalValueError: Its values cannot be made in memory.
        DependencyError: It is a dtype of numpy, which is not installed.
    """
    if isinstance(dtype, getattr(sys.modules.get("torch"), "dtype", ())):
        if is_quantized(dtype):
            raise ShoalValueError(
                f"dtype={dtype}: quantized values cannot be made in place: put a quantized tensor"
            )
        return dtype
    try:
        kind = load_numpy().dtype(dtype)
    except TypeError as error:
        raise ShoalTypeError(f"dtype={dtype!r}: expected one of numpy's or torch's") from error
    if kind.hasobject:
        raise ShoalValueError(f"dtype={dtype!r}: objects cannot lie in shared memory")
    return kind


def most_dimensions(kind: Any) -> int:
    """Return the maximum number of dimensions: numpy's own limit; for tensors 16, as in any put."""
    numpy: Any = sys.modules.get("numpy")
    if not isinstance(kind, getattr(numpy, "dtype", ())):
        return 16
    return 64 if numpy.lib.NumpyVersion(numpy.__version__) >= "2.0.0" else 32


def load_numpy() -> Any:
    """Import numpy: only now, so that only processes that reserve arrays wait for the import.

    Raises:
        DependencyError: It is not installed.
    """
    try:
        return importlib.import_module("numpy")
    except ImportError as error:
        raise DependencyError("reserve needs numpy: install it") from error
