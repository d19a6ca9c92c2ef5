# ruff: noqa: PYI021  (this stub is the documented contract of both backends)
"""The contract of the core: what `shoal._rust` and `shoal._pure` both offer.

Names, signatures, results, exception classes and messages are the same in both. Misuse by the
programmer (a value of the wrong type) is a `TypeError`; input that cannot be is an error of
`shoal.errors`, with `text` and `span` where it is about a part of a text.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Self, final, overload

__all__ = [
    "NodeGroup",
    "NodeResources",
    "Placement",
    "Placements",
    "RankLists",
    "WorkerAddress",
    "__version__",
    "build_profile",
    "packed_ranks",
    "parse_placement",
    "place_flexible",
    "place_nodes",
    "place_packed",
]

__version__: Final[str]
"""The version of the package that this core belongs to."""

build_profile: Final[str]
"""`debug` or `release` for the extension, `pure` for the Python implementation."""

@final
class WorkerAddress:
    """Where a worker stands in the tree of groups: the name of a root group and a path of ranks.

    Written `group:rank:rank…`: `grp` is a root, `grp:3` its worker 3, `grp:3:0` the first child of
    that worker. A group name has at least one character and no `:`; a rank is 0 to 2147483647 in
    ASCII digits without leading zeros.

    Immutable, hashable and ordered by name, then path. Two addresses are equal when their names
    are, whichever backend made them; the hash is that of the name. Pickles name the public class,
    so that a process on the other backend can load them.

    Args:
        root_group_name: The name of the root group.
        ranks: One rank, or the path of ranks below the root; a list and a tuple are the same.

    Raises:
        AddressError: The name or a rank cannot be; it shows the address and the position.
        TypeError: `root_group_name` is no str, or a rank is no int (a bool is none).
    """

    def __new__(cls, root_group_name: str, ranks: int | Sequence[int] = ()) -> Self: ...
    @classmethod
    def from_name(cls, name: str) -> Self:
        """Read an address as `get_name` writes it.

        Raises:
            AddressError: `name` is no address; it shows the name and the position.
        """

    @classmethod
    def from_parent_name_rank(cls, parent_name: str, rank: int) -> Self:
        """Return the address of a child, from its parent's name."""

    @property
    def root_group_name(self) -> str:
        """The name of the root group."""

    @property
    def rank_path(self) -> list[int]:
        """The ranks from the root down, as a list of the caller's own."""

    @property
    def rank(self) -> int:
        """The last rank of the path, 0 for a root."""

    def get_name(self) -> str:
        """Return the address as text; `str()` does the same."""

    def get_parent_rank(self) -> int:
        """Return the rank before the last, 0 when there is none."""

    def get_parent_address(self) -> Self | None:
        """Return the address one level up, None for a root."""

    def get_child_address(self, rank: int) -> Self:
        """Return the address one level down."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: object, /) -> bool: ...
    def __le__(self, other: object, /) -> bool: ...
    def __gt__(self, other: object, /) -> bool: ...
    def __ge__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class NodeResources:
    """One node as the solver sees it.

    Args:
        node_rank: The rank of the node in the cluster.
        num_hardware: How many resources of the group's hardware type it has.
        num_accelerators: How many accelerators it has.
        accelerator_type: Their type, `NO_ACCEL` without any.
    """

    def __new__(
        cls,
        node_rank: int,
        num_hardware: int = 0,
        num_accelerators: int = 0,
        accelerator_type: str = "NO_ACCEL",
    ) -> Self: ...
    @property
    def node_rank(self) -> int: ...
    @property
    def num_hardware(self) -> int: ...
    @property
    def num_accelerators(self) -> int: ...
    @property
    def accelerator_type(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class NodeGroup:
    """A labelled set of nodes whose resources are numbered together, in the order of `nodes`.

    Args:
        label: The label of the group.
        hardware_type: What a rank counts: `Accelerator`, the type of a robot, or None where each
            rank is a whole node.
        nodes: The nodes, in the order in which their resources are numbered.
    """

    def __new__(
        cls, label: str, hardware_type: str | None, nodes: Sequence[NodeResources]
    ) -> Self: ...
    @property
    def label(self) -> str: ...
    @property
    def hardware_type(self) -> str | None: ...
    @property
    def nodes(self) -> list[NodeResources]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Placement:
    """Where one process goes, and what it may see there. A frozen value.

    Equal to a placement of the other backend with the same fields; hashable; pickles name the
    public class.
    """

    def __new__(
        cls,
        rank: int,
        cluster_node_rank: int,
        placement_node_rank: int,
        local_accelerator_rank: int,
        accelerator_type: str,
        local_rank: int,
        local_world_size: int,
        visible_accelerators: Sequence[str],
        isolate_accelerator: bool,
        local_hardware_ranks: Sequence[int],
        node_group_label: str,
    ) -> Self: ...
    @property
    def rank(self) -> int:
        """The rank of the process in its group."""

    @property
    def cluster_node_rank(self) -> int:
        """The rank of its node in the cluster."""

    @property
    def placement_node_rank(self) -> int:
        """The rank of its node among those that the placement uses, by first use."""

    @property
    def local_accelerator_rank(self) -> int:
        """The first accelerator that it sees, -1 when it sees none."""

    @property
    def accelerator_type(self) -> str:
        """The type of the node's accelerators, `NO_ACCEL` without any."""

    @property
    def local_rank(self) -> int:
        """Its rank among the processes of the placement on its node."""

    @property
    def local_world_size(self) -> int:
        """How many processes of the placement are on its node."""

    @property
    def visible_accelerators(self) -> list[str]:
        """The accelerators that it may see, as indices of its node."""

    @property
    def isolate_accelerator(self) -> bool:
        """Whether the other accelerators of the node are hidden from it."""

    @property
    def local_hardware_ranks(self) -> list[int]:
        """The hardware that it owns, as indices of its node; empty where it has a node."""

    @property
    def node_group_label(self) -> str:
        """The label of the node group that the resources belong to."""

    @property
    def node_id(self) -> int:
        """The older name of `cluster_node_rank`."""

    @property
    def node_rank(self) -> int:
        """The older name of `placement_node_rank`."""

    @property
    def local_gpu_id(self) -> int:
        """The older name of `local_accelerator_rank`."""

    @property
    def local_accelerator_id(self) -> int:
        """The older name of `local_accelerator_rank`."""

    @property
    def cuda_visible_devices(self) -> list[str]:
        """The older name of `visible_accelerators`."""

    @property
    def isolate_gpu(self) -> bool:
        """The older name of `isolate_accelerator`."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class RankLists:
    """The resource ranks of each process: a frozen, lazy sequence of lists.

    Args:
        lists: A list of ranks for each process.

    Raises:
        PlacementError: A rank is out of bounds.
    """

    def __new__(cls, lists: Iterable[Iterable[int]]) -> Self: ...
    def in_order(self) -> RankLists:
        """Return the same lists, each ascending, and in the order of their first ranks."""

    def firsts(self) -> list[int]:
        """Return the first rank of each process that has one."""

    def unique(self) -> list[int]:
        """Return every rank once, ascending."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[list[int]]: ...
    def __iter__(self) -> Iterator[list[int]]: ...
    def __reversed__(self) -> Iterator[list[int]]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Placements:
    """One placement for each process, by rank: a frozen, lazy sequence.

    A `Placement` is made when it is asked for. Pickled, it is a list.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> Placement: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Placement]: ...
    def __iter__(self) -> Iterator[Placement]: ...
    def __reversed__(self) -> Iterator[Placement]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

def parse_placement(text: str, groups: Sequence[NodeGroup], component: str) -> RankLists:
    """Read the placement string of one component.

    Args:
        text: Segments `resources[:processes]` separated by commas, such as `0-1:0-3,3-5`, `all`,
            every eighth of a range, `0-63/8`, or all but some, `all!3!7`.
        groups: The node groups whose resources the ranks count, numbered through.
        component: The name of the component, for messages.

    Returns:
        The resource ranks of each process, by process rank.

    Raises:
        PlacementError: A rule of the format is broken; it points at the part, and says what was
            expected and what the groups have.
    """

def packed_ranks(
    start: int, end: int, num_hardware_per_process: int = 1, stride: int = 1
) -> RankLists:
    """Return the hardware ranks of each process of a packed placement, both ends included.

    A process takes the lowest free rank and every `stride`-th after it: 8 ranks, 2 a process and
    stride 2 give [0, 2], [1, 3], [4, 6], [5, 7].

    Raises:
        PlacementError: A number is out of bounds, or the ranks do not divide.
    """

def place_packed(
    groups: Sequence[NodeGroup],
    start: int,
    end: int,
    num_hardware_per_process: int = 1,
    stride: int = 1,
    isolate_accelerator: bool = True,
) -> Placements:
    """Place processes on consecutive hardware ranks; see `packed_ranks`.

    Raises:
        PlacementError: As `packed_ranks` and `place_flexible`.
    """

def place_flexible(
    groups: Sequence[NodeGroup],
    hardware_ranks_list: Iterable[Iterable[int]],
    isolate_accelerator: bool = True,
) -> Placements:
    """Place each process on the hardware ranks given for it, in the order given.

    Raises:
        PlacementError: The groups have no hardware, or a process has no ranks, a rank that does
            not exist or one twice, or ranks on several nodes or of several types.
    """

def place_nodes(
    groups: Sequence[NodeGroup],
    node_ranks: Sequence[int],
    isolate_accelerator: bool = True,
) -> Placements:
    """Place each process on the node given for it, in the order given.

    Raises:
        PlacementIndexError: A node rank does not exist.
        PlacementError: There are no node ranks, or two groups share a node.
    """
