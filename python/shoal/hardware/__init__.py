"""Hardware of nodes: accelerators, robots and users' own kinds, configured or detected."""

from shoal.hardware.accelerators import (
    ACCELERATOR_HW_TYPE,
    Accelerator,
    AcceleratorManager,
    AcceleratorType,
    AcceleratorUtil,
    visibility_env,
)
from shoal.hardware.base import (
    Hardware,
    HardwareConfig,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    configured_hardware,
)
from shoal.hardware.robots import (
    DOSW1HWConfig,
    DOSW1HWInfo,
    DualFrankaConfig,
    DualFrankaHWInfo,
    FrankaConfig,
    FrankaHWInfo,
    GimArmConfig,
    GimArmHWInfo,
    RobotAutoConfig,
    Turtle2Config,
    Turtle2HWInfo,
)

__all__ = [
    "ACCELERATOR_HW_TYPE",
    "Accelerator",
    "AcceleratorManager",
    "AcceleratorType",
    "AcceleratorUtil",
    "DOSW1HWConfig",
    "DOSW1HWInfo",
    "DualFrankaConfig",
    "DualFrankaHWInfo",
    "FrankaConfig",
    "FrankaHWInfo",
    "GimArmConfig",
    "GimArmHWInfo",
    "Hardware",
    "HardwareConfig",
    "HardwareInfo",
    "HardwareResource",
    "NodeHardwareConfig",
    "RobotAutoConfig",
    "Turtle2Config",
    "Turtle2HWInfo",
    "configured_hardware",
    "visibility_env",
]
