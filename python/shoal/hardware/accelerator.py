"""Kinds of accelerators, and the variables that show a worker only its own."""

from collections.abc import Sequence
from enum import StrEnum

__all__ = [
    "ACCELERATOR_HW_TYPE",
    "AcceleratorType",
    "visibility_env",
]

ACCELERATOR_HW_TYPE = "Accelerator"


class AcceleratorType(StrEnum):
    """The vendors' kinds of accelerators; a member equals its name."""

    NV_GPU = "NV_GPU"
    AMD_GPU = "AMD_GPU"
    INTEL_GPU = "INTEL_GPU"
    NPU = "NPU"
    NO_ACCEL = "NO_ACCEL"
    MUSA_GPU = "MUSA_GPU"
    KUNLUN_XPU = "KUNLUN_XPU"


def visibility_env(
    accelerator_type: str, visible: Sequence[str], device_names: Sequence[str] = ()
) -> dict[str, str]:
    """Return the variables that show a worker only some of its node's accelerators.

    Args:
        accelerator_type: The kind, as the node reports it.
        visible: Ranks of the devices on the node.
        device_names: The node's own names of its devices (UUIDs, MIG instances, or physical
            indices where the node was given a part of a machine).

    Returns:
        The variables; empty for a kind that has none.
    """
    if accelerator_type != AcceleratorType.NV_GPU.value:
        return {}
    names = [device_names[int(rank)] if device_names else rank for rank in visible]
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(names),
        # Ray would otherwise write its own idea, no device for an actor without a GPU request.
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    }
