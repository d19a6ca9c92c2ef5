"""Base classes of a kind of hardware: `Hardware`, which detects it, and `HardwareConfig`.

A kind of hardware is a subclass of `Hardware` that is registered with `Hardware.register()`. Its
`enumerate` runs on each node and returns the hardware that it finds there. A kind that can be
configured also has a dataclass, derived from `HardwareConfig` and registered for the kind.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from shoal.errors import ShoalValueError
from shoal.nearest import did_you_mean
from shoal.problems import ArgumentsError, Problem, construct, shown

__all__ = [
    "Hardware",
    "HardwareConfig",
    "HardwareInfo",
    "HardwareResource",
    "NodeHardwareConfig",
    "configured_hardware",
]

C = TypeVar("C", bound=type["HardwareConfig"])
H = TypeVar("H", bound=type["Hardware"])


@dataclass
class HardwareConfig:
    """Configuration of one piece of hardware; each kind derives its own dataclass from it.

    Attributes:
        node_rank: The rank of its node in the cluster.

    Raises:
        ShoalValueError: A value is invalid; the message begins with the field's name.
    """

    node_rank: int

    def __post_init__(self) -> None:
        rank: Any = self.node_rank  # typed, but it comes from a user
        if type(rank) is not int or rank < 0:
            raise ShoalValueError(f"node_rank: expected a node rank (0, 1, …), not {rank!r}")


@dataclass
class HardwareInfo:
    """One piece of hardware.

    Attributes:
        type: Its hardware type, `Accelerator` for all accelerators.
        model: Its model, `NV_GPU:H200` for example.
    """

    type: str
    model: str


@dataclass
class HardwareResource:
    """All hardware of one type on one node, in the order of its ranks.

    Attributes:
        type: The hardware type.
        infos: One entry for each piece.
        device_names: The name of each device in the node's visibility variable; empty if the
            device of rank i is named `i`.
        egl_ids: The EGL index of each device, for off-screen rendering; empty if unknown.
    """

    type: str
    infos: list[Any]
    device_names: list[str] = field(default_factory=list)
    egl_ids: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of pieces."""
        return len(self.infos)


class Hardware(ABC):
    """A kind of hardware. Derive from it, set `HW_TYPE`, and decorate with `Hardware.register()`.

    Attributes:
        HW_TYPE: The name of the kind, as configurations write it.
        DEFAULT_HW_TYPE: The kind that a node group counts if its configuration names none.
        policy_registry: All kinds, by name, in the order of their registration.

    Example:
        >>> @Hardware.register()
        ... class Arm(Hardware):
        ...     HW_TYPE = "Arm"
        ...
        ...     @classmethod
        ...     def enumerate(cls, node_rank, configs=None):
        ...         infos = [HardwareInfo("Arm", "R2") for _ in configs or ()]
        ...         return HardwareResource("Arm", infos) if infos else None
    """

    HW_TYPE: ClassVar[str] = ""
    DEFAULT_HW_TYPE: ClassVar[str | None] = None
    policy_registry: ClassVar[dict[str, type["Hardware"]]] = {}

    @classmethod
    @abstractmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[Any] | None = None
    ) -> HardwareResource | None:
        """Return the hardware of this kind on the node that this process runs on.

        Args:
            node_rank: The rank of the node.
            configs: The configured hardware of this node, of all kinds.

        Returns:
            The hardware; None if there is none.
        """

    @classmethod
    def configured(
        cls, node_rank: int, configs: Sequence[Any] | None = None
    ) -> HardwareResource | None:
        """Return the hardware that the configuration names, without querying any device.

        The planner uses it. Override it together with `enumerate` if the kind has its own subclass
        of `HardwareInfo`.
        """
        kind = NodeHardwareConfig.hardware_config_registry.get(cls.HW_TYPE)
        own = [] if kind is None else own_configs(kind, node_rank, configs)
        if not own:
            return None
        return HardwareResource(cls.HW_TYPE, [HardwareInfo(cls.HW_TYPE, cls.HW_TYPE) for _ in own])

    @staticmethod
    def register(is_default_hw: bool = False) -> Callable[[H], H]:
        """Return a decorator that registers a kind of hardware in this process.

        Args:
            is_default_hw: Whether node groups count this kind if their configuration names none.

        Raises:
            ShoalValueError: The kind has no name, the name is taken, a method is missing, or
                another kind is the default already.
        """
        given: Any = is_default_hw  # typed, but it comes from a user
        if isinstance(given, type):
            raise ShoalValueError("write @Hardware.register(), with parentheses")

        def add(cls: H) -> H:
            name = cls.HW_TYPE
            if not name:
                raise ShoalValueError(f"{cls.__qualname__}: HW_TYPE must be the name of the kind")
            if missing := ", ".join(sorted(cls.__abstractmethods__)):
                raise ShoalValueError(f"{cls.__qualname__}: the class method {missing} is missing")
            if name in Hardware.policy_registry:
                other = Hardware.policy_registry[name]
                raise ShoalValueError(
                    f"the hardware type {name!r} is registered already, by "
                    f"{other.__module__}.{other.__qualname__}"
                )
            if is_default_hw:
                if Hardware.DEFAULT_HW_TYPE is not None:
                    raise ShoalValueError(
                        f"{name!r} cannot be the default hardware type: "
                        f"{Hardware.DEFAULT_HW_TYPE!r} is"
                    )
                Hardware.DEFAULT_HW_TYPE = name
            Hardware.policy_registry[name] = cls
            return cls

        return add


def own_configs(kind: type[Any], node_rank: int, configs: Sequence[Any] | None) -> list[Any]:
    """Return the configurations of one class that are for one node."""
    return [c for c in configs or () if type(c) is kind and c.node_rank == node_rank]


def configured_hardware(node_rank: int, configs: Sequence[Any]) -> list[HardwareResource]:
    """Return the hardware that a configuration names for a node, without querying any device.

    Accelerators are not included: they are detected, not configured.
    """
    found = [kind.configured(node_rank, configs) for kind in Hardware.policy_registry.values()]
    return [resource for resource in found if resource is not None and resource.count]


@dataclass
class NodeHardwareConfig:
    """The `hardware` section of a node group: one kind, and the configuration of each piece.

    Attributes:
        type: The kind.
        configs: The configurations; a mapping becomes the dataclass registered for the kind.
        hardware_config_registry: The configuration dataclass of each kind, by name.

    Raises:
        ShoalValueError: The kind is unknown, or the configuration of a piece is invalid.
    """

    hardware_config_registry: ClassVar[dict[str, type[HardwareConfig]]] = {}

    type: str
    configs: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        known = self.hardware_config_registry
        kind: Any = self.type  # typed, but it comes from a user
        if not isinstance(kind, str) or kind not in known:
            message = (
                f"Unsupported hardware type {shown(kind)}; there are "
                f"{', '.join(sorted(known))}{did_you_mean(str(kind), known)}"
            )
            raise ArgumentsError([Problem(("type",), message)])
        entries: Any = self.configs or []  # typed, but it comes from a user
        if isinstance(entries, str) or not isinstance(entries, Sequence):
            raise ArgumentsError([Problem(("configs",), f"must be a list, not {shown(entries)}")])
        made: list[Any] = []
        problems: list[Problem] = []
        by_text: dict[str, list[int]] = {}
        for index, entry in enumerate(entries):
            piece, found = self._read(entry)
            if piece is not None:
                # Grouped by text, which works for unhashable pieces and avoids comparing all pairs.
                others = by_text.setdefault(repr(piece), [])
                other = next((i for i in others if made[i] == piece), None)
                if other is None:
                    others.append(index)
                else:
                    message = f"Duplicate hardware configs: same as configs[{other}]"
                    found.append(Problem((), message))
            problems += [problem.under("configs", index) for problem in found]
            made.append(piece)
        if problems:
            raise ArgumentsError(problems)
        self.configs = made

    def _read(self, entry: Any) -> tuple[Any, list[Problem]]:
        kind = self.hardware_config_registry[self.type]
        if isinstance(entry, kind):
            return entry, []
        if not isinstance(entry, Mapping):
            message = f"Each hardware config must be a dictionary, not {shown(entry)}"
            return None, [Problem((), message)]
        if inspect.get_annotations(kind) and "__dataclass_fields__" not in vars(kind):
            # Not when it is registered: `@dataclass` may stand above that decorator.
            raise ShoalValueError(f"{kind.__qualname__} has fields: decorate it with @dataclass")
        return construct(kind, entry)

    @classmethod
    def register_hardware_config(cls, type: str) -> Callable[[C], C]:  # noqa: A002  (part of the API)
        """Return a decorator that registers the configuration dataclass of a kind.

        Raises:
            ShoalValueError: The kind already has one, or the class is not a `HardwareConfig`.
        """

        def add(config_cls: C) -> C:
            given: Any = config_cls  # typed, but it comes from a user
            if not (inspect.isclass(given) and issubclass(given, HardwareConfig)):
                raise ShoalValueError(
                    f"{getattr(given, '__qualname__', given)}: the configuration class of a kind "
                    "must be a dataclass that is derived from HardwareConfig"
                )
            if type in cls.hardware_config_registry:
                other = cls.hardware_config_registry[type]
                raise ShoalValueError(
                    f"the hardware type {type!r} has a configuration class already, "
                    f"{other.__module__}.{other.__qualname__}"
                )
            cls.hardware_config_registry[type] = config_cls
            return config_cls

        return add
