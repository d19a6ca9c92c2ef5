"""Look up a group in the job's WorkerManager."""

from typing import Any

from shoal._backend import WorkerAddress
from shoal.errors import ShoalValueError
from shoal.manager import WorkerInfo

__all__ = ["get_group_info", "get_group_world_size"]


def get_group_info(manager_proxy: Any, group_name: str) -> WorkerInfo:
    """Return the `WorkerInfo` that rank 0 of a group registered.

    Args:
        manager_proxy: The proxy of the WorkerManager.
        group_name: The group.

    Raises:
        ShoalValueError: No worker of that name has registered.
    """
    info: WorkerInfo | None = manager_proxy.get_worker_info(WorkerAddress(group_name, 0))
    if info is None:
        raise ShoalValueError(
            f"Worker group {group_name!r} is not registered. Launch it first, and wait for it with "
            "group.ready()"
        )
    return info


def get_group_world_size(manager_proxy: Any, group_name: str) -> int:
    """Return the number of ranks of a group; raises the same errors as `get_group_info`."""
    return get_group_info(manager_proxy, group_name).group_world_size
