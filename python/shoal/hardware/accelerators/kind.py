"""`AcceleratorType`: the accelerator types that shoal knows."""

from enum import StrEnum

__all__ = ["ACCELERATOR_HW_TYPE", "AcceleratorType"]

ACCELERATOR_HW_TYPE = "Accelerator"


class AcceleratorType(StrEnum):
    """An accelerator type that shoal knows, one per vendor; a member equals its name."""

    NV_GPU = "NV_GPU"
    AMD_GPU = "AMD_GPU"
    INTEL_GPU = "INTEL_GPU"
    NPU = "NPU"
    NO_ACCEL = "NO_ACCEL"
    MUSA_GPU = "MUSA_GPU"
    KUNLUN_XPU = "KUNLUN_XPU"
