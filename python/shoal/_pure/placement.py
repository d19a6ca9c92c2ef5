"""Input and output values of the solver: nodes, node groups and the placement of a process."""

import importlib
import operator
from collections.abc import Sequence
from typing import Any, Final, Self, final

from shoal._pure.text import encodable, type_name
from shoal.errors import PlacementError, ShoalTypeError

__all__ = ["NodeGroup", "NodeResources", "Placement"]

ACCELERATOR: Final = "Accelerator"
"""The hardware type of a group whose ranks are accelerators."""

NO_ACCELERATOR: Final = "NO_ACCEL"
"""The accelerator type of a node without accelerators."""


class _Value:
    """An immutable record, equal to the other backend's record with the same fields."""

    __slots__ = ("_fields",)
    _fields: tuple[Any, ...]
    _names: tuple[str, ...] = ()

    @classmethod
    def _make(cls, fields: tuple[Any, ...]) -> Self:
        self = object.__new__(cls)
        object.__setattr__(self, "_fields", fields)
        return self

    def _key(self) -> tuple[Any, ...]:
        return tuple(_frozen(getattr(self, name)) for name in self._names)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        cls, mine = type(other), type(self)
        if cls.__name__ != mine.__name__ or cls.__module__ != mine.__module__:
            return NotImplemented
        return self._key() == tuple(_frozen(getattr(other, name)) for name in self._names)

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the public name, so that a process that runs the other backend can load it.
        cls = type(self)
        return getattr(importlib.import_module(cls.__module__), cls.__name__), self._fields

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names)
        return f"{type(self).__name__}({fields})"


@final
class NodeResources(_Value):
    """One node as the solver sees it; see `_rust.pyi`."""

    __slots__ = ()
    __module__ = "shoal.placement"
    _names = ("node_rank", "num_hardware", "num_accelerators", "accelerator_type")

    def __new__(
        cls,
        node_rank: int,
        num_hardware: int = 0,
        num_accelerators: int = 0,
        accelerator_type: str = NO_ACCELERATOR,
    ) -> Self:
        fields = (
            to_count(node_rank, "node_rank"),
            to_count(num_hardware, "num_hardware"),
            to_count(num_accelerators, "num_accelerators"),
            encodable(accelerator_type, "accelerator_type"),
        )
        return cls._make(fields)

    @property
    def node_rank(self) -> int:
        return int(self._fields[0])

    @property
    def num_hardware(self) -> int:
        return int(self._fields[1])

    @property
    def num_accelerators(self) -> int:
        return int(self._fields[2])

    @property
    def accelerator_type(self) -> str:
        return str(self._fields[3])


@final
class NodeGroup(_Value):
    """A labelled set of nodes whose resources are numbered together; see `_rust.pyi`."""

    __slots__ = ()
    __module__ = "shoal.placement"
    _names = ("label", "hardware_type", "nodes")

    def __new__(cls, label: str, hardware_type: str | None, nodes: Sequence[NodeResources]) -> Self:
        name = encodable(label, "label")
        kind = None if hardware_type is None else encodable(hardware_type, "hardware_type")
        members = tuple(nodes)
        for node in members:
            if not isinstance(node, NodeResources):
                raise ShoalTypeError(f"a node must be a NodeResources, not {type_name(node)}")
        return cls._make((name, kind, members))

    @property
    def label(self) -> str:
        return str(self._fields[0])

    @property
    def hardware_type(self) -> str | None:
        kind: str | None = self._fields[1]
        return kind

    @property
    def nodes(self) -> list[NodeResources]:
        return list(self._fields[2])


@final
class Placement(_Value):
    """The node of one process, and the hardware that it may see there; see `_rust.pyi`."""

    __slots__ = ()
    __module__ = "shoal"
    _names = (
        "rank",
        "cluster_node_rank",
        "placement_node_rank",
        "local_accelerator_rank",
        "accelerator_type",
        "local_rank",
        "local_world_size",
        "visible_accelerators",
        "isolate_accelerator",
        "local_hardware_ranks",
        "node_group_label",
    )

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
    ) -> Self:
        fields = (
            to_count(rank, "rank"),
            to_count(cluster_node_rank, "cluster_node_rank"),
            to_count(placement_node_rank, "placement_node_rank"),
            to_int(local_accelerator_rank, "local_accelerator_rank", least=-1),
            encodable(accelerator_type, "accelerator_type"),
            to_count(local_rank, "local_rank"),
            to_count(local_world_size, "local_world_size"),
            tuple(encodable(name, "a visible accelerator") for name in visible_accelerators),
            to_bool(isolate_accelerator, "isolate_accelerator"),
            tuple(to_count(rank, "a local hardware rank") for rank in local_hardware_ranks),
            encodable(node_group_label, "node_group_label"),
        )
        return cls._make(fields)

    @property
    def rank(self) -> int:
        return int(self._fields[0])

    @property
    def cluster_node_rank(self) -> int:
        return int(self._fields[1])

    @property
    def placement_node_rank(self) -> int:
        return int(self._fields[2])

    @property
    def local_accelerator_rank(self) -> int:
        return int(self._fields[3])

    @property
    def accelerator_type(self) -> str:
        return str(self._fields[4])

    @property
    def local_rank(self) -> int:
        return int(self._fields[5])

    @property
    def local_world_size(self) -> int:
        return int(self._fields[6])

    @property
    def visible_accelerators(self) -> list[str]:
        return list(self._fields[7])

    @property
    def isolate_accelerator(self) -> bool:
        return bool(self._fields[8])

    @property
    def local_hardware_ranks(self) -> list[int]:
        return list(self._fields[9])

    @property
    def node_group_label(self) -> str:
        return str(self._fields[10])

    # The older names of the fields.

    @property
    def node_id(self) -> int:
        return self.cluster_node_rank

    @property
    def node_rank(self) -> int:
        return self.placement_node_rank

    @property
    def local_gpu_id(self) -> int:
        return self.local_accelerator_rank

    @property
    def local_accelerator_id(self) -> int:
        return self.local_accelerator_rank

    @property
    def cuda_visible_devices(self) -> list[str]:
        return self.visible_accelerators

    @property
    def isolate_gpu(self) -> bool:
        return self.isolate_accelerator


def to_bool(value: object, what: str) -> bool:
    """Check a bool.

    Raises:
        ShoalTypeError: It is not a bool; other objects with a truth value are refused too.
    """
    if not isinstance(value, bool):
        raise ShoalTypeError(f"{what} must be a bool, not {type_name(value)}")
    return value


def to_count(value: object, what: str) -> int:
    """Check a number from 0 to 2147483647."""
    return to_int(value, what, least=0)


def to_int(value: object, what: str, *, least: int) -> int:
    """Check a number from `least` to 2147483647.

    Raises:
        ShoalTypeError: It is not an int.
        ValueError: It is out of these bounds.
    """
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise ShoalTypeError(f"{what} must be an int, not {type_name(value)}")
    number = operator.index(value)  # type: ignore[arg-type]  # it has __index__
    if not least <= number < 2**31:
        raise ValueError(f"{what} must be from {least} to {2**31 - 1}, not {number}")
    return number


def to_rank(
    value: object,
    what: str = "a hardware rank",
    *,
    least: int = 0,
    error: type[PlacementError] = PlacementError,
) -> int:
    """Check a number of a requested placement: from `least` to 2147483647.

    Raises:
        ShoalTypeError: It is not an int.
        PlacementError: It is out of these bounds; raised as the class `error`.
    """
    try:
        return to_int(value, what, least=least)
    except ShoalTypeError:
        raise
    except ValueError as bad:
        raise error(str(bad)) from None


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
