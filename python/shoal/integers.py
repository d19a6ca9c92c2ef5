"""Integers that users give: those of Python, and of any type with `__index__`, such as numpy's."""

import math
import operator
from typing import Any

__all__ = ["as_int", "as_ints"]


def as_int(value: Any, least: float = -math.inf, most: float = math.inf) -> int | None:
    """Return an integer as an int; None if it is out of range, a bool, or not an integer."""
    try:
        number = _index(value)
    except TypeError:
        return None
    return number if least <= number <= most else None


def as_ints(values: Any) -> list[int] | None:
    """Return several integers as ints; None if they are not iterable, or one is not an integer."""
    try:
        return [_index(value) for value in values]
    except TypeError:
        return None


def _index(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is a mistake")
    return operator.index(value)
