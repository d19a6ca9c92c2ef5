"""A plan as data: what would run where, before anything is started.

Everything here is frozen and made of plain values, so that a plan can be written down, read back
and compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shoal.hardware import ACCELERATOR_HW_TYPE

__all__ = [
    "Plan",
    "PlannedComponent",
    "PlannedDevice",
    "PlannedNode",
    "PlannedProcess",
    "ProcessId",
    "Totals",
]


ProcessId = tuple[str, int]
"""A component and a rank of it."""


@dataclass(frozen=True)
class PlannedProcess:
    """One process of a component.

    Attributes:
        rank: Its rank in the component.
        node: The rank of its node in the cluster.
        node_group: The label of the node group that its resources belong to.
        hardware_type: What it owns: `Accelerator`, the type of a robot, or None where its resource
            is the node.
        hardware_ranks: The hardware that it owns, as indices of its node.
        visible_devices: The accelerators that it sees, in the node's own terms.
        interpreter: The Python that runs it; empty for the node's own.
        configured: The variables that the configuration sets for its node.
        environment: The variables that launch sets for this process, beside those of its component;
            they win over the configured ones.
    """

    rank: int
    node: int
    node_group: str
    hardware_type: str | None = None
    hardware_ranks: tuple[int, ...] = ()
    visible_devices: tuple[str, ...] = ()
    interpreter: str = ""
    configured: dict[str, str] = field(default_factory=dict, hash=False)
    environment: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class PlannedComponent:
    """One component.

    Attributes:
        name: Its name.
        entry: The names of the configuration's entry that places it, itself among them.
        node_groups: The labels of the node groups whose resources its placement counts.
        processes: Its processes, by rank.
        profiler: The profiler that they run under, empty for none.
        environment: The variables that launch sets for all of them alike.
    """

    name: str
    entry: tuple[str, ...]
    node_groups: tuple[str, ...]
    processes: tuple[PlannedProcess, ...]
    profiler: str = ""
    environment: dict[str, str] = field(default_factory=dict, hash=False)

    def environment_of(self, process: PlannedProcess) -> dict[str, str]:
        """Return all variables that one of its processes gets, as far as they are known."""
        return process.configured | self.environment | process.environment


@dataclass(frozen=True)
class PlannedDevice:
    """One piece of hardware of a node.

    Attributes:
        hardware_type: `Accelerator`, or the type of a robot.
        index: Its index among the hardware of this type on its node.
        model: Its model, `NV_GPU:H200` for example.
        users: The processes that own it.
    """

    hardware_type: str
    index: int
    model: str
    users: tuple[ProcessId, ...] = ()

    @property
    def components(self) -> tuple[str, ...]:
        """The components that own it, each once."""
        return tuple(dict.fromkeys(component for component, _ in self.users))


@dataclass(frozen=True)
class PlannedNode:
    """One node.

    Attributes:
        rank: Its rank in the cluster.
        hostname: Its name, empty where the inventory does not tell.
        ip: Its address, empty where the inventory does not tell.
        cpus: Its CPUs, 0 where the inventory does not tell.
        groups: The labels of the configured node groups that it belongs to.
        devices: Its hardware, in the order of type and index.
        processes: How many processes of each component it has.
    """

    rank: int
    hostname: str = ""
    ip: str = ""
    cpus: int = 0
    groups: tuple[str, ...] = ()
    devices: tuple[PlannedDevice, ...] = ()
    processes: dict[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Totals:
    """What a plan adds up to.

    Attributes:
        nodes: Nodes.
        cpus: Their CPUs, as far as they are known.
        accelerators: Their accelerators.
        robots: Their other hardware.
        processes: Processes.
        idle_devices: Hardware that no process owns.
        shared_devices: Hardware that several processes own.
    """

    nodes: int
    cpus: int
    accelerators: int
    robots: int
    processes: int
    idle_devices: int
    shared_devices: int


@dataclass(frozen=True)
class Plan:
    """What would run where.

    Attributes:
        source: What the configuration is called.
        inventory: What the inventory is called.
        components: The components, in the order of the configuration.
        nodes: The nodes, by rank.
        warnings: What is allowed, and perhaps not meant.
    """

    source: str
    inventory: str
    components: tuple[PlannedComponent, ...]
    nodes: tuple[PlannedNode, ...]
    warnings: tuple[str, ...] = ()

    def devices(self) -> Iterator[tuple[PlannedNode, PlannedDevice]]:
        """Every piece of hardware with its node, in the order of nodes."""
        for node in self.nodes:
            for device in node.devices:
                yield node, device

    def component(self, name: str) -> PlannedComponent | None:
        """Return the component of a name, None where there is none."""
        return next((c for c in self.components if c.name == name), None)

    @cached_property
    def totals(self) -> Totals:
        """What it adds up to."""
        devices = [device for _, device in self.devices()]
        accelerators = sum(device.hardware_type == ACCELERATOR_HW_TYPE for device in devices)
        return Totals(
            nodes=len(self.nodes),
            cpus=sum(node.cpus for node in self.nodes),
            accelerators=accelerators,
            robots=len(devices) - accelerators,
            processes=sum(len(c.processes) for c in self.components),
            idle_devices=sum(not device.users for device in devices),
            shared_devices=sum(len(device.users) > 1 for device in devices),
        )
