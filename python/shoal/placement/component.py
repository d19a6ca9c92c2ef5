"""Resolves the `component_placement` section of a configuration to a strategy per component."""

from collections.abc import Mapping
from typing import Any, TypeVar

from shoal._backend import NodeGroup, RankLists, parse_placement
from shoal.config import Document, read_document
from shoal.config.entries import Entry
from shoal.errors import PlacementError
from shoal.nearest import did_you_mean
from shoal.placement.groups import ClusterLike, find_groups
from shoal.placement.strategy import (
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PlacementStrategy,
)

__all__ = ["ComponentPlacement"]

_SECTION = "component_placement"
_T = TypeVar("_T")


class ComponentPlacement:
    """The placement of every component, from the `component_placement` of a configuration.

    Args:
        config: A mapping, an OmegaConf `DictConfig` or the path of a YAML file; the whole document
            or its `cluster` section.
        cluster: The cluster whose resources the ranks count.

    Raises:
        PlacementError: Entries are invalid; the error names each with its path in the document.
        ClusterConfigError: There is no `cluster` section.
    """

    def __init__(self, config: Any, cluster: ClusterLike) -> None:
        document = read_document(config)
        placement = document.section.get(_SECTION)
        if placement is None:
            near = [key for key in document.section if did_you_mean(key, [_SECTION])]
            hint = f"; it was perhaps written {near[0]!r}" if near else ""
            raise PlacementError(f"{document.where()}: the key {_SECTION} is missing{hint}")
        self._config = config
        self._placement_config = placement
        self._placement_mode: Any = None
        self._components: list[str] = []
        self._placements: dict[str, PlacementStrategy] = {}
        self._component_world_size: dict[str, int] = {}
        self._component_rank_map: dict[str, RankLists] = {}
        described: dict[tuple[str, ...], list[NodeGroup]] = {}
        found: PlacementError | None = None
        problems: list[str] = []
        for entry, wrong in document.entries:
            problems += [f"{document.where(*p.path, key=p.key)}: {p.message}" for p in wrong]
            if entry is None:
                continue
            try:
                if entry.labels not in described:
                    described[entry.labels] = find_groups(cluster, entry.labels)
                self._resolve(entry, cluster, described[entry.labels])
            except PlacementError as error:
                found = error
                problems.append(_problem(error, entry, document))
        if len(problems) == 1 and found is not None:
            (line,) = problems
            raise PlacementError(line, text=found.text, span=found.span, problems=problems)
        if problems:
            several = f"{len(problems)} problems in {_SECTION}:\n" if len(problems) > 1 else ""
            raise PlacementError(several + "\n".join(problems), problems=problems)

    def _resolve(self, entry: Entry, cluster: ClusterLike, groups: list[NodeGroup]) -> None:
        ranks = parse_placement(entry.text, groups, entry.name)
        strategy: NodePlacementStrategy | FlexiblePlacementStrategy
        if groups[0].hardware_type is None:
            strategy = NodePlacementStrategy(ranks.firsts(), entry.labels)
        else:
            strategy = FlexiblePlacementStrategy(ranks, entry.labels)
        strategy.remember(cluster, groups)
        for component in entry.components:
            self._components.append(component)
            self._placements[component] = strategy
            self._component_world_size[component] = len(ranks)
            self._component_rank_map[component] = ranks

    @property
    def placement_mode(self) -> Any:
        """None; subclasses that distinguish modes set it."""
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
        """Return the resource ranks of a component within its node groups, ascending.

        They are node ranks if the resources of the groups are whole nodes.

        Raises:
            PlacementError: There is no such component.
        """
        return self._of(self._component_rank_map, component_name).unique()

    def get_strategy(self, component_name: str) -> PlacementStrategy:
        """Return the strategy of a component, for `launch`; components of one entry share one.

        Raises:
            PlacementError: There is no such component.
        """
        return self._of(self._placements, component_name)

    def _of(self, table: Mapping[str, _T], name: str) -> _T:
        if name not in [*table]:  # unlike a look-up, this takes what cannot be a key
            known = self._components
            raise PlacementError(
                f'there is no component "{name}"; there are {", ".join(known) or "none"}'
                f"{did_you_mean(str(name), known)}"
            )
        return table[name]


def _problem(error: PlacementError, entry: Entry, document: Document) -> str:
    """Return the text of a problem: the path of an entry in the document, and the error."""
    path = entry.text_path
    if error.text is None and path != entry.path:
        path = (*entry.path, "node_group")  # the fault is in the groups, not in the text
    what = str(error).removeprefix(f'component "{entry.name}": ')  # the path names it already
    if entry.hint and error.text is not None and not document.is_file:
        what += f"\n  {entry.hint}"
    return f"{document.where(*path)}: {what}"
