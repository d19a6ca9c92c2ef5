"""The dataclasses of a plan: what would run where.

All are frozen and hold plain values, so that a plan can be saved, loaded and compared.
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
"""The name of a component, and a rank in it."""


@dataclass(frozen=True)
class PlannedProcess:
    """One process of a component.

    Attributes:
        rank: Its rank in the component.
        node: The rank of its node in the cluster.
        node_group: The label of the node group that its resources belong to.
        hardware_type: The type of hardware that it owns: `Accelerator`, the type of a robot, or
            None if its resource is the whole node.
        hardware_ranks: The hardware that it owns, as indices on its node.
        visible_devices: The accelerators that it sees, by their names on the node.
        interpreter: The Python that runs it; empty for the node's own.
        configured: The variables that the configuration sets for its node.
        environment: The variables that launch sets for this process, without those of its
            component; they override the configured ones.
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
        entry: The components of the configuration's entry that places it, including itself.
        node_groups: The labels of the node groups whose resources its placement counts.
        processes: Its processes, by rank.
        profiler: The profiler that they run under, empty for none.
        environment: The variables that launch sets to the same values for all of them.
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
        hostname: Its name, empty if unknown.
        ip: Its address, empty if unknown.
        cpus: Its number of CPUs, 0 if unknown.
        groups: The labels of the configured node groups that it belongs to.
        devices: Its hardware, in the order of type and index.
        processes: The number of its processes, by component.
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
    """The totals of a plan.

    Attributes:
        nodes: Number of nodes.
        cpus: Number of known CPUs.
        accelerators: Number of accelerators.
        robots: Number of other pieces of hardware.
        processes: Number of processes.
        idle_devices: Number of pieces of hardware that no process owns.
        shared_devices: Number of pieces of hardware that several processes own.
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
    """The places where the processes of a configuration would run.

    Attributes:
        source: Name of the configuration.
        inventory: Name of the inventory.
        components: The components, in the order of the configuration.
        nodes: The nodes, by rank.
        warnings: Settings that are allowed but perhaps mistakes.
        explanation: Why the components are placed as they are; empty if the configuration says so.
    """

    source: str
    inventory: str
    components: tuple[PlannedComponent, ...]
    nodes: tuple[PlannedNode, ...]
    warnings: tuple[str, ...] = ()
    explanation: tuple[str, ...] = ()

    def devices(self) -> Iterator[tuple[PlannedNode, PlannedDevice]]:
        """Yield every piece of hardware with its node, in the order of nodes."""
        for node in self.nodes:
            for device in node.devices:
                yield node, device

    def component(self, name: str) -> PlannedComponent | None:
        """Return the component with this name, or None."""
        return next((c for c in self.components if c.name == name), None)

    @cached_property
    def totals(self) -> Totals:
        """The totals of the plan."""
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
