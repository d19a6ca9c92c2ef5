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
def registries(monkeypatch):
    """Registries that drop a test's registrations when the test ends."""
    monkeypatch.setattr(Hardware, "policy_registry", dict(Hardware.policy_registry))
    known = dict(NodeHardwareConfig.hardware_config_registry)
    monkeypatch.setattr(NodeHardwareConfig, "hardware_config_registry", known)


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


def test_what_is_registered_from_the_start():
    kinds = ["Accelerator", "Franka", "DualFranka", "Turtle2", "GimArm", "DOSW1"]
    assert list(Hardware.policy_registry)[: len(kinds)] == kinds
    assert Hardware.DEFAULT_HW_TYPE == "Accelerator"
    assert set(kinds[1:]) <= set(NodeHardwareConfig.hardware_config_registry)


def test_a_users_kind(arm):
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
    with pytest.raises(
        ShoalValueError, match=r"'Arm' has a configuration class already, by|already, .*ArmConfig"
    ):
        NodeHardwareConfig.register_hardware_config("Arm")(HardwareConfig)


def test_there_is_one_default_kind(registries):
    class Other(Hardware):
        HW_TYPE = "Other"

        enumerate = Hardware.policy_registry["Franka"].enumerate

    with pytest.raises(AssertionError, match=r"'Other' cannot be the default.*: 'Accelerator' is"):
        Hardware.register(is_default_hw=True)(Other)
    assert "Other" not in Hardware.policy_registry


def test_a_kind_needs_a_name(registries):
    class Nameless(Hardware):
        pass

    with pytest.raises(ShoalValueError, match="Nameless: HW_TYPE must be the name"):
        Hardware.register()(Nameless)


@pytest.mark.parametrize(
    ("kind", "configs", "message"),
    [
        (
            "Franca",
            [],
            r"Unsupported hardware type 'Franca'; there are .*; did you mean 'Franka'\?",
        ),
        ("Franka", ["172.16.0.2"], r"configs\[0\]: Each hardware config must be a dictionary"),
        ("Franka", [{}], r"configs\[0\]: Missing fields '\['node_rank'\]' detected"),
        (
            "Franka",
            [{"node_rank": 0, "unknown_field": 1}],
            r"Unknown fields '\{'unknown_field'\}' detected",
        ),
        ("Franka", [{"node_rank": "0"}], r"configs\[0\]\.node_rank: expected a node rank"),
        ("Franka", [{"node_rank": True}], r"configs\[0\]\.node_rank: expected a node rank"),
        (
            "Franka",
            [{"node_rank": 0}, {"node_rank": 1}, {"node_rank": 0}],
            r"configs\[2\]: Duplicate hardware configs",
        ),
    ],
)
def test_what_a_configuration_cannot_say(kind, configs, message):
    with pytest.raises(ShoalValueError, match=message):
        NodeHardwareConfig(kind, configs)


def test_configurations_that_are_made_already_are_kept():
    made = FrankaConfig(0, "10.0.0.1")
    assert NodeHardwareConfig("Franka", [made]).configs == [made]
    assert NodeHardwareConfig("Franka", []).configs == []


def test_a_kind_that_tells_nothing_is_refused_when_it_registers(registries):
    class Silent(Hardware):
        HW_TYPE = "Silent"

    with pytest.raises(ShoalValueError, match=r"Silent: the class method enumerate is missing"):
        Hardware.register()(Silent)

    class Nameless(Robot):
        HW_TYPE = "Nameless"

    with pytest.raises(ShoalValueError, match=r"Nameless: the class method info is missing"):
        Hardware.register()(Nameless)
    with pytest.raises(ShoalValueError, match=r"write @Hardware\.register\(\), with parentheses"):
        Hardware.register(Silent)
    assert "Silent" not in Hardware.policy_registry


def test_a_configuration_class_has_to_bring_a_node_rank(registries):
    @dataclass
    class Plain:
        port: str

    with pytest.raises(ShoalValueError, match=r"Plain: .* dataclass that is derived from Hardware"):
        NodeHardwareConfig.register_hardware_config("Plain")(Plain)
    assert "Plain" not in NodeHardwareConfig.hardware_config_registry


def test_pieces_that_only_look_alike_are_no_duplicates(registries):
    @NodeHardwareConfig.register_hardware_config("Safe")
    @dataclass
    class SafeConfig(HardwareConfig):
        token: str = field(repr=False)

    pieces = [{"node_rank": 0, "token": token} for token in ("a", "b", "c")]
    assert len(NodeHardwareConfig("Safe", pieces).configs) == 3
    with pytest.raises(ShoalValueError, match=r"configs\[3\]: Duplicate.*: same as configs\[1\]"):
        NodeHardwareConfig("Safe", [*pieces, {"node_rank": 0, "token": "b"}])
