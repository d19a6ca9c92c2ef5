"""The core in Python: a fallback with the names, results, errors and messages of `shoal._rust`.

`_rust.pyi` is the contract of both. This core is written to be read, the Rust core to be fast.
"""

from typing import Final

from shoal._pure.address import WorkerAddress
from shoal._pure.grammar import parse_placement
from shoal._pure.placement import NodeGroup, NodeResources, Placement
from shoal._pure.placements import Placements
from shoal._pure.ranks import RankLists
from shoal._pure.shm import (
    ChannelBase,
    ShmMessage,
    ShmParcel,
    ShmQueue,
    ShmReservation,
    ShmSession,
    shm_gc,
)
from shoal._pure.solve import packed_ranks, place_flexible, place_nodes, place_packed

__all__ = [
    "ChannelBase",
    "NodeGroup",
    "NodeResources",
    "Placement",
    "Placements",
    "RankLists",
    "ShmMessage",
    "ShmParcel",
    "ShmQueue",
    "ShmReservation",
    "ShmSession",
    "WorkerAddress",
    "__version__",
    "build_profile",
    "packed_ranks",
    "parse_placement",
    "place_flexible",
    "place_nodes",
    "place_packed",
    "shm_gc",
]

__version__: Final[str] = "0.1.0"
build_profile: Final[str] = "pure"
