"""Checks of the arguments of a channel's calls: keys, weights and counts."""

import operator
from collections.abc import Hashable
from typing import Any

from shoal.errors import ShoalValueError
from shoal.shm.keys import refusal

__all__ = ["checked_count", "checked_key", "checked_weight"]

_LARGEST = 2**63 - 1


def checked_key(key: Hashable, queue_name: Hashable = None) -> Hashable:
    """Return `queue_name`, the older name of the argument, where it is given, otherwise `key`.

    Raises:
        ShoalTypeError: The key is not hashable.
    """
    key = key if queue_name is None else queue_name
    try:
        hash(key)
    except TypeError:
        raise refusal(key, key) from None
    return key


def checked_weight(value: Any, name: str = "weight", least: int = 0, most: int = _LARGEST) -> int:
    """Return a weight, or another number, as an integer.

    Raises:
        ShoalValueError: The value is not an integer, or is too small or too large.
    """
    try:
        weight = operator.index(value)
    except TypeError:
        raise ShoalValueError(f"{name}={value!r}: expected an integer") from None
    if not least <= weight <= most:
        expected = f"{least} or more" if weight < least else f"{most} or less"
        raise ShoalValueError(f"{name}={value!r}: expected {expected}")
    return weight


def checked_count(weights: int, items: int) -> None:
    """Check that there is a weight for each item.

    Raises:
        ShoalValueError: The numbers differ.
    """
    if weights != items:
        raise ShoalValueError(f"weights: expected {items}, one for each item, got {weights}")
