"""Read `profile_data` of a configuration: measured times, as costs per item of each component."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.auto_placement.curves import fit
from shoal.auto_placement.search import Stage
from shoal.dynamic_scheduler import get_valid_dp_sizes
from shoal.dynamic_scheduler.settings import KeyPath, dotted, number, read
from shoal.errors import ClusterConfigError, ShoalValueError
from shoal.nearest import did_you_mean
from shoal.problems import shown

__all__ = ["EMBODIED", "REASONING", "TABLE", "Profile", "read_profile"]

REASONING, EMBODIED, TABLE = "reasoning", "embodied", "table"

_SECTION = "profile_data"
_LARGE_ENGINE = 128
"""Number of running requests from which on an engine is assumed to be filled only by 90 %."""
_MOST_SIZES = 64
"""Maximum number of sizes of a component that are tried between its measured ones."""
_KEYS = {
    REASONING: ("actor_cost", "rollout_cost", "inference_cost"),
    EMBODIED: ("actor_cost", "env_profile_data", "rollout_profile_data"),
    TABLE: ("batch_size", "components"),
}
_ALL_KEYS = ("env_cost", *sorted({key for keys in _KEYS.values() for key in keys}))
"""The keys that a profile may have; those of another kind of job are left out, and named."""
_PARALLEL = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.context_parallel_size",
)


@dataclass(frozen=True)
class Profile:
    """The measured times of a job's components.

    Attributes:
        kind: `reasoning`, `embodied` or `table`.
        stages: The components, in the order in which an item passes them.
        batch: Number of items of an iteration.
        item: The name of an item.
        notes: The parts of the section that are not used, and why, as lines of text.
    """

    kind: str
    stages: tuple[Stage, ...]
    batch: int
    item: str
    notes: tuple[str, ...] = ()


def read_profile(config: Any, num_gpus: int) -> Profile:
    """Read the section `profile_data` of a configuration.

    Args:
        config: The whole configuration.
        num_gpus: Number of GPUs of the cluster, on which the times were measured.

    Raises:
        ClusterConfigError: The section is missing, or a value in it is not valid.
    """
    data = read(config, _SECTION)
    if not isinstance(data, Mapping):
        raise ClusterConfigError(f"{_SECTION}={shown(data)}: expected a mapping")
    keys = [str(key) for key in data]
    unknown = [key for key in keys if key not in _ALL_KEYS]
    near = next((hint for key in unknown if (hint := did_you_mean(key, _ALL_KEYS))), "")
    kind = _kind(keys, read(config, "runner.task_type", None))
    if kind is None:
        raise ClusterConfigError(
            f"{_SECTION} has the keys {', '.join(keys) or 'none'}; expected actor_cost and "
            "rollout_cost (and inference_cost), or, for an embodied job, actor_cost, "
            f"env_profile_data and rollout_profile_data, or batch_size and components{near}"
        )
    if unknown:
        raise ClusterConfigError(f"{_SECTION}.{unknown[0]}: no such key{near}")
    readers = {REASONING: _reasoning, EMBODIED: _embodied, TABLE: _table}
    profile = readers[kind](config, num_gpus)
    unused = [f"{_SECTION}.{key}" for key in keys if key not in _KEYS[kind]]
    if not unused:
        return profile
    used = [key for key in _KEYS[kind] if key in keys]
    note = f"Not used: {', '.join(unused)}; by {', '.join(used)} this is a job of the kind {kind}"
    return replace(profile, notes=(*profile.notes, note))


def _kind(keys: list[str], task_type: Any) -> str | None:
    """Return the kind of job of which all necessary keys are there."""
    kinds = [EMBODIED, REASONING, TABLE]
    if task_type == EMBODIED:
        kinds.remove(REASONING)
    required = {kind: _KEYS[kind][:2] if kind == REASONING else _KEYS[kind] for kind in kinds}
    return next((kind for kind in kinds if set(required[kind]) <= set(keys)), None)


def _reasoning(config: Any, num_gpus: int) -> Profile:
    batch = number(config, "data.rollout_batch_size")
    sequences = batch * number(config, "algorithm.group_size")
    most = number(config, "rollout.max_running_requests")
    if most >= _LARGE_ENGINE:
        most = math.ceil(most * 9 / 10)
    engine = _parallel_size(config, "rollout")
    rollout = _seconds(config, "rollout_cost") / batch

    def rollout_cost(gpus: int) -> float:
        # An engine is no faster with fewer sequences than it can run at once.
        return rollout if gpus // engine * most >= sequences else rollout * num_gpus / gpus

    stages = [Stage("rollout", rollout_cost, engine)]
    trained, notes = ["actor"], []
    if read(config, f"{_SECTION}.inference_cost", None) is not None:
        if read(config, "algorithm.recompute_logprobs", None) is False:
            notes.append(
                f"Not used: {_SECTION}.inference_cost; algorithm.recompute_logprobs is false, so "
                "the job has no inference"
            )
        else:
            trained.insert(0, "inference")
    actor_size = _parallel_size(config, "actor")
    for name in trained:
        size = _parallel_size(config, name, actor_size)
        valid = frozenset(dp * size for dp in get_valid_dp_sizes(config, num_gpus, size))
        cost = _trained_cost(_seconds(config, f"{name}_cost") / batch, num_gpus, valid)
        stages.append(Stage(name, cost))
    return Profile(REASONING, tuple(stages), batch, "prompt", tuple(notes))


def _trained_cost(
    cost: float, num_gpus: int, valid: frozenset[int]
) -> Callable[[int], float | None]:
    def on(gpus: int) -> float | None:
        if gpus not in valid:
            return None
        if gpus == num_gpus:
            return cost  # measured
        # Fewer GPUs spend less of their time on communication.
        saved = min(0.9, max(num_gpus / (10 * gpus), 0.1))
        return cost * (num_gpus / gpus) / (1 + saved)

    return on


def _embodied(config: Any, num_gpus: int) -> Profile:
    envs = number(config, "data.env_num")
    stages = []
    for name in ("env", "rollout"):
        curve = _curve(config, f"{_SECTION}.{name}_profile_data")

        def cost(gpus: int, curve: Callable[[float], float] = curve) -> float | None:
            # An embodied job only starts if all instances have the same number of environments.
            return curve(envs // gpus) / envs if envs % gpus == 0 else None

        stages.append(Stage(name, cost))
    actor = _seconds(config, "actor_cost") / envs
    stages.append(Stage("actor", lambda gpus: actor if gpus == num_gpus else None))
    return Profile(EMBODIED, tuple(stages), envs, "environment")


def _table(config: Any, num_gpus: int) -> Profile:
    del num_gpus
    batch = number(config, f"{_SECTION}.batch_size")
    components = read(config, f"{_SECTION}.components")
    if not isinstance(components, Mapping) or not components:
        raise ClusterConfigError(
            f"{_SECTION}.components={shown(components)}: expected a mapping from the names of "
            "components, in the order in which an item passes them"
        )
    stages = []
    for name in components:
        path = (_SECTION, "components", name)
        points = read(config, (*path, "seconds"))
        curve = _curve(config, (*path, "seconds"))
        wide = 1
        if read(config, (*path, "gpus_per_process"), None) is not None:
            wide = number(config, (*path, "gpus_per_process"))
        stages.append(Stage(str(name), _table_cost(curve, points, wide, batch), wide))
    return Profile(TABLE, tuple(stages), batch, "item")


def _table_cost(
    curve: Callable[[float], float], points: Mapping[int, float], wide: int, batch: int
) -> Callable[[int], float | None]:
    measured, most = frozenset(points), max(points)
    grain = wide * math.ceil(most / (wide * _MOST_SIZES))

    def on(gpus: int) -> float | None:
        between = min(measured) <= gpus <= most and gpus % grain == 0
        return curve(gpus) / batch if gpus in measured or between else None

    return on


def _curve(config: Any, path: KeyPath) -> Callable[[float], float]:
    points = read(config, path)
    if not isinstance(points, Mapping) or any(
        not isinstance(x, int) or isinstance(x, bool) for x in points
    ):
        raise ClusterConfigError(
            f"{dotted(path)}={shown(points)}: expected a mapping from counts to seconds, such as "
            "{4: 30.5, 8: 17}"
        )
    try:
        return fit(points)
    except ShoalValueError as error:
        raise ClusterConfigError(f"{dotted(path)}: {error}") from error


def _seconds(config: Any, key: str) -> float:
    path = f"{_SECTION}.{key}"
    value = read(config, path)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ClusterConfigError(f"{path}={shown(value)}: expected seconds, more than 0")
    return float(value)


def _parallel_size(config: Any, name: str, default: int = 1) -> int:
    """Return the number of GPUs of an instance: the product of its parallel sizes."""
    given = [
        number(config, f"{name}.{key}")
        for key in _PARALLEL
        if read(config, f"{name}.{key}", None) is not None
    ]
    return math.prod(given) if given else default
