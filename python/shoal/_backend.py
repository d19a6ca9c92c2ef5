"""Chooses the implementation of the core: `shoal._rust` or `shoal._pure`.

The environment variable `SHOAL_BACKEND` selects it: `rust`, `pure`, or `auto` (the default), which
takes Rust and falls back to Python, with one warning, only if the extension is not installed. The
variable is read once, when this module is imported.
"""

import importlib
import importlib.metadata
import os
import warnings
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = [
    "NAME",
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
    "backend",
    "build_profile",
    "load",
    "packed_ranks",
    "parse_placement",
    "place_flexible",
    "place_nodes",
    "place_packed",
    "shm_gc",
]

_CHOICES = ("rust", "pure", "auto")


def load(choice: str) -> ModuleType:
    """Import one of the two implementations.

    Args:
        choice: `rust`, `pure` or `auto`.

    Returns:
        The module `shoal._rust` or `shoal._pure`.

    Raises:
        ValueError: `choice` is not one of the three.
        ImportError: The extension is broken or of another version than the package, or `rust` is
            requested and the extension is not installed.
    """
    if choice not in _CHOICES:
        raise ValueError(
            f"SHOAL_BACKEND={choice!r} is not a backend; expected one of {', '.join(_CHOICES)}"
        )
    if choice == "pure":
        return importlib.import_module("shoal._pure")
    try:
        module = importlib.import_module("shoal._rust")
    except ModuleNotFoundError as error:
        # Fall back only if the extension is missing; a broken one must raise.
        if error.name != "shoal._rust":
            raise
        if choice == "rust":
            raise ImportError(
                "SHOAL_BACKEND=rust, but the extension shoal._rust is not installed; install a "
                "wheel of shoal for this platform, or set SHOAL_BACKEND=pure"
            ) from error
        warnings.warn(
            "the extension shoal._rust is not installed; shoal runs on its slower Python "
            "implementation (SHOAL_BACKEND=pure chooses it without this warning)",
            RuntimeWarning,
            stacklevel=2,
        )
        return importlib.import_module("shoal._pure")
    installed = importlib.metadata.version("shoal")
    if module.__version__ != installed:
        raise ImportError(
            f"the extension shoal._rust has version {module.__version__}, the package shoal has "
            f"version {installed}: reinstall shoal"
        )
    return module


_module = load(os.environ.get("SHOAL_BACKEND", "auto") or "auto")

NAME: str = _module.__name__.rpartition("._")[2]

if TYPE_CHECKING:  # type checkers see the contract of both backends
    from shoal._rust import (
        ChannelBase,
        NodeGroup,
        NodeResources,
        Placement,
        Placements,
        RankLists,
        ShmMessage,
        ShmParcel,
        ShmQueue,
        ShmReservation,
        ShmSession,
        WorkerAddress,
        build_profile,
        packed_ranks,
        parse_placement,
        place_flexible,
        place_nodes,
        place_packed,
        shm_gc,
    )
else:
    ChannelBase = _module.ChannelBase
    NodeGroup = _module.NodeGroup
    NodeResources = _module.NodeResources
    Placement = _module.Placement
    Placements = _module.Placements
    RankLists = _module.RankLists
    ShmMessage = _module.ShmMessage
    ShmParcel = _module.ShmParcel
    ShmQueue = _module.ShmQueue
    ShmReservation = _module.ShmReservation
    ShmSession = _module.ShmSession
    WorkerAddress = _module.WorkerAddress
    build_profile = _module.build_profile
    packed_ranks = _module.packed_ranks
    parse_placement = _module.parse_placement
    place_flexible = _module.place_flexible
    place_nodes = _module.place_nodes
    place_packed = _module.place_packed
    shm_gc = _module.shm_gc


def backend() -> str:
    """Return the name of the implementation in use: `rust` or `pure`."""
    return NAME
