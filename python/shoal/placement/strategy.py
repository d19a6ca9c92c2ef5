"""Placement strategies: how the processes of a worker group are distributed over a cluster."""

import contextlib
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypedDict, Unpack

from shoal._backend import (
    NodeGroup,
    Placement,
    Placements,
    RankLists,
    packed_ranks,
    place_flexible,
    place_nodes,
    place_packed,
)
from shoal.config.entries import labels_of
from shoal.errors import PlacementError, PlacementIndexError, ShoalTypeError
from shoal.integers import as_ints
from shoal.placement.groups import ClusterLike, find_groups
from shoal.problems import shown

__all__ = [
    "FlexiblePlacementStrategy",
    "NodePlacementStrategy",
    "PackedPlacementStrategy",
    "PlacementStrategy",
]

_logger = logging.getLogger(__name__)


class PlacementStrategy(ABC):
    """Decides where the processes of a worker group run; the base class of user strategies.

    Args:
        node_group: The label, or labels, of the node groups whose resources the ranks count; None
            for all nodes.

    Attributes:
        node_groups: These labels, as a list.
    """

    _placement_strategy: ClassVar[str] = ""

    def __init__(self, node_group: str | Sequence[str] | None = None) -> None:
        self.node_groups = labels_of(node_group)

    @abstractmethod
    def get_placement(
        self, cluster: ClusterLike, isolate_accelerator: bool = True
    ) -> list[Placement]:
        """Return one placement for each process, by rank.

        Args:
            cluster: The cluster to place the processes on.
            isolate_accelerator: Whether a process sees only the accelerators that it owns.

        Raises:
            PlacementError: The cluster does not have the resources that the strategy needs.
        """


class _SolvedStrategy(PlacementStrategy):
    """A strategy whose placements the solver in the core computes."""

    # A cluster, and its groups as described to the solver.
    _described: tuple[weakref.ref[Any], list[NodeGroup]] | None = None

    def get_placement(
        self, cluster: ClusterLike, isolate_accelerator: bool = True
    ) -> list[Placement]:
        placements = list(self.solve(cluster, isolate_accelerator))
        if _logger.isEnabledFor(logging.INFO):
            nodes = 1 + max(placement.placement_node_rank for placement in placements)
            _logger.info(
                "%s placement on %s: %d process(es) on %d node(s)",
                self._placement_strategy,
                ", ".join(self.node_groups),
                len(placements),
                nodes,
            )
        return placements

    def solve(self, cluster: ClusterLike, isolate_accelerator: bool = True) -> Placements:
        """Same as `get_placement`, but each placement is created on access.

        Args:
            cluster: The cluster to place the processes on.
            isolate_accelerator: Whether a process sees only the accelerators that it owns.

        Raises:
            PlacementError: The cluster does not have the resources that the strategy needs.
        """
        if self._described is not None and self._described[0]() is cluster:
            groups = self._described[1]
        else:
            groups = find_groups(cluster, self.node_groups)
        return self._place(groups, isolate=isolate_accelerator)

    def remember(self, cluster: ClusterLike, groups: list[NodeGroup]) -> None:
        """Cache a cluster's groups: describing a large cluster takes most of the time."""
        with contextlib.suppress(TypeError):  # the object supports no weak references
            self._described = (weakref.ref(cluster), groups)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_described"}

    @abstractmethod
    def _place(self, groups: list[NodeGroup], *, isolate: bool) -> Placements:
        """Compute the placements on these groups."""


class _OlderPacked(TypedDict, total=False):
    start_accelerator_id: int
    end_accelerator_id: int
    num_accelerators_per_process: int
    start_gpu_id: int
    end_gpu_id: int
    num_gpus_per_process: int


class PackedPlacementStrategy(_SolvedStrategy):
    """Places processes side by side on a range of hardware ranks, both ends included.

    The keywords of older versions (`start_gpu_id`, `start_accelerator_id`, …) mean the same.

    Args:
        start_hardware_rank: The first hardware rank.
        end_hardware_rank: The last hardware rank.
        num_hardware_per_process: The number of hardware ranks of each process; 1 by default.
        stride: The distance between the ranks of one process: with 2 ranks for each process,
            stride 2 gives [0, 2], [1, 3], [4, 6], [5, 7].
        node_group: The label, or labels, of the node groups; None for all nodes.

    Raises:
        PlacementError: A number is out of bounds, or the number of ranks is not divisible by
            `num_hardware_per_process * stride`.
        ShoalTypeError: A number is not an integer.
    """

    _placement_strategy = "PACKED"

    def __init__(
        self,
        start_hardware_rank: int | None = None,
        end_hardware_rank: int | None = None,
        num_hardware_per_process: int | None = None,
        stride: int = 1,
        node_group: str | Sequence[str] | None = None,
        **older: Unpack[_OlderPacked],
    ) -> None:
        super().__init__(node_group)
        given = {
            "start_hardware_rank": start_hardware_rank,
            "end_hardware_rank": end_hardware_rank,
            "num_hardware_per_process": num_hardware_per_process,
        }
        names = {
            "start_hardware_rank": ["start_accelerator_id", "start_gpu_id"],
            "end_hardware_rank": ["end_accelerator_id", "end_gpu_id"],
            "num_hardware_per_process": ["num_accelerators_per_process", "num_gpus_per_process"],
        }
        name = type(self).__name__
        values = _newer(name, given, older, names)
        self._start = _required(values, "start_hardware_rank", name)
        self._end = _required(values, "end_hardware_rank", name)
        size = values["num_hardware_per_process"]
        self._size = 1 if size is None else size
        self._stride = stride
        try:
            packed_ranks(self._start, self._end, self._size, stride)  # raises if they are invalid
        except TypeError as error:
            given = {**values, "stride": stride}
            wrong = [
                f"{parameter}={shown(value)}: expected an integer"
                for parameter, value in given.items()
                if value is not None or parameter == "stride"
                if isinstance(value, bool) or not hasattr(type(value), "__index__")
            ]
            raise ShoalTypeError(
                f"{name}: {', '.join(wrong) or error}; {name}(0, 3) starts one process on each of the "
                "ranks 0 to 3"
            ) from None

    def _place(self, groups: list[NodeGroup], *, isolate: bool) -> Placements:
        return place_packed(groups, self._start, self._end, self._size, self._stride, isolate)

    def __repr__(self) -> str:
        return (
            f"PackedPlacementStrategy({self._start}, {self._end}, {self._size}, {self._stride}, "
            f"node_group={self.node_groups!r})"
        )


class FlexiblePlacementStrategy(_SolvedStrategy):
    """Places each process on a given set of hardware ranks, all on one node.

    Process ranks follow hardware ranks: the list is sorted by the first rank of each process.
    Several processes may share hardware.

    Args:
        hardware_ranks_list: The hardware ranks of each process.
        node_group_label: The label, or labels, of the node groups; None for all nodes.

    Raises:
        PlacementError: There are no processes, or a process has no hardware ranks.
        ShoalTypeError: The hardware ranks are not a list of lists of integers.
    """

    _placement_strategy = "FLEXIBLE"

    def __init__(
        self,
        hardware_ranks_list: Iterable[Iterable[int]],
        node_group_label: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(node_group_label)
        given, name = hardware_ranks_list, type(self).__name__
        try:
            ranks = given if isinstance(given, RankLists) else RankLists(given)
        except TypeError as error:
            raise ShoalTypeError(
                f"{name}: hardware_ranks_list={shown(given)}: expected a list with the hardware ranks "
                f"of each process; {name}([[0, 1], [2]]) starts two"
            ) from error
        if not ranks:
            raise PlacementError("hardware_ranks_list must not be empty")
        self._hardware_ranks_list = ranks.in_order()
        if not self._hardware_ranks_list[0]:
            raise PlacementError(f"process {list(ranks).index([])} has no hardware ranks")

    def _place(self, groups: list[NodeGroup], *, isolate: bool) -> Placements:
        return place_flexible(groups, self._hardware_ranks_list, isolate)

    def __repr__(self) -> str:
        return (
            f"FlexiblePlacementStrategy({list(self._hardware_ranks_list)!r}, "
            f"node_group_label={self.node_groups!r})"
        )


class NodePlacementStrategy(_SolvedStrategy):
    """Places each process on a given node, which it may share with other processes.

    Process ranks follow node ranks. All accelerators of the node are visible.

    Args:
        node_ranks: The node rank of each process, within the node groups.
        node_group_label: The label, or labels, of the node groups; None for all nodes.
        node_ids: The older name of `node_ranks`.

    Raises:
        PlacementError: There are no processes.
        PlacementIndexError: A node rank is negative.
        ShoalTypeError: The node ranks are not a list of integers.
    """

    _placement_strategy = "NODE"

    def __init__(
        self,
        node_ranks: Sequence[int] | None = None,
        node_group_label: str | Sequence[str] | None = None,
        *,
        node_ids: Sequence[int] | None = None,
    ) -> None:
        super().__init__(node_group_label)
        name = type(self).__name__
        older = {} if node_ids is None else {"node_ids": node_ids}
        values = _newer(name, {"node_ranks": node_ranks}, older, {"node_ranks": ["node_ids"]})
        ranks = _required(values, "node_ranks", name)
        found = as_ints(ranks)
        if found is None:
            raise ShoalTypeError(
                f"{name}: node_ranks={shown(ranks)}: expected a list with the node of each process; "
                f"{name}([0, 0]) starts two on node 0"
            )
        self._node_ranks = sorted(found)
        if not self._node_ranks:
            raise PlacementError("node_ranks must not be empty")
        if self._node_ranks[0] < 0:
            raise PlacementIndexError(
                f"{name}: node_ranks={shown(ranks)}: a node rank must be at least 0, not "
                f"{self._node_ranks[0]}"
            )

    def _place(self, groups: list[NodeGroup], *, isolate: bool) -> Placements:
        return place_nodes(groups, self._node_ranks, isolate)

    def __repr__(self) -> str:
        return f"NodePlacementStrategy({self._node_ranks!r}, node_group_label={self.node_groups!r})"


def _newer(
    function: str,
    given: Mapping[str, Any],
    older: Mapping[str, Any],
    names: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the values by their newer names, with those of older keywords merged in."""
    values = dict(given)
    newer = {old: new for new, olds in names.items() for old in olds}
    for old, value in older.items():
        if old not in newer:
            raise TypeError(f"{function}() got an unexpected keyword argument {old!r}")
        if values[newer[old]] is not None:
            raise TypeError(f"{function}() got both {newer[old]!r} and its older name {old!r}")
        values[newer[old]] = value
    return values


def _required(values: Mapping[str, Any], name: str, function: str) -> Any:
    if values[name] is None:
        raise TypeError(f"{function}() missing a required argument: {name!r}")
    return values[name]
