"""Robots as hardware: their configurations, and the checks of them on a node."""

from shoal.hardware.robots.auto import RobotAutoConfig
from shoal.hardware.robots.base import Robot
from shoal.hardware.robots.franka import (
    DualFranka,
    DualFrankaConfig,
    DualFrankaHWInfo,
    Franka,
    FrankaConfig,
    FrankaHWInfo,
)
from shoal.hardware.robots.others import (
    DOSW1,
    DOSW1HWConfig,
    DOSW1HWInfo,
    GimArm,
    GimArmConfig,
    GimArmHWInfo,
    Turtle2,
    Turtle2Config,
    Turtle2HWInfo,
)

__all__ = [
    "DOSW1",
    "DOSW1HWConfig",
    "DOSW1HWInfo",
    "DualFranka",
    "DualFrankaConfig",
    "DualFrankaHWInfo",
    "Franka",
    "FrankaConfig",
    "FrankaHWInfo",
    "GimArm",
    "GimArmConfig",
    "GimArmHWInfo",
    "Robot",
    "RobotAutoConfig",
    "Turtle2",
    "Turtle2Config",
    "Turtle2HWInfo",
]
