"""The result of the solver: the placements of all processes, each created on access."""

from collections import Counter
from typing import Any, NamedTuple, Self, final

from shoal._pure.items import Items
from shoal._pure.placement import ACCELERATOR, NodeGroup, NodeResources, Placement

__all__ = ["Placements"]


class Spot(NamedTuple):
    """The place of one process: its group, its node, and the hardware that it owns there."""

    group: NodeGroup
    node: NodeResources
    hardware: list[int]


class _Row(NamedTuple):
    spot: Spot
    order: int
    local_rank: int


@final
class Placements(Items[Placement]):
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

    def __repr__(self) -> str:
        return f"<{len(self._rows)} placements>"

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled as a list: placements are computed once, then sent to other processes.
        return list, (list(self),)

    def _item(self, rank: int, /) -> Placement:
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
