"""The registry of hardware kinds, of shoal and of users, and their configurations."""

from dataclasses import dataclass, field

import pytest

from shoal.errors import ShoalValueError
from shoal.hardware import (
    FrankaConfig,
    Hardware,
    HardwareConfig,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
    configured_hardware,
)
from shoal.hardware.robots.base import Robot


@pytest.fixture
def arm(registries):
    @NodeHardwareConfig.register_hardware_config("Arm")
    @dataclass
    class ArmConfig(HardwareConfig):
        port: str
        speed: float = 1.0

    @Hardware.register()
    class Arm(Hardware):
        HW_TYPE = "Arm"

        @classmethod
        def enumerate(cls, node_rank, configs=None):
            own = [c for c in configs or () if isinstance(c, ArmConfig)]
            return HardwareResource("Arm", [HardwareInfo("Arm", c.port) for c in own])

    return ArmConfig


def test_the_kinds_of_shoal_are_registered():
    kinds = ["Accelerator", "Franka", "DualFranka", "Turtle2", "GimArm", "DOSW1"]
    assert list(Hardware.policy_registry)[: len(kinds)] == kinds
    assert Hardware.DEFAULT_HW_TYPE == "Accelerator"
    assert set(kinds[1:]) <= set(NodeHardwareConfig.hardware_config_registry)


def test_a_kind_of_a_user(arm):
    config = NodeHardwareConfig("Arm", [{"node_rank": 1, "port": "usb0"}])
    assert config.configs == [arm(1, "usb0")]
    found = Hardware.policy_registry["Arm"].enumerate(1, config.configs)
    assert (found.count, found.infos) == (1, [HardwareInfo("Arm", "usb0")])
    # A plan counts the hardware configured for the node; the user writes no code for this.
    (promised,) = configured_hardware(1, config.configs)
    assert (promised.type, promised.count) == ("Arm", 1)
    assert configured_hardware(0, config.configs) == []


def test_a_kind_is_registered_once(arm):
    class Again(Hardware):
        HW_TYPE = "Arm"

        enumerate = Hardware.policy_registry["Arm"].enumerate

    with pytest.raises(ValueError, match=r"'Arm' is registered already, by .*\.Arm$"):
        Hardware.register()(Again)
    with pytest.raises(ShoalValueError, match=r"'Arm' has a configuration class already, .*Arm"):
        NodeHardwareConfig.register_hardware_config("Arm")(HardwareConfig)


def test_a_second_default_kind_is_refused(registries):
    class Other(Hardware):
        HW_TYPE = "Other"

        enumerate = Hardware.policy_registry["Franka"].enumerate

    with pytest.raises(AssertionError, match=r"'Other' cannot be the default.*: 'Accelerator' is"):
        Hardware.register(is_default_hw=True)(Other)
    assert "Other" not in Hardware.policy_registry


def test_configurations_of_the_class_are_kept():
    made = FrankaConfig(0, "10.0.0.1")
    assert NodeHardwareConfig("Franka", [made]).configs == [made]
    assert NodeHardwareConfig("Franka", []).configs == []


@pytest.mark.parametrize(
    ("base", "kind", "message"),
    [
        (Hardware, "", "Wrong: HW_TYPE must be the name"),
        (Hardware, "Wrong", "Wrong: the class method enumerate is missing"),
        (Robot, "Wrong", "Wrong: the class method info is missing"),
    ],
)
def test_an_incomplete_kind_is_refused_when_it_registers(base, kind, message, registries):
    with pytest.raises(ShoalValueError, match=message):
        Hardware.register()(type("Wrong", (base,), {"HW_TYPE": kind} if kind else {}))
    assert "Wrong" not in Hardware.policy_registry


def test_the_decorator_needs_parentheses():
    with pytest.raises(ShoalValueError, match=r"write @Hardware\.register\(\), with parentheses"):
        Hardware.register(Hardware)


def test_a_configuration_class_must_derive_from_hardware_config(registries):
    @dataclass
    class Plain:
        port: str

    with pytest.raises(ShoalValueError, match=r"Plain: .* dataclass that is derived from Hardware"):
        NodeHardwareConfig.register_hardware_config("Plain")(Plain)
    assert "Plain" not in NodeHardwareConfig.hardware_config_registry


def test_a_configuration_class_with_fields_must_be_a_dataclass(registries):
    class Undecorated(HardwareConfig):
        port: str

    NodeHardwareConfig.register_hardware_config("Undecorated")(Undecorated)
    with pytest.raises(
        ShoalValueError, match="Undecorated has fields: decorate it with @dataclass"
    ):
        NodeHardwareConfig(type="Undecorated", configs=[{"node_rank": 0, "port": "a"}])


def test_pieces_with_the_same_repr_are_not_duplicates(registries):
    @NodeHardwareConfig.register_hardware_config("Safe")
    @dataclass
    class SafeConfig(HardwareConfig):
        token: str = field(repr=False)

    pieces = [{"node_rank": 0, "token": token} for token in ("a", "b", "c")]
    assert len(NodeHardwareConfig("Safe", pieces).configs) == 3
    with pytest.raises(ShoalValueError, match=r"configs\[3\]: Duplicate.*: same as configs\[1\]"):
        NodeHardwareConfig("Safe", [*pieces, {"node_rank": 0, "token": "b"}])
