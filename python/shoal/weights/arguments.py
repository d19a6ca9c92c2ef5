"""Checks of the arguments of `Weights`."""

import sys
from typing import Any

from shoal.errors import ShoalValueError
from shoal.weights.part_names import VersionPart
from shoal.weights.version import MOST_IN_EPOCH, Version

__all__ = ["check_name", "checked_delta", "checked_dtype", "checked_part", "checked_version"]


def check_name(name: Any) -> None:
    """Check the name of weights.

    Raises:
        ShoalValueError: It is not valid.
    """
    if type(name) is not str or not name or ":" in name:
        raise ShoalValueError(
            f"weights name {name!r}: expected a text that is not empty and has no ':'"
        )


def checked_version(given: Any, argument: str) -> Version:
    """Return an argument that is a version.

    Raises:
        ShoalValueError: It is not valid.
    """
    try:
        version = Version(*given)
    except TypeError:
        version = Version(-1, -1)
    if not all(type(part) is int and part >= 0 for part in version):
        raise ShoalValueError(
            f"{argument}={given!r}: expected a version, such as snapshot.version, or None"
        )
    return version


def checked_delta(delta: Any) -> bool | str | Version:
    """Return the `delta` of a publish.

    Raises:
        ShoalValueError: It is not valid.
    """
    if isinstance(delta, tuple):
        return checked_version(delta, "delta")
    if delta is True or delta is False or delta == "counters":
        return bool(delta) if isinstance(delta, bool) else "counters"
    raise ShoalValueError(
        f"publish: delta={delta!r}: expected True, False, 'counters', or the version to build on"
    )


def checked_part(part: Any, version: Any, delta: Any) -> VersionPart | None:
    """Return the part that a publish is; None if it is the whole.

    Raises:
        ShoalValueError: It is not valid.
    """
    if part is None:
        return None
    if (
        not isinstance(part, tuple)
        or [type(number) for number in part] != [int, int]
        or not 0 <= part[0] < part[1]
    ):
        raise ShoalValueError(f"publish: part={part!r}: expected (rank, number of parts)")
    if type(version) is not int or not 0 <= version <= MOST_IN_EPOCH:
        raise ShoalValueError(
            f"publish: part={part!r}, version={version!r}: expected the number of the version, which "
            "all parts have to give"
        )
    if delta is not False:
        raise ShoalValueError("publish: delta= and part= cannot be used together")
    return VersionPart(version, *part)


def checked_dtype(dtype: Any) -> Any:
    """Return the `dtype` of a publish.

    Raises:
        ShoalValueError: It is not valid.
    """
    torch = sys.modules.get("torch")
    if dtype is None or (
        torch is not None and isinstance(dtype, torch.dtype) and dtype.is_floating_point
    ):
        return dtype
    raise ShoalValueError(
        f"publish: dtype={dtype!r}: expected a floating-point dtype of torch, or None"
    )
