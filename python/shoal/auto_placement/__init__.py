"""Auto placement: from measured times of a job's components to the placement that is fastest."""

from shoal.auto_placement.place import (
    AutoPlacement,
    PlacedComponent,
    auto_place,
    auto_plan,
    find_placement,
)
from shoal.auto_placement.search import Layout, Stage, search

__all__ = [
    "AutoPlacement",
    "Layout",
    "PlacedComponent",
    "Stage",
    "auto_place",
    "auto_plan",
    "find_placement",
    "search",
]
