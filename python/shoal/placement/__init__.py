"""Placement: assigns the processes of each component to nodes and hardware."""

from shoal._backend import NodeGroup, NodeResources, Placement, Placements, RankLists
from shoal.placement.component import ComponentPlacement
from shoal.placement.resolver import MultiNodeGroupResolver
from shoal.placement.strategy import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
)

__all__ = [
    "ComponentPlacement",
    "FlexiblePlacementStrategy",
    "MultiNodeGroupResolver",
    "NodeGroup",
    "NodePlacementStrategy",
    "NodeResources",
    "PackedPlacementStrategy",
    "Placement",
    "PlacementStrategy",
    "Placements",
    "RankLists",
]
