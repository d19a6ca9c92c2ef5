"""Read an inventory (the nodes to plan on): a short text, a YAML file, plain data or nodes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.bootstrap.extension import load_user_extension_module
from shoal.config import ClusterConfig
from shoal.config.yaml12 import read_yaml
from shoal.errors import ClusterConfigError, ShoalValueError
from shoal.hardware import (
    ACCELERATOR_HW_TYPE,
    HardwareInfo,
    HardwareResource,
    configured_hardware,
)
from shoal.hardware.accelerators import accelerator_model
from shoal.planner.inventory_spec import NodeKind, parse_nodes
from shoal.planner.inventory_yaml import read_nodes
from shoal.planner.phrases import count_of, show_ranks
from shoal.topology import NodeInfo

__all__ = ["Inventory", "nodes_with_robots", "read_inventory"]

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Inventory:
    """The nodes to plan on, which need not exist.

    Attributes:
        name: Its name in messages.
        nodes: The nodes, by rank.
    """

    name: str
    nodes: tuple[NodeInfo, ...]


def read_inventory(source: Any, hardware_types: Sequence[str] = ()) -> Inventory:
    """Read an inventory.

    Args:
        source: The short form (`16x8:H100/64cpu,2x0`), the path of a YAML file, the content of
            such a file, a list of `NodeInfo`, or anything with `nodes`, a `Cluster` for example.
        hardware_types: The known hardware types, to suggest one for a misspelt name.

    Raises:
        ClusterConfigError: The inventory is invalid; the error lists all problems.
        ShoalValueError: The source is none of these.
    """
    if isinstance(source, Inventory):
        return source
    load_user_extension_module()  # it may register a vendor that the inventory names
    if isinstance(source, os.PathLike) or (
        isinstance(source, str) and source.strip().endswith(_SUFFIXES)
    ):
        name = os.fspath(source)
        content, marks = read_yaml(Path(source))
        return _build(name, read_nodes(name, content, hardware_types, marks))
    if isinstance(source, str):
        return _build(source, parse_nodes(source, hardware_types))
    nodes = source if isinstance(source, (Mapping, Sequence)) else getattr(source, "nodes", None)
    if isinstance(nodes, Sequence) and nodes and all(isinstance(n, NodeInfo) for n in nodes):
        ranks = [node.node_rank for node in nodes]
        if ranks != list(range(len(nodes))):
            raise ClusterConfigError(
                f"the nodes of an inventory must have the ranks 0 to {len(nodes) - 1}, in this "
                f"order; not {show_ranks(ranks)}"
            )
        return Inventory(count_of(len(nodes), "node"), tuple(nodes))
    if isinstance(nodes, (Mapping, Sequence)) and not isinstance(nodes, (bytes, bytearray)):
        return _build("the inventory", read_nodes("the inventory", nodes, hardware_types))
    raise ShoalValueError(
        "an inventory must be a text such as 16x8:H100/64cpu, the path of a YAML file, what such a "
        f"file holds, a list of NodeInfo, or a Cluster; not {type(source).__name__}"
    )


def nodes_with_robots(inventory: Inventory, config: ClusterConfig | None) -> list[NodeInfo]:
    """Return copies of the nodes that a job uses, with the robots that its configuration lists.

    Raises:
        ClusterConfigError: Inventory and configuration list different numbers of a type on a node.
    """
    pieces: dict[int, list[Any]] = {}
    for group in (config.node_groups if config is not None else None) or []:
        for piece in group.hardware.configs if group.hardware is not None else ():
            pieces.setdefault(piece.node_rank, []).append(piece)
    count = None if config is None else config.num_nodes
    return [
        replace(node, hardware_resources=_combined(node, pieces.get(node.node_rank, []), inventory))
        for node in inventory.nodes[:count]
    ]


def _combined(node: NodeInfo, pieces: list[Any], inventory: Inventory) -> list[HardwareResource]:
    by_type = {resource.type: resource for resource in node.hardware_resources}
    for resource in configured_hardware(node.node_rank, pieces):
        known = by_type.get(resource.type)
        if known is not None and known.count != resource.count:
            raise ClusterConfigError(
                f"node {node.node_rank}: the configuration lists {resource.count} "
                f"{resource.type}, and the inventory {inventory.name} has {known.count}"
            )
        by_type[resource.type] = resource
    return list(by_type.values())


def _build(name: str, kinds: Sequence[NodeKind]) -> Inventory:
    return Inventory(name, tuple(_node(rank, kind) for rank, kind in enumerate(kinds)))


def _node(rank: int, kind: NodeKind) -> NodeInfo:
    resources: list[HardwareResource] = []
    if kind.accelerators:
        model = accelerator_model(kind.vendor, kind.model)
        info = HardwareInfo(ACCELERATOR_HW_TYPE, model)
        resources.append(HardwareResource(ACCELERATOR_HW_TYPE, [info] * kind.accelerators))
    for hw_type, count in kind.hardware.items():
        if count:
            robot = HardwareInfo(hw_type, hw_type)
            resources.append(HardwareResource(hw_type, [robot] * count))
    return NodeInfo(
        node_labels=[],
        node_rank=rank,
        ray_id="",
        node_ip=kind.ip,
        num_cpus=kind.cpus,
        hardware_resources=resources,
        hostname=kind.hostname,
    )
