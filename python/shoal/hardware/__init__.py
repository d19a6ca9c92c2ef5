"""Accelerators: their kinds, and the variables that show a worker only its own."""

from shoal.hardware.accelerator import (
    ACCELERATOR_HW_TYPE,
    AcceleratorType,
    HardwareInfo,
    HardwareResource,
    visibility_env,
)

__all__ = [
    "ACCELERATOR_HW_TYPE",
    "AcceleratorType",
    "HardwareInfo",
    "HardwareResource",
    "visibility_env",
]
