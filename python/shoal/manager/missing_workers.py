"""Sentences about workers that cannot be found: their rank is too high, or their group unknown."""

from collections.abc import Mapping

from shoal._backend import WorkerAddress
from shoal.nearest import did_you_mean

__all__ = ["other_groups", "too_high", "unknown_group"]

_MOST_NAMES = 8


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


def unknown_group(name: str, sizes: Mapping[str, int | None]) -> str:
    """Return that there is no group of this name, and which there are; nothing if there is one.

    Args:
        name: The group.
        sizes: The groups, as in `WorkerManager.get_group_sizes`; empty if they are not known.
    """
    found = other_groups(name, sizes)
    return f"no group {name} was launched{found}" if found else ""


def other_groups(name: str, sizes: Mapping[str, int | None]) -> str:
    """Return the part of `unknown_group` that names the groups there are."""
    if name in sizes or not sizes:
        return ""
    names = sorted(sizes)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    be = "are" if len(names) > 1 else "is"
    return f"; there {be} {', '.join(names[:_MOST_NAMES])}{more}{did_you_mean(name, names)}"
