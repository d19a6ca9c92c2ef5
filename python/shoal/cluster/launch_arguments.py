"""Checks of what a user gives to the `launch` of a group, of workers or of a channel's actors."""

import inspect
from typing import Any

from shoal.cluster.cluster import Cluster
from shoal.errors import ShoalTypeError
from shoal.problems import shown

__all__ = ["check_launch"]

_EXAMPLE = 'launch(cluster, NodePlacementStrategy([0, 0]), "players")'


def check_launch(cls: type, cluster: Any, strategy: Any, name: Any) -> None:
    """Check the class and the arguments of a launch before anything is started.

    Raises:
        ShoalTypeError: The class is abstract, or an argument is of a wrong type, as if one was left
            out.
    """
    # A strategy of a user need not be derived from `PlacementStrategy`.
    places = callable(getattr(strategy, "get_placement", None)) and not isinstance(strategy, type)
    for parameter, given, is_right, expected in (
        ("cluster", cluster, isinstance(cluster, Cluster), "a Cluster"),
        (
            "placement_strategy", strategy, strategy is None or places,
            "a strategy, such as NodePlacementStrategy([0, 0]) or "
            'ComponentPlacement("cluster.yaml", cluster).get_strategy("player")',
        ),
        ("name", name, name is None or isinstance(name, str), "a text"),
    ):  # fmt: skip
        if not is_right:
            raise ShoalTypeError(
                f"launch: {parameter}: expected {expected}, got {shown(given)} "
                f"({type(given).__name__}); for example {_EXAMPLE}"
            )
    if inspect.isabstract(cls):
        methods = ", ".join(sorted(cls.__abstractmethods__))  # type: ignore[attr-defined]  # an abstract class has them
        raise ShoalTypeError(
            f"the class {cls.__name__} is abstract, so no worker can be made of it; launch a class "
            f"derived from it that has the methods {methods}"
        )
