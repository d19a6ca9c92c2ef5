"""Robots with few or no checks: Turtle2, GimArm and DOS-W1."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from shoal.errors import ShoalValueError
from shoal.hardware.base import Hardware, HardwareConfig, HardwareInfo, NodeHardwareConfig
from shoal.hardware.robots.base import Robot
from shoal.hardware.robots.fields import (
    CAMERA_TYPES,
    check_choice,
    check_flag,
    check_rank,
    check_text,
    check_texts,
)

__all__ = [
    "DOSW1",
    "DOSW1HWConfig",
    "DOSW1HWInfo",
    "GimArm",
    "GimArmConfig",
    "GimArmHWInfo",
    "Turtle2",
    "Turtle2Config",
    "Turtle2HWInfo",
]

_log = logging.getLogger("shoal")

_ARM_VARIANTS = ("gim_arm_xl", "gim_arm")
_NETWORK_DEVICES = Path("/sys/class/net")
_MAX_PORT = 65535


@NodeHardwareConfig.register_hardware_config("Turtle2")
@dataclass
class Turtle2Config(HardwareConfig):
    """A Turtle2; it has no settings."""


@dataclass
class Turtle2HWInfo(HardwareInfo):
    """A Turtle2.

    Attributes:
        config: Its configuration.
    """

    config: Turtle2Config


@Hardware.register()
class Turtle2(Robot):
    """Turtle2 robots, from the configuration alone."""

    HW_TYPE: ClassVar[str] = "Turtle2"

    @classmethod
    def info(cls, config: Turtle2Config) -> Turtle2HWInfo:
        """Describe the robot of a configuration."""
        return Turtle2HWInfo(cls.HW_TYPE, "Turtle2", config)


@NodeHardwareConfig.register_hardware_config("GimArm")
@dataclass
class GimArmConfig(HardwareConfig):
    """A GimArm on a CAN bus.

    Attributes:
        can_interface: The network device of the bus (`CAN_INTERFACE` on the node).
        arm_variant: The model of the arm.
        camera_serials: Serial numbers of its cameras.
        camera_type: The cameras' make.
        enable_gripper: Whether it has a gripper.
        gripper_type: The gripper's make.
        controller_node_rank: The node that runs its controller; None for the arm's node.
        disable_validate: Whether to skip the check of the bus.
    """

    can_interface: str = "can0"
    arm_variant: str = "gim_arm_xl"
    camera_serials: list[str] | None = None
    camera_type: str = "realsense"
    enable_gripper: bool = True
    gripper_type: str = "parallel"
    controller_node_rank: int | None = None
    disable_validate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        bus: Any = self.can_interface  # typed, but it comes from a user
        if not isinstance(bus, str) or not bus or "/" in bus:
            raise ShoalValueError(f"can_interface: expected a network device (can0), not {bus!r}")
        check_choice(self, _ARM_VARIANTS, "arm_variant")
        check_choice(self, CAMERA_TYPES, "camera_type")
        check_texts(self, "camera_serials")
        check_text(self, "gripper_type")
        check_rank(self, "controller_node_rank")
        check_flag(self, "enable_gripper", "disable_validate")


@dataclass
class GimArmHWInfo(HardwareInfo):
    """A GimArm.

    Attributes:
        config: Its configuration, complete.
    """

    config: GimArmConfig


@Hardware.register()
class GimArm(Robot):
    """GimArms, from the configuration or from `CAN_INTERFACE` on their node."""

    HW_TYPE: ClassVar[str] = "GimArm"
    IDENTIFIERS: ClassVar[tuple[str, ...]] = ("can_interface",)

    @classmethod
    def info(cls, config: GimArmConfig) -> GimArmHWInfo:
        """Describe the arm of a configuration."""
        return GimArmHWInfo(cls.HW_TYPE, f"GimArm_{config.arm_variant}", config)

    @classmethod
    def validate(cls, config: GimArmConfig) -> None:
        """Warn if the bus is missing; it may still be brought up before the arm is used."""
        if not (_NETWORK_DEVICES / config.can_interface).exists():
            _log.warning(
                "GimArm on node %d: the network device %s is not there; bring it up before the "
                "arm is used (ip link set %s up type can bitrate ...)",
                config.node_rank, config.can_interface, config.can_interface,
            )  # fmt: skip


@NodeHardwareConfig.register_hardware_config("DOSW1")
@dataclass
class DOSW1HWConfig(HardwareConfig):
    """A DOS-W1, reached over the network.

    Attributes:
        robot_url: Its host name (`ROBOT_URL` on the node).
        left_arm_port: The left arm's port.
        right_arm_port: The right arm's port.
        left_lead_port: The port of the left leading arm.
        right_lead_port: The port of the right leading arm.
        camera_serials: Serial numbers of its cameras.
    """

    robot_url: str = "localhost"
    left_arm_port: int = 50051
    right_arm_port: int = 50053
    left_lead_port: int = 50050
    right_lead_port: int = 50052
    camera_serials: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        url: Any = self.robot_url  # typed, but it comes from a user
        if not isinstance(url, str) or not url.strip():
            raise ShoalValueError(f"robot_url: expected a host name, not {url!r}")
        for name in ("left_arm_port", "right_arm_port", "left_lead_port", "right_lead_port"):
            port = getattr(self, name)
            if type(port) is not int or not 0 < port <= _MAX_PORT:
                raise ShoalValueError(f"{name}: expected a port, 1 to {_MAX_PORT}, not {port!r}")
        check_texts(self, "camera_serials")


@dataclass
class DOSW1HWInfo(HardwareInfo):
    """A DOS-W1.

    Attributes:
        config: Its configuration, complete.
    """

    config: DOSW1HWConfig


@Hardware.register()
class DOSW1(Robot):
    """DOS-W1 robots, from the configuration or from `ROBOT_URL` on their node."""

    HW_TYPE: ClassVar[str] = "DOSW1"
    IDENTIFIERS: ClassVar[tuple[str, ...]] = ("robot_url",)

    @classmethod
    def info(cls, config: DOSW1HWConfig) -> DOSW1HWInfo:
        """Describe the robot of a configuration."""
        return DOSW1HWInfo(cls.HW_TYPE, "DOSW1", config)
