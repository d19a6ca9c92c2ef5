"""Franka arms: single arms, and pairs of arms that form one robot."""

from dataclasses import dataclass
from typing import Any, ClassVar

from shoal.hardware.base import Hardware, HardwareConfig, HardwareInfo, NodeHardwareConfig
from shoal.hardware.robots.base import Robot
from shoal.hardware.robots.cameras import check_cameras
from shoal.hardware.robots.fields import (
    CAMERA_TYPES,
    GRIPPER_TYPES,
    check_choice,
    check_flag,
    check_ip,
    check_rank,
    check_text,
    check_texts,
)
from shoal.hardware.robots.ping import check_alive

__all__ = [
    "DualFranka",
    "DualFrankaConfig",
    "DualFrankaHWInfo",
    "Franka",
    "FrankaConfig",
    "FrankaHWInfo",
]


@NodeHardwareConfig.register_hardware_config("Franka")
@dataclass
class FrankaConfig(HardwareConfig):
    """One Franka arm. A field that is None is read from the node's variable of the same name.

    Attributes:
        robot_ip: The arm's IP address (`ROBOT_IP` on the node).
        camera_serials: Serial numbers of its cameras; None for all that the node finds.
        camera_type: The cameras' make.
        gripper_type: The gripper's make.
        gripper_connection: How the gripper is reached.
        controller_node_rank: The node that runs the arm's controller; None for the arm's node.
        disable_validate: Whether to skip the check of the devices.
    """

    robot_ip: str | None = None
    camera_serials: list[str] | None = None
    camera_type: str = "realsense"
    gripper_type: str = "franka"
    gripper_connection: str | None = None
    controller_node_rank: int | None = None
    disable_validate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ip(self, "robot_ip")
        check_texts(self, "camera_serials")
        check_choice(self, CAMERA_TYPES, "camera_type")
        check_choice(self, GRIPPER_TYPES, "gripper_type")
        check_text(self, "gripper_connection")
        check_rank(self, "controller_node_rank")
        check_flag(self, "disable_validate")


@dataclass
class FrankaHWInfo(HardwareInfo):
    """A Franka arm.

    Attributes:
        config: Its configuration, complete.
    """

    config: FrankaConfig


@Hardware.register()
class Franka(Robot):
    """Franka arms, from the configuration or from `ROBOT_IP` on their node."""

    HW_TYPE: ClassVar[str] = "Franka"
    IDENTIFIERS: ClassVar[tuple[str, ...]] = ("robot_ip",)

    @classmethod
    def info(cls, config: FrankaConfig) -> FrankaHWInfo:
        """Describe the arm of a configuration."""
        return FrankaHWInfo(cls.HW_TYPE, "Franka", config)

    @classmethod
    def validate(cls, config: FrankaConfig) -> None:
        """Ping the arm and look for its cameras; missing serial numbers are filled in."""
        check_alive("robot_ip", config.robot_ip)
        config.camera_serials = check_cameras(
            "camera_serials", config.camera_type, config.camera_serials
        )


@NodeHardwareConfig.register_hardware_config("DualFranka")
@dataclass
class DualFrankaConfig(HardwareConfig):
    """Two Franka arms that form one robot. Fields that are None are read from the node's variables.

    Attributes:
        left_robot_ip: The left arm's IP address (`LEFT_ROBOT_IP` on the node).
        right_robot_ip: The right arm's IP address (`RIGHT_ROBOT_IP` on the node).
        left_camera_serials: Serial numbers of the cameras on the left arm.
        right_camera_serials: Serial numbers of the cameras on the right arm.
        base_camera_serials: Serial numbers of the cameras beside the robot.
        camera_type: The make of the cameras whose own type is None.
        base_camera_type: The make of the cameras beside the robot.
        left_camera_type: The make of the cameras on the left arm.
        right_camera_type: The make of the cameras on the right arm.
        left_gripper_type: The left gripper's make.
        right_gripper_type: The right gripper's make.
        left_gripper_connection: How the left gripper is reached.
        right_gripper_connection: How the right gripper is reached.
        left_controller_node_rank: The node that runs the left arm's controller.
        right_controller_node_rank: The node that runs the right arm's controller.
        disable_validate: Whether to skip the check of the devices.
    """

    left_robot_ip: str | None = None
    right_robot_ip: str | None = None
    left_camera_serials: list[str] | None = None
    right_camera_serials: list[str] | None = None
    base_camera_serials: list[str] | None = None
    camera_type: str = "realsense"
    base_camera_type: str | None = None
    left_camera_type: str | None = None
    right_camera_type: str | None = None
    left_gripper_type: str = "franka"
    right_gripper_type: str = "franka"
    left_gripper_connection: str | None = None
    right_gripper_connection: str | None = None
    left_controller_node_rank: int | None = None
    right_controller_node_rank: int | None = None
    disable_validate: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ip(self, "left_robot_ip", "right_robot_ip")
        check_texts(self, "left_camera_serials", "right_camera_serials", "base_camera_serials")
        types = ("camera_type", "base_camera_type", "left_camera_type", "right_camera_type")
        check_choice(self, CAMERA_TYPES, *types)
        check_choice(self, GRIPPER_TYPES, "left_gripper_type", "right_gripper_type")
        check_text(self, "left_gripper_connection", "right_gripper_connection")
        check_rank(self, "left_controller_node_rank", "right_controller_node_rank")
        check_flag(self, "disable_validate")


@dataclass
class DualFrankaHWInfo(HardwareInfo):
    """Two Franka arms.

    Attributes:
        config: Their configuration, complete.
    """

    config: DualFrankaConfig


@Hardware.register()
class DualFranka(Robot):
    """Pairs of Franka arms, from the configuration or from their two variables on the node."""

    HW_TYPE: ClassVar[str] = "DualFranka"
    IDENTIFIERS: ClassVar[tuple[str, ...]] = ("left_robot_ip", "right_robot_ip")

    @classmethod
    def info(cls, config: DualFrankaConfig) -> DualFrankaHWInfo:
        """Describe the pair of a configuration."""
        return DualFrankaHWInfo(cls.HW_TYPE, "DualFranka", config)

    @classmethod
    def validate(cls, config: DualFrankaConfig) -> None:
        """Ping both arms, and look for the cameras whose serial numbers are given.

        Missing serial numbers are not filled in, because no library tells which arm carries a
        camera.
        """
        check_alive("left_robot_ip", config.left_robot_ip)
        check_alive("right_robot_ip", config.right_robot_ip)
        for side in ("left", "right", "base"):
            serials: Any = getattr(config, f"{side}_camera_serials")
            make = getattr(config, f"{side}_camera_type") or config.camera_type
            if serials:
                check_cameras(f"{side}_camera_serials", make, serials)
