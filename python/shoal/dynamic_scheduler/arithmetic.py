"""The scheduler's decisions as pure functions: how many instances go, and which groups move."""

from collections.abc import Iterable, Sequence
from typing import Any

from shoal.dynamic_scheduler.messages import count_tasks
from shoal.dynamic_scheduler.settings import number
from shoal.errors import ClusterConfigError, ShoalValueError
from shoal.integers import as_ints

__all__ = [
    "count_releasable",
    "deal_groups",
    "get_valid_dp_sizes",
    "grown_dp_size",
]


def get_valid_dp_sizes(cfg: Any, total_gpus: int, model_parallel_size_with_cp: int) -> list[int]:
    """Return the data-parallel sizes among which the rows of a training step divide evenly.

    Args:
        cfg: The configuration; `algorithm.group_size`, `algorithm.n_minibatches` and
            `data.rollout_batch_size` are read.
        total_gpus: Number of GPUs of the cluster.
        model_parallel_size_with_cp: GPUs of one data-parallel rank.

    Returns:
        All sizes in ascending order: those for which each rank gets whole groups, and as many as
        every other rank. Empty if there are none.

    Raises:
        ClusterConfigError: The rows of an iteration do not divide among the training steps.
        ShoalValueError: A size is not a positive integer.

    Example:
        >>> algorithm = {"group_size": 8, "n_minibatches": 4}
        >>> job = {"algorithm": algorithm, "data": {"rollout_batch_size": 24}}
        >>> get_valid_dp_sizes(job, 8, 1)
        [1, 2, 3, 6]
    """
    given = as_ints((total_gpus, model_parallel_size_with_cp))
    if given is None or min(given) < 1:
        raise ShoalValueError(
            f"total_gpus={total_gpus!r}, model_parallel_size_with_cp="
            f"{model_parallel_size_with_cp!r}: expected integers, at least 1"
        )
    group_size = number(cfg, "algorithm.group_size")
    steps = number(cfg, "algorithm.n_minibatches")
    rows = number(cfg, "data.rollout_batch_size") * group_size
    if rows % steps:
        raise ClusterConfigError(
            f"global_step_batch_size={rows} must be divisible by train_iter={steps}: change "
            "data.rollout_batch_size, algorithm.group_size or algorithm.n_minibatches"
        )
    most = given[0] // given[1]
    return [dp for dp in range(1, most + 1) if (rows // steps) % (dp * group_size) == 0]


def grown_dp_size(valid: Iterable[int], current: int, extra: int) -> int:
    """Return the largest valid size that a component reaches with `extra` more instances.

    Returns:
        The size; `current` if no valid size is larger and within reach.
    """
    return max((dp for dp in valid if current < dp <= current + extra), default=current)


def count_releasable(
    running: int,
    live: int,
    *,
    most_running: int,
    instance_gpus: int,
    free_gpus: int,
    valid: Sequence[int],
    current: int,
    actor_gpus: int,
) -> int:
    """Return how many rollout instances may go now, for the actor to grow.

    Args:
        running: Number of sequences that all instances generate.
        live: Number of instances.
        most_running: Number of sequences that an instance may generate at once.
        instance_gpus: GPUs of a rollout instance.
        free_gpus: GPUs that are free already.
        valid: The actor's valid data-parallel sizes.
        current: The actor's data-parallel size.
        actor_gpus: GPUs of one data-parallel rank of the actor.

    Returns:
        The least number of instances with which the actor reaches the largest size that is
        possible without those that the sequences need; 0 if it cannot grow with them.
    """
    spare = max(0, live - _ceil(running, most_running))

    def reach(instances: int) -> int:
        gpus = free_gpus + instances * instance_gpus
        return grown_dp_size(valid, current, gpus // actor_gpus)

    # The actor reaches this size without them.
    if reach(spare) == reach(0):
        return 0
    missing = (reach(spare) - current) * actor_gpus - free_gpus
    return _ceil(missing, instance_gpus)


def deal_groups(
    groups: Sequence[Any], receivers: Sequence[int], total_running: int
) -> list[list[Any]]:
    """Deal aborted groups to the instances that continue them.

    Args:
        groups: The groups, in the order of the instances that they come from.
        receivers: The number of sequences that each receiver generates now.
        total_running: The number of sequences of all instances, before the abort.

    Returns:
        The groups of each receiver, in order. Each receiver but the last takes groups until it
        has its share of the sequences; the last takes the rest. The receivers after the one that
        took the last group have no list.

    Raises:
        ShoalValueError: There are groups, and no receivers.
    """
    if groups and not receivers:
        raise ShoalValueError(f"{len(groups)} aborted groups, and no instance to continue them")
    share = total_running // max(1, len(receivers))
    left = list(groups)
    dealt: list[list[Any]] = []
    for running in receivers[:-1]:
        if not left:
            return dealt
        taken: list[Any] = []
        has = running
        while left and has < share:
            taken.append(left.pop(0))
            has += count_tasks(taken[-1])
        dealt.append(taken)
    if left:
        dealt.append(left)
    return dealt


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)
