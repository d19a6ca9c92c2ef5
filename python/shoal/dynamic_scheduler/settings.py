"""Read the settings of the scheduler: keys of a configuration, sizes of a placement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import ClusterConfigError
from shoal.integers import as_int, as_ints
from shoal.nearest import did_you_mean
from shoal.problems import shown

__all__ = [
    "ComponentSize",
    "JobSizes",
    "KeyPath",
    "dotted",
    "flag",
    "number",
    "read",
    "read_sizes",
    "use_pre_process_policy",
    "use_wait_before_last_iter_policy",
]

_ABSENT = object()


KeyPath = str | Sequence[Any]
"""Keys of a configuration: separated by dots, or as a sequence if a key may hold a dot."""


def dotted(path: KeyPath) -> str:
    """Return keys as text, for messages."""
    return path if isinstance(path, str) else ".".join(map(str, path))


def read(config: Any, path: KeyPath, default: Any = _ABSENT) -> Any:
    """Return a value of a configuration: nested mappings, a `DictConfig`, or plain attributes.

    Args:
        config: The configuration.
        path: The keys: `algorithm.group_size`.
        default: The value if a key is absent, or its value is None; required without it.

    Raises:
        ClusterConfigError: The key is absent and has no default; names the nearest key.
    """
    value, known = config, []
    done: list[Any] = []
    for name in path.split(".") if isinstance(path, str) else path:
        known = _names(value)
        value = _step(value, name)
        done.append(name)
        if value is _ABSENT or value is None:
            break
    if value is not _ABSENT and value is not None:
        return value
    if default is not _ABSENT:
        return default
    near = did_you_mean(str(done[-1]), known)
    raise ClusterConfigError(
        f"{dotted(path)}: the key is missing ({dotted(done)} does not exist){near}"
    )


def _step(value: Any, name: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get(name, _ABSENT)
    return getattr(value, str(name), _ABSENT)


def _names(value: Any) -> list[str]:
    return [str(key) for key in value] if isinstance(value, Mapping) else []


def number(config: Any, path: KeyPath, *, least: int = 1) -> int:
    """Return a required integer of a configuration.

    Raises:
        ClusterConfigError: It is absent, not an integer, or too small.
    """
    value = read(config, path)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ClusterConfigError(
            f"{dotted(path)}={shown(value)}: expected an integer, at least {least}"
        )
    return value


def flag(config: Any, path: str, *, default: bool) -> bool:
    """Return a boolean of a configuration.

    Raises:
        ClusterConfigError: It is not a boolean.
    """
    value = read(config, path, default)
    if not isinstance(value, bool):
        raise ClusterConfigError(f"{path}={shown(value)}: expected true or false")
    return value


def use_pre_process_policy(config: Any) -> bool:
    """Return whether rollout instances start on the actor's GPUs and leave them half-way.

    Scheduler, placement and actor must agree, so all of them call this function. The key is
    `cluster.use_pre_process_policy`, and it is false where it is absent.
    """
    return flag(config, "cluster.use_pre_process_policy", default=False)


def use_wait_before_last_iter_policy(config: Any) -> bool:
    """Return whether the scheduler waits for rollout and inference before the last training step.

    The key is `cluster.use_wait_before_last_iter_policy`, and it is true where it is absent.
    """
    return flag(config, "cluster.use_wait_before_last_iter_policy", default=True)


@dataclass(frozen=True)
class ComponentSize:
    """The size of a component.

    Attributes:
        world_size: Its number of GPUs.
        dp_size: Its number of instances: rollout engines, or data-parallel ranks of a trainer.
    """

    world_size: int
    dp_size: int

    @property
    def model_parallel_size(self) -> int:
        """The number of GPUs of an instance."""
        return self.world_size // self.dp_size


class JobSizes:
    """The sizes of a job's components: what the scheduler has to know of a placement.

    Any object with these attributes is a placement for the scheduler: `components`, and for each
    component `<name>_world_size` and `<name>_dp_size`.

    Args:
        num_gpus: Number of GPUs of the cluster.
        sizes: World size and number of instances of each component.

    Raises:
        ClusterConfigError: A size is not an integer, or the sizes of a component are impossible.

    Example:
        >>> sizes = JobSizes(8, actor=(2, 1), rollout=(4, 4), inference=(2, 1))
        >>> sizes.rollout_dp_size
        4
    """

    def __init__(self, num_gpus: int, **sizes: tuple[int, int]) -> None:
        total = as_int(num_gpus)
        if total is None:
            raise ClusterConfigError(f"num_gpus={shown(num_gpus)}: expected an integer")
        self.num_gpus = total
        self._sizes = {name: _checked(name, size) for name, size in sizes.items()}

    @property
    def components(self) -> list[str]:
        """The names of the components."""
        return list(self._sizes)

    def size_of(self, component: str) -> ComponentSize:
        """Return the size of a component.

        Raises:
            ClusterConfigError: There is no such component.
        """
        if component not in self._sizes:
            raise ClusterConfigError(
                f'there is no component "{component}"; there are {", ".join(self._sizes)}'
                f"{did_you_mean(component, self._sizes)}"
            )
        return self._sizes[component]

    def __getattr__(self, name: str) -> int:
        for suffix in ("_world_size", "_dp_size"):
            component = name.removesuffix(suffix)
            sizes: dict[str, ComponentSize] = self.__dict__.get("_sizes", {})
            if component != name and component in sizes:
                value: int = getattr(sizes[component], suffix[1:])
                return value
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def read_sizes(placement: Any) -> JobSizes:
    """Return the sizes of a placement's components.

    Args:
        placement: `JobSizes`; or a placement with `components` and, for each component, the
            attributes `<name>_world_size` and `<name>_dp_size`. Without these attributes,
            `get_hardware_ranks` and `get_world_size` of a `ComponentPlacement` are asked: each
            process is then an instance. The GPUs of the cluster are `num_gpus`, or
            `_cluster_num_gpus`, or those of the components.

    Raises:
        ClusterConfigError: The sizes of a component are missing, or impossible.
    """
    if isinstance(placement, JobSizes):
        return placement
    names = [str(name) for name in _either(placement, "components", "_components") or ()]
    sizes = {name: _size_of(placement, name) for name in names}
    total = _either(placement, "num_gpus", "_cluster_num_gpus")
    if total is None:
        total = _count_gpus(placement, names)
    return JobSizes(total, **sizes)


def _either(placement: Any, *names: str) -> Any:
    """Return the first of these attributes that is there and not empty, else None."""
    return next((value for name in names if (value := getattr(placement, name, None))), None)


def _size_of(placement: Any, name: str) -> tuple[int, int]:
    world = getattr(placement, f"{name}_world_size", None)
    instances = getattr(placement, f"{name}_dp_size", None)
    try:
        if world is None:
            world = len(placement.get_hardware_ranks(name))
        if instances is None:
            instances = placement.get_world_size(name)
    except AttributeError:
        raise ClusterConfigError(
            f"{type(placement).__name__} does not tell the size of {name!r}: expected the "
            f"attributes {name}_world_size and {name}_dp_size"
        ) from None
    return world, instances


def _count_gpus(placement: Any, names: list[str]) -> int:
    ranks: set[int] = set()
    for name in names:
        try:
            ranks |= set(placement.get_hardware_ranks(name))
        except AttributeError:
            raise ClusterConfigError(
                f"{type(placement).__name__} does not tell the number of GPUs: expected the "
                "attribute num_gpus"
            ) from None
    return len(ranks)


def _checked(name: str, size: Any) -> ComponentSize:
    try:
        world, instances = as_ints(size) or []
    except ValueError:
        raise ClusterConfigError(
            f"{name}={shown(size)}: expected the numbers of its GPUs and instances, such as (4, 2)"
        ) from None
    if instances < 1 or world < instances or world % instances:
        raise ClusterConfigError(
            f"{name}_world_size={world}, {name}_dp_size={instances}: expected at least one "
            "instance, and a world size that is a multiple of the number of instances"
        )
    return ComponentSize(world, instances)
