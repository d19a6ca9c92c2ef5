"""Read the running cluster as an inventory; the only module of planning that needs Ray."""

import ray

from shoal.cluster import Cluster
from shoal.cluster.bringup import connect, disconnect, find_nodes
from shoal.deadline import Deadline
from shoal.errors import ClusterNotFoundError
from shoal.planner.inventory import Inventory

__all__ = ["read_live"]

_LIMIT_S = 60.0


def read_live() -> Inventory:
    """Read the nodes of the running Ray cluster, as a launch would, and leave it as it was.

    A short task on each node reports its devices and its rank. Running jobs are not disturbed.

    Raises:
        ClusterNotFoundError: No Ray cluster is running.
        ClusterError: The nodes contradict each other, or Ray does not answer.
        ShoalTimeoutError: A node did not answer in time.
    """
    before, deadline = ray.is_initialized(), Deadline(_LIMIT_S)
    try:
        if not before:
            connect("auto", Cluster.SYS_NAME, Cluster.SYS_NAME, deadline)
    except ConnectionError:
        raise ClusterNotFoundError(
            "--live found no running Ray cluster on this machine; start one with `ray start "
            "--head`, set RAY_ADDRESS, or describe the cluster with --nodes"
        ) from None
    try:
        nodes, _ = find_nodes(0, local=False, config=None, deadline=deadline)
    finally:
        if not before:
            disconnect()
    return Inventory("the running cluster", tuple(nodes))
