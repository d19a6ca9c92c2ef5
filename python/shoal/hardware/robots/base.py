"""Base class of robots: completes their configurations on the node, and checks them there."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from shoal.hardware.base import (
    Hardware,
    HardwareConfig,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    own_configs,
)
from shoal.hardware.robots.auto import RobotAutoConfig

__all__ = ["Robot"]


class Robot(Hardware):
    """A kind of robot.

    Attributes:
        IDENTIFIERS: The fields that identify a robot. If the configuration names no robot, the
            node's variables for these fields do.
    """

    IDENTIFIERS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def info(cls, config: Any) -> HardwareInfo:
        """Describe the robot of a configuration."""

    @classmethod
    def validate(cls, config: Any) -> None:
        """Check that the devices are as configured; does nothing by default."""

    @classmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[Any] | None = None
    ) -> HardwareResource | None:
        """Return the node's robots, their configurations complete and checked.

        Raises:
            ShoalValueError: A value is missing or invalid, or a camera is not connected.
            ConnectionError: A robot does not answer.
            ImportError: A package that the check needs is not installed.
        """
        kind = cls._config_class()
        own = RobotAutoConfig.resolve(
            own_configs(kind, node_rank, configs), kind, node_rank, cls.IDENTIFIERS
        )
        for config in own:
            if not getattr(config, "disable_validate", False):
                cls.validate(config)
        return cls._resource(own)

    @classmethod
    def configured(
        cls, node_rank: int, configs: Sequence[Any] | None = None
    ) -> HardwareResource | None:
        """Return the robots that the configuration names for the node."""
        return cls._resource(own_configs(cls._config_class(), node_rank, configs))

    @classmethod
    def _config_class(cls) -> type[HardwareConfig]:
        return NodeHardwareConfig.hardware_config_registry[cls.HW_TYPE]

    @classmethod
    def _resource(cls, own: Sequence[Any]) -> HardwareResource | None:
        return HardwareResource(cls.HW_TYPE, [cls.info(c) for c in own]) if own else None
