"""Robots: their configurations, values from a node's variables, and the checks on the node."""

import sys
import threading
import types

import pytest

from shoal.errors import DependencyError, ShoalTimeoutError, ShoalValueError
from shoal.hardware import (
    DOSW1HWConfig,
    DOSW1HWInfo,
    DualFrankaConfig,
    DualFrankaHWInfo,
    FrankaConfig,
    FrankaHWInfo,
    GimArmConfig,
    GimArmHWInfo,
    Hardware,
    RobotAutoConfig,
    Turtle2Config,
    Turtle2HWInfo,
    configured_hardware,
)

VARIABLES = (
    "ROBOT_IP", "LEFT_ROBOT_IP", "RIGHT_ROBOT_IP", "CAMERA_SERIALS", "CAMERA_TYPE", "CAN_INTERFACE",
    "ROBOT_URL", "GRIPPER_CONNECTION", "DISABLE_VALIDATE", "CONTROLLER_NODE_RANK", "NODE_RANK",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class ICMPLibError(Exception):
    pass


@pytest.fixture
def network(add_module):
    """Fake icmplib; returns the set of addresses that answer a ping."""
    alive = set()

    def fake_ping(address, count, timeout):
        return types.SimpleNamespace(is_alive=address in alive)

    add_module("icmplib", ping=fake_ping, ICMPLibError=ICMPLibError)
    return alive


@pytest.fixture
def cameras(add_module):
    """Fake pyrealsense2 and pyzed; returns the list of their cameras' serial numbers."""
    serials = []

    def devices():
        return [types.SimpleNamespace(get_info=lambda _, s=s: s) for s in serials]

    context = types.SimpleNamespace(query_devices=devices)
    add_module(
        "pyrealsense2",
        camera_info=types.SimpleNamespace(serial_number="serial"),
        context=lambda: context,
    )
    add_module("pyzed")
    listed = staticmethod(lambda: [types.SimpleNamespace(serial_number=int(s)) for s in serials])
    add_module("pyzed.sl", Camera=type("Camera", (), {"get_device_list": listed}))
    return serials


def enumerate_robots(kind, node_rank, configs=None):
    return Hardware.policy_registry[kind].enumerate(node_rank, configs)


# --- configurations ---


INVALID = [
    (lambda: FrankaConfig("0"), "node_rank: expected a node rank"),
    (lambda: FrankaConfig(-1), "node_rank: expected a node rank"),
    (lambda: FrankaConfig(True), "node_rank: expected a node rank"),
    (lambda: FrankaConfig(0, "robot.local"), "robot_ip: 'robot.local' is not an IP address"),
    (lambda: FrankaConfig(0, 16), "robot_ip: 16 is not an IP address"),
    (lambda: FrankaConfig(0, None, "12"), "camera_serials: expected a list, not '12'"),
    (lambda: FrankaConfig(0, None, ["1", 1]), "camera_serials: the same entry twice"),
    (lambda: FrankaConfig(0, None, [None]), "camera_serials: expected texts, not None"),
    (lambda: FrankaConfig(0, None, [True]), "camera_serials: expected texts, not True"),
    (lambda: FrankaConfig(0, None, [""]), "camera_serials: expected texts, not ''"),
    # Every non-empty text is true, so this would turn off the checks of the robot.
    (lambda: FrankaConfig(0, disable_validate="no"), "disable_validate: expected true or false"),
    (lambda: DualFrankaConfig(0, disable_validate=0), "disable_validate: expected true or false"),
    (lambda: GimArmConfig(0, disable_validate=None), "disable_validate: expected true or false"),
    (lambda: GimArmConfig(0, enable_gripper="off"), "enable_gripper: expected true or false"),
    (lambda: GimArmConfig(0, gripper_type=5), "gripper_type: expected a text, not 5"),
    (lambda: FrankaConfig(0, gripper_connection=[]), "gripper_connection: expected a text, not"),
    (lambda: DualFrankaConfig(0, left_gripper_connection=1), "left_gripper_connection: expected"),
    (
        lambda: FrankaConfig(0, camera_type="realsens"),
        r"camera_type: 'realsens' is not supported; .*; did you mean 'realsense'\?",
    ),
    (lambda: FrankaConfig(0, gripper_type="claw"), "gripper_type: 'claw' is not supported"),
    (lambda: FrankaConfig(0, controller_node_rank="1"), "controller_node_rank: expected"),
    (lambda: DualFrankaConfig(0, right_robot_ip="x"), "right_robot_ip: 'x' is not an IP address"),
    (lambda: DualFrankaConfig(0, left_camera_type="x"), "left_camera_type: 'x' is not"),
    (lambda: GimArmConfig(0, arm_variant="gim"), "arm_variant: 'gim' is not supported"),
    (lambda: GimArmConfig(0, can_interface="../can0"), "can_interface: expected a network"),
    (lambda: DOSW1HWConfig(0, left_arm_port=0), "left_arm_port: expected a port"),
    (lambda: DOSW1HWConfig(0, robot_url=""), "robot_url: expected a host name"),
    (lambda: Turtle2Config(None), "node_rank: expected a node rank"),
]


@pytest.mark.parametrize(("make", "message"), INVALID)
def test_an_invalid_value_is_named_with_its_field(make, message):
    with pytest.raises(ShoalValueError, match=f"^{message}"):
        make()


def test_serial_numbers_become_texts_and_an_ipv6_address_is_an_address():
    config = FrankaConfig(0, "fe80::1", [1234, "a"])
    assert (config.robot_ip, config.camera_serials) == ("fe80::1", ["1234", "a"])


# --- values from a node's variables ---


def test_missing_values_are_taken_from_the_node():
    env = {"ROBOT_IP": " 10.0.0.1 ", "CAMERA_SERIALS": "a, b", "GRIPPER_CONNECTION": "/dev/tty 0 "}
    given = FrankaConfig(2, camera_type="zed")
    (made,) = RobotAutoConfig.resolve([given], environment={**env, "CAMERA_TYPE": "lumos"})
    assert made == FrankaConfig(
        2, "10.0.0.1", ["a", "b"], camera_type="zed", gripper_connection="/dev/tty 0"
    )
    assert given.robot_ip is None  # the argument is not changed


def test_each_of_several_robots_takes_one_value():
    env = {"ROBOT_IP": "10.0.0.1, 10.0.0.2", "CAMERA_SERIALS": "a,b"}
    made = RobotAutoConfig.resolve([FrankaConfig(0), FrankaConfig(0, "10.0.0.7")], environment=env)
    assert made == [FrankaConfig(0, "10.0.0.1", ["a"]), FrankaConfig(0, "10.0.0.7", ["b"])]


@pytest.mark.parametrize(
    ("text", "has"), [("10.0.0.1", "1 value"), ("10.0.0.1,10.0.0.2,10.0.0.3", "3 values")]
)
def test_several_robots_need_as_many_values(text, has):
    pair = [FrankaConfig(0), FrankaConfig(0, camera_serials=["1"])]
    message = f"^robot_ip: ROBOT_IP='{text}' has {has} for 2 robots; expected exactly one comma-sep"
    with pytest.raises(ShoalValueError, match=message):
        RobotAutoConfig.resolve(pair, environment={"ROBOT_IP": text})


def test_robots_without_a_configuration():
    env = {
        "ROBOT_IP": "10.0.0.1,10.0.0.2",
        "CAMERA_TYPE": "zed,lumos",
        "DISABLE_VALIDATE": "true,0",
        "CONTROLLER_NODE_RANK": "5,6",
        "NODE_RANK": "8,9",
    }
    made = RobotAutoConfig.resolve(None, FrankaConfig, 3, ["robot_ip"], environment=env)
    assert made == [
        FrankaConfig(3, "10.0.0.1", camera_type="zed", disable_validate=True),
        FrankaConfig(3, "10.0.0.2", camera_type="lumos"),
    ]


def test_variables_are_read_as_the_types_of_their_fields():
    env = {"ROBOT_URL": "robot", "LEFT_ARM_PORT": "6000"}
    made = RobotAutoConfig.resolve([], DOSW1HWConfig, 0, ["robot_url"], environment=env)
    assert made == [DOSW1HWConfig(0, "robot", 6000)]


@pytest.mark.parametrize(
    ("kind", "needed", "name", "text", "expected"),
    [
        (DOSW1HWConfig, "robot_url", "LEFT_ARM_PORT", "x", "expected a whole"),
        (GimArmConfig, "can_interface", "DISABLE_VALIDATE", "maybe", "expected true or false"),
        (GimArmConfig, "can_interface", "ENABLE_GRIPPER", "2", "expected true or false"),
    ],
)
def test_an_invalid_variable_is_named(kind, needed, name, text, expected):
    env = {needed.upper(): "can1", name: text}
    with pytest.raises(ShoalValueError, match=f"^{name.lower()}: {name}='{text}': {expected}"):
        RobotAutoConfig.resolve(None, kind, 0, [needed], environment=env)


def test_without_the_variable_there_is_no_robot():
    assert RobotAutoConfig.resolve([], FrankaConfig, 0, ["robot_ip"], environment={}) == []
    assert RobotAutoConfig.resolve([], Turtle2Config, 0, [], environment={"ROBOT_IP": "x"}) == []


@pytest.mark.parametrize(
    ("right", "message"),
    [(None, "RIGHT_ROBOT_IP is not set"), ("10.0.0.2,10.0.0.3", "RIGHT_ROBOT_IP has 2")],
)
def test_a_pair_of_arms_needs_both_variables(right, message):
    env = {"LEFT_ROBOT_IP": "10.0.0.1"} | ({} if right is None else {"RIGHT_ROBOT_IP": right})
    names = ["left_robot_ip", "right_robot_ip"]
    with pytest.raises(ShoalValueError, match=f"^left_robot_ip: LEFT_ROBOT_IP has 1, {message}"):
        RobotAutoConfig.resolve([], DualFrankaConfig, 0, names, environment=env)


# --- checks on the node ---


def test_an_arm_of_the_node_is_found(network, cameras):
    network.add("10.0.0.1")
    cameras += ["22", "11"]
    found = enumerate_robots(
        "Franka", 1, [FrankaConfig(0, "10.0.0.9"), FrankaConfig(1, "10.0.0.1")]
    )
    assert found.infos == [
        FrankaHWInfo("Franka", "Franka", FrankaConfig(1, "10.0.0.1", ["11", "22"]))
    ]


def test_an_arm_that_only_the_variables_describe(network, cameras, monkeypatch):
    network.add("10.0.0.1")
    cameras.append("11")
    monkeypatch.setenv("ROBOT_IP", "10.0.0.1")
    assert enumerate_robots("Franka", 4).infos[0].config == FrankaConfig(4, "10.0.0.1", ["11"])


def test_a_node_without_an_arm():
    assert enumerate_robots("Franka", 0, [FrankaConfig(1, "10.0.0.1")]) is None


def test_an_arm_that_does_not_answer(network, cameras):
    with pytest.raises(ConnectionError, match=r"^robot_ip: 10.0.0.1 does not answer"):
        enumerate_robots("Franka", 0, [FrankaConfig(0, "10.0.0.1")])


def test_an_arm_without_address(network):
    with pytest.raises(ShoalValueError, match=r"^robot_ip: not given; .* ROBOT_IP"):
        enumerate_robots("Franka", 0, [FrankaConfig(0)])


def test_pinging_needs_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "icmplib", None)
    with pytest.raises(ImportError, match=r"pip install icmplib.*disable_validate") as caught:
        enumerate_robots("Franka", 0, [FrankaConfig(0, "10.0.0.1")])
    assert isinstance(caught.value, DependencyError)


def test_a_missing_privilege_to_ping_is_a_warning(network, cameras, caplog):
    def refuse(*_args, **_kwargs):
        raise ICMPLibError("privileges are missing")

    sys.modules["icmplib"].ping = refuse
    cameras.append("11")
    assert enumerate_robots("Franka", 0, [FrankaConfig(0, "10.0.0.1")]).count == 1
    assert "10.0.0.1 was not pinged: ICMPLibError: privileges are missing" in caplog.text


def test_a_ping_that_hangs_is_given_up(network, timing):
    timing("hardware", pings_s=0.2)
    answer = threading.Event()
    sys.modules["icmplib"].ping = lambda *_, **__: answer.wait()
    with pytest.raises(ShoalTimeoutError, match=r"the ping of .* did not answer within 0\.2"):
        enumerate_robots("Franka", 0, [FrankaConfig(0, "10.0.0.1")])
    answer.set()


def test_disable_validate_skips_the_checks():
    config = FrankaConfig(0, disable_validate=True)
    assert enumerate_robots("Franka", 0, [config]).infos[0].config == config


@pytest.mark.parametrize("make", ["realsense", "zed"])
@pytest.mark.parametrize(
    ("there", "wanted", "message"),
    [
        ([], None, "no .* camera is connected"),
        (["11"], ["11", "12"], "camera 12 is not connected to the node, which has 11"),
    ],
)
def test_a_missing_camera_is_named(make, there, wanted, message, network, cameras):
    network.add("10.0.0.1")
    cameras += there
    config = FrankaConfig(0, "10.0.0.1", wanted, camera_type=make)
    with pytest.raises(ValueError, match=f"^camera_serials: .*{message}"):
        enumerate_robots("Franka", 0, [config])


@pytest.mark.parametrize("make", ["realsense", "zed"])
def test_a_subset_of_the_cameras_may_be_wanted(make, network, cameras):
    network.add("10.0.0.1")
    cameras += ["11", "12"]
    config = FrankaConfig(0, "10.0.0.1", ["12"], camera_type=make)
    assert enumerate_robots("Franka", 0, [config]).infos[0].config.camera_serials == ["12"]


@pytest.mark.parametrize(
    ("make", "module", "package"),
    [("realsense", "pyrealsense2", "pyrealsense2"), ("zed", "pyzed.sl", "ZED SDK")],
)
def test_a_missing_camera_library_is_named(make, module, package, network, cameras, monkeypatch):
    network.add("10.0.0.1")
    monkeypatch.setitem(sys.modules, module, None)
    config = FrankaConfig(0, "10.0.0.1", camera_type=make)
    with pytest.raises(ModuleNotFoundError, match=f"'{module}' on the node: install .*{package}"):
        enumerate_robots("Franka", 0, [config])


def test_cameras_of_other_types_are_not_checked(network, caplog):
    network.add("10.0.0.1")
    config = FrankaConfig(0, "10.0.0.1", ["9"], camera_type="lumos")
    assert enumerate_robots("Franka", 0, [config]).infos[0].config == config
    assert "cameras of the type lumos are not checked" in caplog.text


def test_a_pair_of_arms(network, cameras):
    network |= {"10.0.0.1", "10.0.0.2"}
    cameras += ["1", "2"]
    config = DualFrankaConfig(
        0, "10.0.0.1", "10.0.0.2", left_camera_serials=["1"], right_camera_type="zed"
    )
    found = enumerate_robots("DualFranka", 0, [config])
    assert found.infos == [DualFrankaHWInfo("DualFranka", "DualFranka", config)]
    network.remove("10.0.0.2")
    with pytest.raises(ConnectionError, match=r"^right_robot_ip: 10.0.0.2 does not answer"):
        enumerate_robots("DualFranka", 0, [config])
    network.add("10.0.0.2")
    beside = DualFrankaConfig(0, "10.0.0.1", "10.0.0.2", base_camera_serials=["7"])
    with pytest.raises(ValueError, match=r"^base_camera_serials: the realsense camera 7"):
        enumerate_robots("DualFranka", 0, [beside])


def test_a_missing_bus_is_a_warning(caplog):
    configs = [GimArmConfig(0, "lo"), GimArmConfig(0, "can7", "gim_arm")]
    found = enumerate_robots("GimArm", 0, configs)
    assert found.infos == [
        GimArmHWInfo("GimArm", "GimArm_gim_arm_xl", configs[0]),
        GimArmHWInfo("GimArm", "GimArm_gim_arm", configs[1]),
    ]
    assert "the network device can7 is not there" in caplog.text
    assert "device lo is" not in caplog.text


def test_robots_without_checks():
    assert enumerate_robots("Turtle2", 0, [Turtle2Config(0)]).infos == [
        Turtle2HWInfo("Turtle2", "Turtle2", Turtle2Config(0))
    ]
    config = DOSW1HWConfig(0, "robot.local")
    assert enumerate_robots("DOSW1", 0, [config]).infos == [DOSW1HWInfo("DOSW1", "DOSW1", config)]


def test_a_plan_does_not_ask_robots():
    configs = [FrankaConfig(0, "10.0.0.1"), GimArmConfig(0), FrankaConfig(1)]
    assert {r.type: r.count for r in configured_hardware(0, configs)} == {"Franka": 1, "GimArm": 1}
