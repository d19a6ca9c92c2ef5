"""`plan`: resolve a configuration on an inventory, as a launch would."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from shoal._backend import Placement
from shoal.config import ClusterConfig, Document, load, read_document
from shoal.errors import ClusterConfigError, ClusterError, PlacementError, ShoalValueError
from shoal.hardware import ACCELERATOR_HW_TYPE, Hardware
from shoal.placement import ComponentPlacement, PlacementStrategy
from shoal.placement.environment import group_environment
from shoal.planner.advice import advise
from shoal.planner.environment import planned_environment
from shoal.planner.inventory import Inventory, nodes_with_robots, read_inventory
from shoal.planner.model import (
    Plan,
    PlannedComponent,
    PlannedDevice,
    PlannedNode,
    PlannedProcess,
    ProcessId,
)
from shoal.planner.phrases import count_of
from shoal.profiling import ProfileConfig, get_profiling_env_vars_for_worker
from shoal.topology import DescribedCluster, NodeInfo, build_groups

__all__ = ["hardware_types", "plan"]

_T = TypeVar("_T")
_Users = Mapping[tuple[int, str, int], list[ProcessId]]


def plan(config: Any, inventory: Any = None) -> Plan:
    """Plan a job: which process would run where, with what, without starting anything.

    Args:
        config: A mapping, an OmegaConf `DictConfig` or the path of a YAML file; the whole document
            or its `cluster` section.
        inventory: The nodes to plan on: `16x8:H100/64cpu,2x0`, the path of a YAML file, the content
            of such a file, a list of `NodeInfo`, or a `Cluster`. Robots that the configuration
            lists need not be repeated.

    Returns:
        The plan.

    Raises:
        ClusterConfigError: The configuration or the inventory is invalid; lists all problems.
        PlacementError: Components do not fit; lists all of them.
        ShoalValueError: The inventory is missing, or has a wrong type.

    Example:
        >>> import shoal
        >>> job = {"num_nodes": 1, "component_placement": {"actor,critic": "0-7:0-3"}}
        >>> plan = shoal.plan(job, "1x8:H100")
        >>> [process.hardware_ranks for process in plan.components[0].processes]
        [(0, 1), (2, 3), (4, 5), (6, 7)]
    """
    problems = _Problems()
    document = read_document(config)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        checked = _checked(document, problems)
    heard = list(dict.fromkeys(str(warning.message) for warning in said))
    problems.notes = [f"warning: {message}" for message in heard]
    if inventory is None:
        problems.raise_any(document)
        raise ShoalValueError(_no_inventory(checked.num_nodes if checked else 1))
    found = problems.of(lambda: read_inventory(inventory, hardware_types()))
    if checked is None or found is None:
        raise problems.as_error(document)
    _count_nodes(checked, found, problems)
    cluster = problems.of(lambda: _cluster(checked, found))
    if cluster is None:
        raise problems.as_error(document)
    placement = problems.of(lambda: ComponentPlacement(document, cluster))
    if placement is None:
        raise problems.as_error(document)
    placed = problems.of(lambda: _place(placement, cluster))
    if placed is None or problems:
        raise problems.as_error(document)
    components = tuple(_components(placement, placed, cluster, checked.profiling))
    nodes = tuple(_nodes(cluster, checked, components))
    made = Plan(document.name, found.name, components, nodes)
    advice = advise(made, checked, len(found.nodes), hardware_types())
    return replace(made, warnings=(*heard, *advice))


def _checked(document: Document, problems: "_Problems") -> ClusterConfig | None:
    """Check a configuration.

    If only entries of `component_placement` are wrong, this does not report them: the placement
    reports them later, together with the entries that do not fit.
    """
    try:
        return load(document)
    except (ShoalValueError, ClusterError) as error:
        section = {**document.section, "component_placement": {}}
        try:
            if document.section.keys() == section.keys():
                return load(replace(document, section=section))
        except (ShoalValueError, ClusterError):
            pass  # other parts are wrong as well
        problems.append(error)
        return None


class _Problems:
    """Collects the problems of independent steps."""

    def __init__(self) -> None:
        self._errors: list[ShoalValueError | ClusterError] = []
        self.notes: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._errors)

    def of(self, step: Callable[[], _T]) -> _T | None:
        """Run a step and return its result; if it fails, record the error and return None."""
        try:
            return step()
        except (ShoalValueError, ClusterError) as error:
            self.append(error)
            return None

    def append(self, error: ShoalValueError | ClusterError) -> None:
        self._errors.append(error)

    def add(self, message: str) -> None:
        self.append(ClusterConfigError(message, problems=[message]))

    def raise_any(self, document: Document) -> None:
        if self._errors:
            raise self.as_error(document)

    def as_error(self, document: Document) -> Exception:
        """Return the only error, or one error that lists all problems; with the notes."""
        error = self._errors[0] if len(self._errors) == 1 else self._joined(document)
        for note in self.notes:
            error.add_note(note)
        return error

    def _joined(self, document: Document) -> ClusterConfigError:
        problems = [
            problem
            for error in self._errors
            for problem in getattr(error, "problems", None) or [str(error)]
        ]
        lines = "\n".join(f"  {line}" for line in "\n".join(problems).split("\n"))
        message = f"{document.name} does not fit, {len(problems)} problems:\n{lines}"
        return ClusterConfigError(message, problems=problems)


def _no_inventory(num_nodes: int) -> str:
    return (
        "a plan needs to know what the cluster has: give an inventory, such as "
        f"{num_nodes}x8:H100/64cpu for {count_of(num_nodes, 'node')} of 8 accelerators and 64 CPUs"
    )


def hardware_types() -> list[str]:
    """Return the registered hardware types, the only ones that a configuration can name."""
    return sorted({*Hardware.policy_registry} - {ACCELERATOR_HW_TYPE})


def _count_nodes(config: ClusterConfig, inventory: Inventory, problems: _Problems) -> None:
    if len(inventory.nodes) < config.num_nodes:
        problems.add(
            f"cluster.num_nodes: the job wants {count_of(config.num_nodes, 'node')}, and the "
            f"inventory {inventory.name} has {len(inventory.nodes)}"
        )


def _cluster(config: ClusterConfig, inventory: Inventory) -> DescribedCluster:
    # Copies, since `build_groups` stores labels and variables in the nodes.
    nodes = [
        replace(node, node_labels=[], env_vars={}) for node in nodes_with_robots(inventory, config)
    ]
    return DescribedCluster(nodes, build_groups(nodes, config))


def _place(
    placement: ComponentPlacement, cluster: DescribedCluster
) -> dict[PlacementStrategy, Sequence[Placement]]:
    """Compute the placements once for each entry, since its components share one strategy."""
    strategies = dict.fromkeys(map(placement.get_strategy, placement.components))
    return {strategy: strategy.get_placement(cluster) for strategy in strategies}


def _components(
    placement: ComponentPlacement,
    placed: Mapping[PlacementStrategy, Sequence[Placement]],
    cluster: DescribedCluster,
    profiling: ProfileConfig | None,
) -> Iterator[PlannedComponent]:
    by_strategy: dict[PlacementStrategy, list[str]] = {}
    for name in placement.components:
        by_strategy.setdefault(placement.get_strategy(name), []).append(name)
    for name in placement.components:
        strategy = placement.get_strategy(name)
        placements = placed[strategy]
        yield PlannedComponent(
            name=name,
            entry=tuple(by_strategy[strategy]),
            node_groups=tuple(strategy.node_groups),
            processes=tuple(_processes(name, placements, cluster, profiling)),
            profiler=profiling.backend
            if profiling is not None and profiling.profiles_worker_group(name)
            else "",
            environment=group_environment(name, placements, cluster),
        )


def _processes(
    name: str,
    placements: Sequence[Placement],
    cluster: DescribedCluster,
    profiling: ProfileConfig | None,
) -> Iterator[PlannedProcess]:
    known: dict[tuple[str, int], tuple[NodeInfo, list[str], str | None, dict[str, str], str]] = {}
    for placement in placements:
        label, rank = placement.node_group_label, placement.cluster_node_rank
        if (label, rank) not in known:
            node, group = cluster.get_node_info(rank), cluster.get_node_group(label)
            if group is None:
                raise PlacementError(f"{name}: there is no node group {label!r}")
            known[label, rank] = (
                node,
                node.device_names(),
                group.hardware_type,
                group.get_node_env_vars(rank),
                group.get_node_python_interpreter_path(rank) or "",
            )
        node, names, hardware_type, variables, interpreter = known[label, rank]
        owned = placement.local_hardware_ranks
        yield PlannedProcess(
            rank=placement.rank,
            node=rank,
            node_group=label,
            hardware_type=hardware_type if owned else None,
            hardware_ranks=tuple(owned),
            visible_devices=tuple(
                names[int(i)] if names else i for i in placement.visible_accelerators
            ),
            interpreter=interpreter,
            configured=variables,
            environment=planned_environment(name, placement, node, variables)
            | get_profiling_env_vars_for_worker(f"{name}:{placement.rank}", profiling),
        )


def _nodes(
    cluster: DescribedCluster, config: ClusterConfig, components: tuple[PlannedComponent, ...]
) -> Iterator[PlannedNode]:
    users: dict[tuple[int, str, int], list[ProcessId]] = {}
    counts: list[dict[str, int]] = [{} for _ in cluster.nodes]
    for component in components:
        for process in component.processes:
            counts[process.node][component.name] = counts[process.node].get(component.name, 0) + 1
            for index in process.hardware_ranks:
                key = (process.node, process.hardware_type or "", index)
                users.setdefault(key, []).append((component.name, process.rank))
    for node in cluster.nodes:
        yield PlannedNode(
            rank=node.node_rank,
            hostname=node.hostname,
            ip=node.node_ip,
            cpus=node.num_cpus,
            groups=tuple(config.get_node_labels_by_rank(node.node_rank)),
            devices=tuple(_devices(node, users)),
            processes=counts[node.node_rank],
        )


def _devices(node: NodeInfo, users: _Users) -> Iterator[PlannedDevice]:
    for resource in node.hardware_resources:
        for index, info in enumerate(resource.infos):
            owners = users.get((node.node_rank, resource.type, index), [])
            yield PlannedDevice(resource.type, index, info.model, tuple(owners))
