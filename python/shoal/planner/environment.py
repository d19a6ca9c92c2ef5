"""The environment variables that a launch would set, as far as they are known before it."""

from collections.abc import Mapping
from functools import lru_cache

from shoal._backend import Placement
from shoal.hardware import visibility_env
from shoal.placement.environment import process_environment
from shoal.topology import NodeInfo

__all__ = ["AT_LAUNCH", "SET_AT_LAUNCH", "planned_environment"]

AT_LAUNCH = ("CATCH_SYSTEM_FAILURE", "CLUSTER_NAMESPACE", "MASTER_PORT")
"""Variables whose values are known only at launch."""
SET_AT_LAUNCH = (*AT_LAUNCH, "MASTER_ADDR")
"""Variables that launch always sets, whatever the configuration says; a plan may not know them."""


def planned_environment(
    name: str, placement: Placement, node: NodeInfo, configured: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one process, without those of its whole component.

    The group is assumed to be launched under the component's name.

    Args:
        name: The component.
        placement: The placement of the process.
        node: Its node.
        configured: The variables that the configuration sets there; a few win over computed ones.
    """
    isolated = placement.isolate_accelerator
    env = process_environment(name, placement, node.accelerator_model) | {
        # The worker itself sets these when it starts, for frameworks.
        "LOCAL_RANK": "0" if isolated else str(placement.local_accelerator_rank),
        "LOCAL_WORLD_SIZE": "1" if isolated else str(placement.local_world_size),
    }
    return env | _visibility(
        str(placement.accelerator_type),
        tuple(placement.visible_accelerators),
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
    # Cached: thousands of processes see the same few sets of devices.
    return visibility_env(kind, visible, names, egl_ids=egl_ids, environment=dict(environment))
