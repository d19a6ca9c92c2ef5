"""Curves through measured points: seconds as a function of a count, between the measurements."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal.errors import ShoalValueError

__all__ = ["Curve", "fit"]

Curve = Callable[[float], float]

_FEWEST_FOR_QUADRATIC = 4
_LARGEST_EXPONENT = 300.0
"""Steep measurements lead to larger ones, whose squares overflow."""


def fit(points: Mapping[int, float]) -> Curve:
    """Return a function that has the measured value at each point, and a fitted one between them.

    Between points it is the best of a power, an exponential, a logarithmic and a quadratic
    function, by the coefficient of determination; where that is not positive, the straight line
    between the neighbours. Below the first point it is constant; above the last one it grows in
    proportion.

    Args:
        points: Measured seconds by count.

    Raises:
        ShoalValueError: There are no points, or they are not positive numbers.
    """
    bad = {x: y for x, y in points.items() if not (_is_positive(x) and _is_positive(y))}
    if bad or not points:
        raise ShoalValueError(
            f"{dict(bad) or dict(points)}: expected counts with the seconds that were measured, "
            "all of them positive numbers"
        )
    known = {float(x): float(points[x]) for x in sorted(points)}
    xs, ys = list(known), list(known.values())
    best = _best(xs, ys)

    def curve(x: float) -> float:
        if x in known:
            return known[x]
        if x < xs[0]:
            return ys[0]
        if x > xs[-1]:
            return ys[-1] * x / xs[-1]
        fitted = best(x)
        if fitted > 0:
            return fitted
        return float(np.interp(x, xs, ys))

    return curve


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value > 0
    )


def _best(xs: Sequence[float], ys: Sequence[float]) -> Curve:
    if len(xs) == 1:
        return lambda _: ys[0]
    x, y = np.asarray(xs), np.asarray(ys)
    power, exponential = np.polyfit(np.log(x), np.log(y), 1), np.polyfit(x, np.log(y), 1)
    logarithmic = np.polyfit(np.log(x), y, 1)
    curves: list[Curve] = [
        lambda v: _exp(power[1] + power[0] * math.log(v)),
        lambda v: _exp(exponential[1] + exponential[0] * v),
        lambda v: float(logarithmic[1] + logarithmic[0] * math.log(v)),
    ]
    if len(xs) >= _FEWEST_FOR_QUADRATIC:  # through three points it always passes exactly
        quadratic = np.polyfit(x, y, 2)
        curves.append(lambda v: float(np.polyval(quadratic, v)))
    return min(curves, key=lambda one: sum((one(a) - b) ** 2 for a, b in zip(xs, ys, strict=True)))


def _exp(value: float) -> float:
    return math.exp(min(value, _LARGEST_EXPONENT))
