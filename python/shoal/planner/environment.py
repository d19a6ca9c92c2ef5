"""The variables that launch would set, as far as they are known before it."""

from collections.abc import Mapping
from functools import lru_cache

from shoal._backend import Placement
from shoal.hardware import visibility_env
from shoal.topology import NodeInfo

__all__ = ["AT_LAUNCH", "component_environment", "process_environment"]

AT_LAUNCH = ("CATCH_SYSTEM_FAILURE", "CLUSTER_NAMESPACE", "MASTER_PORT")
"""What only launch knows."""


def component_environment(name: str, world_size: int, master_ip: str) -> dict[str, str]:
    """Return the variables that all processes of a component have alike.

    The group is taken to be launched under the component's name.
    """
    env = {"GROUP_NAME": name, "WORLD_SIZE": str(world_size), "RAY_ACTOR": "1"}
    return env | {"MASTER_ADDR": master_ip} if master_ip else env


def process_environment(
    name: str, placement: Placement, node: NodeInfo, configured: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one process, beside those of its component.

    Args:
        name: The component.
        placement: Where the process goes.
        node: Its node.
        configured: What the configuration sets there, to which some variables give way.
    """
    visible = placement.visible_accelerators
    accelerator = str(placement.local_accelerator_rank)
    node_rank = str(placement.cluster_node_rank)
    isolated = placement.isolate_accelerator
    env = {
        "WORKER_NAME": f"{name}:{placement.rank}",
        "RANK": str(placement.rank),
        "NODE_RANK": str(placement.placement_node_rank),
        "CLUSTER_NODE_RANK": node_rank,
        "NODE_ID": node_rank,
        "LOCAL_ACCELERATOR_RANK": accelerator,
        "GPU_ID": accelerator,
        "NODE_LOCAL_RANK": str(placement.local_rank),
        "NODE_LOCAL_WORLD_SIZE": str(placement.local_world_size),
        # What the worker itself sets when it starts, for frameworks.
        "LOCAL_RANK": "0" if isolated else str(max(int(accelerator), 0)),
        "LOCAL_WORLD_SIZE": "1" if isolated else str(placement.local_world_size),
        "VISIBLE_DEVICES": ",".join(visible),
        "ACCELERATOR_TYPE": str(placement.accelerator_type),
        "ACCELERATOR_MODEL": node.accelerator_model if visible else "",
        "ISOLATE_ACCELERATOR": "1" if isolated else "0",
        "ISOLATE_GPU": "1" if isolated else "0",
        "LOCAL_HARDWARE_RANKS": ",".join(map(str, placement.local_hardware_ranks)),
        "NODE_GROUP_LABEL": placement.node_group_label,
    }
    return env | _visibility(
        str(placement.accelerator_type),
        tuple(visible),
        tuple(node.device_names()),
        tuple(node.egl_ids()),
        tuple((node.default_env_vars | dict(configured)).items()),
    )


@lru_cache(maxsize=4096)
def _visibility(
    kind: str,
    visible: tuple[str, ...],
    names: tuple[str, ...],
    egl_ids: tuple[int, ...],
    environment: tuple[tuple[str, str], ...],
) -> dict[str, str]:
    # Thousands of processes see the same few sets of devices.
    return visibility_env(kind, visible, names, egl_ids=egl_ids, environment=dict(environment))
