"""The environment variables that tell a process, and the frameworks in it, its placement.

Launch sets these variables, and plans show them.
"""

from collections.abc import Sequence

from shoal._backend import Placement
from shoal.topology import DescribedCluster

__all__ = ["group_environment", "process_environment"]


def group_environment(
    group: str, placements: Sequence[Placement], cluster: DescribedCluster
) -> dict[str, str]:
    """Return the variables that are the same in all processes of a group.

    Args:
        group: The group's name.
        placements: The placements of its processes.
        cluster: The cluster that they run on.

    Returns:
        The variables; without `MASTER_ADDR` if the address of rank 0's node is not known.
    """
    env = {"GROUP_NAME": group, "WORLD_SIZE": str(len(placements)), "RAY_ACTOR": "1"}
    first = min(placements, key=lambda placement: placement.rank)
    address = cluster.get_node_info(first.cluster_node_rank).node_ip
    return env | {"MASTER_ADDR": address} if address else env


def process_environment(group: str, placement: Placement, accelerator_model: str) -> dict[str, str]:
    """Return the variables of one process, without those of its group.

    Args:
        group: The group's name.
        placement: The placement of the process.
        accelerator_model: The model of its node's accelerators.

    Returns:
        The variables, without those of the accelerators' vendor, which depend on the rest of the
        process's environment. `NODE_ID`, `GPU_ID` and `ISOLATE_GPU` are older names of
        `CLUSTER_NODE_RANK`, `LOCAL_ACCELERATOR_RANK` and `ISOLATE_ACCELERATOR`.
    """
    visible = placement.visible_accelerators
    accelerator = str(placement.local_accelerator_rank)
    node_rank = str(placement.cluster_node_rank)
    isolated = "1" if placement.isolate_accelerator else "0"
    return {
        "WORKER_NAME": f"{group}:{placement.rank}",
        "RANK": str(placement.rank),
        "NODE_RANK": str(placement.placement_node_rank),
        "CLUSTER_NODE_RANK": node_rank,
        "NODE_ID": node_rank,
        "LOCAL_ACCELERATOR_RANK": accelerator,
        "GPU_ID": accelerator,
        "NODE_LOCAL_RANK": str(placement.local_rank),
        "NODE_LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "VISIBLE_DEVICES": ",".join(visible),
        "ACCELERATOR_TYPE": str(placement.accelerator_type),
        "ACCELERATOR_MODEL": accelerator_model if visible else "",
        "ISOLATE_ACCELERATOR": isolated,
        "ISOLATE_GPU": isolated,
        "LOCAL_HARDWARE_RANKS": ",".join(map(str, placement.local_hardware_ranks)),
        "NODE_GROUP_LABEL": placement.node_group_label,
    }
