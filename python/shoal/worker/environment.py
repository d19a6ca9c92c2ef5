"""The environment variables by which a worker, and the frameworks in it, know their place."""

from collections.abc import Sequence

from shoal._backend import Placement
from shoal.cluster import Cluster

__all__ = ["worker_environment"]


def worker_environment(
    group: str,
    placement: Placement,
    placements: Sequence[Placement],
    cluster: Cluster,
    *,
    catch: bool,
) -> dict[str, str]:
    """Make the variables of one worker.

    Args:
        group: The group's name.
        placement: Where this worker goes.
        placements: Where all workers of the group go.
        cluster: The cluster.
        catch: Whether a crash or a signal prints all stacks.

    Returns:
        The variables, without those of the accelerators' vendor: they depend on what else the
        worker's environment has, and `Cluster.allocate` adds them. `NODE_ID`, `GPU_ID` and `ISOLATE_GPU` are older names of the ones beside
        them; `MASTER_PORT`, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` are set by the worker itself.
    """
    node = cluster.get_node_info(placement.cluster_node_rank)
    first = min(placements, key=lambda p: p.rank)
    visible = list(placement.visible_accelerators)
    accelerator = str(placement.local_accelerator_rank)
    node_rank = str(placement.cluster_node_rank)
    return {
        "GROUP_NAME": group,
        "WORKER_NAME": f"{group}:{placement.rank}",
        "MASTER_ADDR": cluster.get_node_ip(first.cluster_node_rank),
        "WORLD_SIZE": str(len(placements)),
        "RANK": str(placement.rank),
        "NODE_RANK": str(placement.placement_node_rank),
        "CLUSTER_NODE_RANK": node_rank,
        "NODE_ID": node_rank,
        "LOCAL_ACCELERATOR_RANK": accelerator,
        "GPU_ID": accelerator,
        "NODE_LOCAL_RANK": str(placement.local_rank),
        "NODE_LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "RAY_ACTOR": "1",
        "CLUSTER_NAMESPACE": cluster.namespace,
        "CATCH_SYSTEM_FAILURE": "1" if catch else "0",
        "VISIBLE_DEVICES": ",".join(visible),
        "ACCELERATOR_TYPE": str(placement.accelerator_type),
        "ACCELERATOR_MODEL": node.accelerator_model if visible else "",
        "ISOLATE_ACCELERATOR": "1" if placement.isolate_accelerator else "0",
        "ISOLATE_GPU": "1" if placement.isolate_accelerator else "0",
        "LOCAL_HARDWARE_RANKS": ",".join(map(str, placement.local_hardware_ranks)),
        "NODE_GROUP_LABEL": placement.node_group_label,
    }
