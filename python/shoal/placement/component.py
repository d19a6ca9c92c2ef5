"""The placement of every component of a job, from its configuration."""

from collections.abc import Mapping
from typing import Any, TypeVar

from shoal._backend import parse_placement
from shoal.config import read_section
from shoal.errors import PlacementError
from shoal.nearest import did_you_mean
from shoal.placement.entries import Entry, read_entries
from shoal.placement.groups import ClusterLike, find_groups
from shoal.placement.strategy import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PlacementStrategy,
)

__all__ = ["ComponentPlacement"]

_T = TypeVar("_T")


class ComponentPlacement:
    """Which component runs where: the `component_placement` of a configuration, resolved.

    Args:
        config: A mapping, an OmegaConf `DictConfig` or the path of a YAML file; the whole document
            or its `cluster` section.
        cluster: The cluster whose resources the ranks count.

    Raises:
        PlacementError: An entry cannot be; all of them, where several cannot.
        ClusterConfigError: There is no `cluster` section.
    """

    def __init__(self, config: Any, cluster: ClusterLike) -> None:
        section = read_section(config)
        if section.get("component_placement") is None:
            near = [key for key in section if did_you_mean(key, ["component_placement"])]
            hint = f"; it was perhaps written {near[0]!r}" if near else ""
            raise PlacementError(f"cluster: the key component_placement is missing{hint}")
        self._config = config
        self._placement_config = section["component_placement"]
        self._placement_mode: Any = None
        self._components: list[str] = []
        self._placements: dict[str, PlacementStrategy] = {}
        self._component_world_size: dict[str, int] = {}
        self._component_rank_map: dict[str, list[list[int]]] = {}
        entries, problems = read_entries(self._placement_config)
        labels = _labels(section)
        found: PlacementError | None = None
        for entry in entries:
            try:
                self._resolve(entry, cluster, labels)
            except PlacementError as error:
                found = error
                problems.append(f"{error}\n  {entry.hint}" if entry.hint else str(error))
        if len(problems) == 1 and found is not None and str(found) == problems[0]:
            raise found  # with its text and span
        if problems:
            several = f"{len(problems)} problems in component_placement:\n"
            raise PlacementError((several if len(problems) > 1 else "") + "\n".join(problems))

    def _resolve(self, entry: Entry, cluster: ClusterLike, known: list[str]) -> None:
        try:
            groups = find_groups(cluster, entry.labels, known)
        except PlacementError as error:
            raise PlacementError(f'component "{entry.name}": {error}') from None
        ranks = parse_placement(entry.text, groups, entry.name)
        strategy: PlacementStrategy
        if groups[0].hardware_type is None:
            strategy = NodePlacementStrategy([process[0] for process in ranks], entry.labels)
        else:
            strategy = FlexiblePlacementStrategy(ranks, entry.labels)
        for component in entry.components:
            self._components.append(component)
            self._placements[component] = strategy
            self._component_world_size[component] = len(ranks)
            self._component_rank_map[component] = ranks

    @property
    def placement_mode(self) -> Any:
        """None here; for subclasses that distinguish modes."""
        return self._placement_mode

    @property
    def components(self) -> list[str]:
        """The names of the components, in the order of the configuration."""
        return list(self._components)

    def get_world_size(self, component_name: str) -> int:
        """Return the number of processes of a component.

        Raises:
            PlacementError: There is no such component.
        """
        return self._of(self._component_world_size, component_name)

    def get_hardware_ranks(self, component_name: str) -> list[int]:
        """Return the resource ranks of a component within its node group, ascending.

        They are node ranks where the resources of the group are whole nodes.

        Raises:
            PlacementError: There is no such component.
        """
        ranks = self._of(self._component_rank_map, component_name)
        return sorted({rank for process in ranks for rank in process})

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        """Return the strategy of a component, for `launch`; components of one entry share it.

        Raises:
            PlacementError: There is no such component.
        """
        return self._of(self._placements, component_name)

    def _of(self, table: Mapping[str, _T], name: str) -> _T:
        if name not in table:
            raise PlacementError(
                f'there is no component "{name}"; there are {", ".join(self._components)}'
                f"{did_you_mean(name, self._components)}"
            )
        return table[name]


def _labels(section: Mapping[str, Any]) -> list[str]:
    groups = section.get("node_groups")
    listed = groups if isinstance(groups, (list, tuple)) else []
    return [str(g["label"]) for g in listed if isinstance(g, Mapping) and "label" in g]
