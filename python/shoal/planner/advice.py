"""Warnings of a plan: settings that are allowed but perhaps mistakes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from shoal.config import ClusterConfig
from shoal.hardware import ACCELERATOR_HW_TYPE
from shoal.planner.environment import SET_AT_LAUNCH
from shoal.planner.model import Plan
from shoal.planner.phrases import count_of, show_ranks

__all__ = ["advise"]

_MOST_NAMES = 6
_NOT_KNOWN = dict.fromkeys(SET_AT_LAUNCH)


def advise(
    plan: Plan, config: ClusterConfig, inventory_nodes: int, hardware_types: Sequence[str]
) -> list[str]:
    """Return the warnings, one line each.

    Args:
        plan: The plan, still without warnings.
        config: The configuration.
        inventory_nodes: Number of nodes in the inventory.
        hardware_types: The registered hardware types other than accelerators.
    """
    return [
        *_surplus_nodes(plan, inventory_nodes),
        *_unknown_hardware(plan, hardware_types),
        *_unused_nodes(plan),
        *_sharing(plan),
        *_too_few_cpus(plan),
        *_ignored_hardware(plan, config),
        *_overwritten(plan),
    ]


def _nodes(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return f"node{'s' if len(listed) > 1 else ''} {show_ranks(listed)}"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    if len(listed) > _MOST_NAMES:
        return f"{', '.join(listed[:_MOST_NAMES])} and {len(listed) - _MOST_NAMES} more"
    return " and ".join(", ".join(listed).rsplit(", ", 1))


def _surplus_nodes(plan: Plan, inventory_nodes: int) -> Iterator[str]:
    if inventory_nodes > len(plan.nodes):
        surplus = range(len(plan.nodes), inventory_nodes)
        yield (
            f"the inventory has {count_of(inventory_nodes, 'node')} and num_nodes is "
            f"{len(plan.nodes)}: {_nodes(surplus)} {'stay' if len(surplus) > 1 else 'stays'} unused"
        )


def _unknown_hardware(plan: Plan, hardware_types: Sequence[str]) -> Iterator[str]:
    """Warn of hardware types in the inventory that no configuration can name: `8/gpu`."""
    found = {device.hardware_type for _, device in plan.devices()}
    for unknown in sorted(found - {ACCELERATOR_HW_TYPE, *hardware_types}):
        yield (
            f"the inventory's hardware type {unknown!r} is not registered, so no job can ask for "
            f"it; there are {_names(hardware_types)}; the module that SHOAL_EXT_MODULE names may "
            "register others"
        )


def _unused_nodes(plan: Plan) -> Iterator[str]:
    unused = [node.rank for node in plan.nodes if not node.processes]
    if unused:
        yield f"no process runs on {_nodes(unused)}"


def _sharing(plan: Plan) -> Iterator[str]:
    """Warn of devices shared by components of different entries: it may not be intended."""
    entries = {component.name: component.entry for component in plan.components}
    shared: dict[tuple[str, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for node, device in plan.devices():
        components = device.components
        if len({entries[name] for name in components}) > 1:
            shared[components][node.rank] += 1
    for components, by_node in shared.items():
        yield (
            f"{_names(components)} share {count_of(sum(by_node.values()), 'device')} on "
            f"{_nodes(by_node)}, placed by different entries; components of one entry "
            f'("{",".join(components[:_MOST_NAMES])}: …") say that they mean to'
        )


def _too_few_cpus(plan: Plan) -> Iterator[str]:
    short: dict[tuple[int, int], list[int]] = defaultdict(list)
    for node in plan.nodes:
        processes = sum(node.processes.values())
        if node.cpus and processes > node.cpus:
            short[processes, node.cpus].append(node.rank)
    for (processes, cpus), ranks in short.items():
        each = " each" if len(ranks) > 1 else ""
        yield (
            f"{_nodes(ranks)}: {count_of(processes, 'process', 'processes')} and "
            f"{count_of(cpus, 'CPU')}{each}; {count_of(processes - cpus, 'process', 'processes')} "
            "without a CPU"
        )


def _ignored_hardware(plan: Plan, config: ClusterConfig) -> Iterator[str]:
    used = {label for component in plan.components for label in component.node_groups}
    for group in config.node_groups or []:
        if not (group.ignore_hardware and group.label in used):
            continue
        ignored = sum(
            device.hardware_type == ACCELERATOR_HW_TYPE
            for rank in group.node_ranks
            for device in plan.nodes[rank].devices
        )
        if ignored:
            yield (
                f"node group {group.label!r} ignores the {count_of(ignored, 'accelerator')} "
                f"of its nodes (ignore_hardware)"
            )


def _overwritten(plan: Plan) -> Iterator[str]:
    """Warn of variables in `env_vars` that launch sets to another value."""
    lost: dict[str, set[str]] = defaultdict(set)
    for component in plan.components:
        for process in component.processes:
            if process.configured:
                own = _NOT_KNOWN | component.environment | process.environment
                lost[process.node_group] |= {
                    name
                    for name, value in process.configured.items()
                    if own.get(name, value) != value
                }
    for label, names in lost.items():
        if names:
            yield (
                f"node group {label!r} sets {_names(sorted(names))} in env_vars, which launch sets "
                "itself: the group's value is not used"
            )
