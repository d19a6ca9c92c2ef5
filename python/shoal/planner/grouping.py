"""Fold processes that are placed the same way into `Block`s, and equal nodes into `NodeRow`s."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.planner.environment import SET_AT_LAUNCH
from shoal.planner.inventory_spec import UNKNOWN_MODEL
from shoal.planner.model import PlannedComponent, PlannedNode, PlannedProcess
from shoal.planner.phrases import count_of, show_ranks

__all__ = ["Block", "NodeRow", "blocks_of", "node_rows", "variables_of"]

_MOST_PARTS = 4
_UNKNOWN = f":{UNKNOWN_MODEL}"
# Of the variables that launch sets, a block shows only those with these endings.
_SHOWN = ("_VISIBLE_DEVICES", "DEVICE_SELECTOR")


@dataclass(frozen=True)
class Block:
    """Processes of consecutive ranks on consecutive nodes, placed the same way on each node.

    Attributes:
        processes: The processes, by rank.
        nodes: The first and the last node.
    """

    processes: tuple[PlannedProcess, ...]
    nodes: tuple[int, int]

    @property
    def ranks(self) -> str:
        """The ranks, as a range."""
        return show_ranks(process.rank for process in self.processes)

    @property
    def per_node(self) -> int:
        """Number of processes on each node."""
        return len(self.processes) // (self.nodes[1] - self.nodes[0] + 1)

    @property
    def node_group(self) -> str:
        """The node group."""
        return self.processes[0].node_group

    @property
    def hardware(self) -> str:
        """The hardware that the processes of one node own: `0-7, 2 each`."""
        return _describe(self.processes[: self.per_node])

    @property
    def visible(self) -> str:
        """The accelerators that the processes see."""
        if all(p.visible_devices == () for p in self.processes):
            return "none"
        first = self.processes[: self.per_node]
        owns = first[0].hardware_type == ACCELERATOR_HW_TYPE
        if owns and all(len(p.visible_devices) == len(p.hardware_ranks) for p in first):
            return "its own"
        return _devices(dict.fromkeys(d for p in first for d in p.visible_devices))


def blocks_of(component: PlannedComponent) -> list[Block]:
    """Return the blocks of a component, by rank."""
    found: list[tuple[object, list[PlannedProcess], list[int]]] = []
    for node, chunk in groupby(component.processes, key=lambda p: p.node):
        processes = list(chunk)
        pattern = _pattern(processes)
        if found and found[-1][0] == pattern and found[-1][2][1] == node - 1:
            found[-1][1].extend(processes)
            found[-1][2][1] = node
        else:
            found.append((pattern, processes, [node, node]))
    return [Block(tuple(processes), (a, b)) for _, processes, (a, b) in found]


def variables_of(component: PlannedComponent, block: Block) -> dict[str, str]:
    """Return the variables that the configuration sets for a block, and its visible devices."""
    first, last = block.processes[0], block.processes[-1]
    own = component.environment | first.environment
    shown = {
        name: shlex.quote(value)
        for name, value in first.configured.items()
        if name not in SET_AT_LAUNCH and own.get(name, value) == value
    }
    for name, value in first.environment.items():
        if name.endswith(_SHOWN) and not name.startswith("RAY_"):
            other = last.environment[name]
            shown[name] = value if value == other else f"{value} … {other}"
    return shown


@dataclass(frozen=True)
class NodeRow:
    """Nodes with the same hardware, processes and node groups.

    Attributes:
        nodes: The nodes.
        hardware: The hardware of each node: `8 NV_GPU:H100`.
        processes: The processes on each node: `actor 8, agent 100`.
        idle: Number of devices without a process, on each node.
        shared: Number of devices with several processes, on each node.
    """

    nodes: tuple[PlannedNode, ...]
    hardware: str
    processes: str
    idle: int
    shared: int

    @property
    def names(self) -> str:
        """The known hostnames or addresses."""
        known = [node.hostname or node.ip for node in self.nodes if node.hostname or node.ip]
        if len(known) > _MOST_PARTS:
            return f"{known[0]} … {known[-1]}"
        return ", ".join(known)


def node_rows(nodes: Iterable[PlannedNode]) -> list[NodeRow]:
    """Group equal nodes, in the order of the first node of each group."""
    groups: dict[tuple[str, str, int, int, int, tuple[str, ...]], list[PlannedNode]] = {}
    for node in nodes:
        hardware = ", ".join(_counted(node)) or "none"
        processes = ", ".join(f"{name} {n:,}" for name, n in node.processes.items())
        idle = sum(not device.users for device in node.devices)
        shared = sum(len(device.users) > 1 for device in node.devices)
        key = (hardware, processes or "none", idle, shared, node.cpus, node.groups)
        groups.setdefault(key, []).append(node)
    return [
        NodeRow(tuple(group), hardware, processes, idle, shared)
        for (hardware, processes, idle, shared, *_), group in groups.items()
    ]


def _pattern(processes: Sequence[PlannedProcess]) -> object:
    first = processes[0]
    return (
        tuple(p.hardware_ranks for p in processes),
        tuple(len(p.visible_devices) for p in processes),
        first.node_group,
        first.hardware_type,
        first.interpreter,
        tuple(first.configured.items()),
    )


def _describe(processes: Sequence[PlannedProcess]) -> str:
    kind = processes[0].hardware_type
    if kind is None:
        return "the node"
    shared = [
        (ranks, len(list(group))) for ranks, group in groupby(p.hardware_ranks for p in processes)
    ]
    # Neighbouring sets of equal size, with equally many processes on each, are one part.
    parts = [
        _describe_sets([ranks for ranks, _ in group], count)
        for (count, _), group in groupby(shared, key=lambda entry: (entry[1], len(entry[0])))
    ]
    more = "; …" if len(parts) > _MOST_PARTS else ""
    name = "" if kind == ACCELERATOR_HW_TYPE else f"{kind} "
    return f"{name}{'; '.join(parts[:_MOST_PARTS])}{more}"


def _describe_sets(owned: Sequence[tuple[int, ...]], count: int) -> str:
    """Describe sets of hardware of one size, with `count` processes on each."""
    every = [rank for ranks in owned for rank in ranks]
    size = len(owned[0])
    if any(b <= a for a, b in pairwise(every)):  # strided, or in another order
        shown = " | ".join(show_ranks(ranks) for ranks in owned[:_MOST_PARTS])
        ranks, each = f"{shown} | …" if len(owned) > _MOST_PARTS else shown, ""
    else:
        ranks, each = show_ranks(every), f", {size} each" if len(owned) > 1 else ""
    if count == 1:
        return f"{ranks}{each}"
    each = each if size > 1 else ""
    return f"{ranks}{each}, {count_of(count, 'process', 'processes')} on each"


def _devices(names: Iterable[str]) -> str:
    listed = list(names)
    if all(name.isdecimal() for name in listed):
        return show_ranks(map(int, listed))
    return ", ".join(listed[:_MOST_PARTS]) + (", …" if len(listed) > _MOST_PARTS else "")


def _counted(node: PlannedNode) -> Iterator[str]:
    for (kind, model), group in groupby(node.devices, key=lambda d: (d.hardware_type, d.model)):
        count = len(list(group))
        name = model.removesuffix(_UNKNOWN)
        yield f"{count} {name if kind == ACCELERATOR_HW_TYPE or kind in name else f'{kind}:{name}'}"
