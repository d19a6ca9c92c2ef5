"""The placements of all processes, made when they are asked for."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Self, final, overload

from shoal._pure.placement import ACCELERATOR, NodeGroup, NodeResources, Placement
from shoal._pure.ranks import pick, same_items

__all__ = ["Placements", "Spot"]


class Spot(NamedTuple):
    """One process: its group, its node, and the hardware that it owns there."""

    group: NodeGroup
    node: NodeResources
    hardware: list[int]


class _Row(NamedTuple):
    spot: Spot
    order: int
    local_rank: int


@final
class Placements:
    """One placement for each process, by rank; see `_rust.pyi`."""

    __slots__ = ("_isolate", "_rows", "_sizes")
    __module__ = "shoal.placement"
    _isolate: bool
    _rows: list[_Row]
    _sizes: Counter[int]

    def __init__(self) -> None:
        raise TypeError("cannot create 'shoal.placement.Placements' instances")

    @classmethod
    def _make(cls, spots: list[Spot], *, isolate: bool) -> Self:
        sizes: Counter[int] = Counter()
        orders: dict[int, int] = {}
        rows = []
        for spot in spots:
            node = spot.node.node_rank
            order = orders.setdefault(node, len(orders))  # nodes by first use
            rows.append(_Row(spot, order, sizes[node]))
            sizes[node] += 1
        self = object.__new__(cls)
        object.__setattr__(self, "_isolate", isolate)
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "_sizes", sizes)
        return self

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int, /) -> Placement: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Placement]: ...
    def __getitem__(self, index: Any, /) -> Any:
        return pick(index, len(self._rows), self._placement)

    def __iter__(self) -> Iterator[Placement]:
        return iter([self._placement(rank) for rank in range(len(self._rows))])

    def __reversed__(self) -> Iterator[Placement]:
        return reversed(list(self))

    def __eq__(self, other: object) -> bool:
        same = same_items(self, other)
        return NotImplemented if same is None else same

    __hash__ = None  # type: ignore[assignment]  # like a list's

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    def __repr__(self) -> str:
        return f"<{len(self._rows)} placements>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A list: the processes of a job are placed once, then they travel.
        return list, (list(self),)

    def _placement(self, rank: int) -> Placement:
        spot, order, local_rank = self._rows[rank]
        group, node, hardware = spot
        if self._isolate and hardware and group.hardware_type == ACCELERATOR:
            visible = hardware
        else:
            visible = list(range(node.num_accelerators))
        return Placement._make(
            (
                rank,
                node.node_rank,
                order,
                visible[0] if visible else -1,
                node.accelerator_type,
                local_rank,
                self._sizes[node.node_rank],
                tuple(map(str, visible)),
                self._isolate,
                tuple(hardware),
                group.label,
            )
        )
