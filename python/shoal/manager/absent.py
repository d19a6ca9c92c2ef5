"""Sentences about workers that cannot be found: their rank is too high, or their group unknown."""

from collections.abc import Mapping

from shoal._backend import WorkerAddress

__all__ = ["too_high"]


def too_high(address: WorkerAddress, sizes: Mapping[str, int | None]) -> str:
    """Return which ranks a worker's group has, if the worker's rank is none of them; else nothing.

    Args:
        address: The worker. One below another worker belongs to a group of another name.
        sizes: The groups, as in `WorkerManager.get_group_sizes`.
    """
    name, path = address.root_group_name, address.rank_path
    size = sizes.get(name)
    if size is None or len(path) != 1 or path[0] < size:
        return ""
    return f"the group {name} has " + ("rank 0 only" if size == 1 else f"ranks 0-{size - 1}")
