"""The dataclasses of a configuration, constructed directly."""

import dataclasses
import ipaddress
import re
from typing import ClassVar

import pytest
import yaml

from shoal.config import (
    ClusterConfig,
    NodeGroupConfig,
    NodeGroupEnvConfig,
    dataclass_arg_check,
    load,
)
from shoal.errors import ClusterConfigError
from shoal.hardware import FrankaConfig, HardwareConfig, NodeHardwareConfig

ARM = {"robot_ip": "10.0.0.1", "node_rank": 0}


def section(**changes):
    return {"num_nodes": 4, "component_placement": {"actor": "0-3"}, **changes}


def robots(*configs, **changes):
    hardware = {"type": "Franka", "configs": list(configs)}
    group = {"label": "a800", "node_ranks": "0-1", "hardware": hardware, **changes}
    return section(node_groups=[group])


INVALID = [
    (lambda: NodeGroupConfig("cluster", [0]), "label: the label 'cluster' is reserved"),
    (lambda: NodeGroupConfig("a", []), "node_ranks: Error parsing node_ranks: there are"),
    (
        lambda: NodeGroupEnvConfig([0], [{}]),
        "NodeGroupEnvConfig: env_vars[0]: each entry must have",
    ),
    (lambda: NodeGroupEnvConfig([0], [{"A": 1}, {"A": 1}]), "env_vars[1]: the variable"),
    (
        lambda: NodeGroupConfig("a", [0], [NodeGroupEnvConfig([1])]),
        "node group 'a': env_configs[0].node_ranks: must be a subset",
    ),
    (
        lambda: NodeGroupConfig("a", [0], [{"node_ranks": 0, "env_vars": ["A"]}]),
        "node group 'a': env_configs[0].env_vars[0]: Each node env_var must be a dict",
    ),
    (
        lambda: NodeGroupConfig("a", [0], hardware={"type": "Arm", "configs": []}),
        "node group 'a': hardware.type: Unsupported hardware type 'Arm'",
    ),
    (
        lambda: NodeGroupConfig("a", [0], None, NodeHardwareConfig("Franka", []), None, True),
        "node group 'a': ignore_hardware: must not be set together",
    ),
    (lambda: ClusterConfig("1", []), "'num_nodes' must be a positive integer"),
    (
        lambda: ClusterConfig(1, [{"a": None}]),
        "cluster: component_placement[0].a: a placement must",
    ),
    (
        lambda: ClusterConfig(1, [], [NodeGroupConfig("a", [1])]),
        "cluster: node_groups[0].node_ranks",
    ),
    (lambda: ClusterConfig(1, [], [{"label": "a"}]), "cluster: node_groups[0]: Missing fields"),
    (lambda: NodeGroupConfig("a", 0, env_configs=3), "'a': env_configs: input should be a"),
    (lambda: NodeGroupConfig("a", 0, hardware=3), "'a': hardware: must be a mapping with"),
    (lambda: ClusterConfig(1, None), "cluster: component_placement: must be a mapping"),
    (lambda: ClusterConfig(1, [], 3), "cluster: node_groups: input should be a valid list"),
    (lambda: ClusterConfig(1, [], [3]), "cluster: node_groups[0]: Each node yaml config"),
    (lambda: ClusterConfig(1, [], None, 3), "cluster: profiling: must be a mapping with"),
    (
        lambda: ClusterConfig(1, [], None, {"backend": "x"}),
        "cluster: profiling.backend: Unknown prof",
    ),
]


class TestDirectConstruction:
    """Values that do not come from a configuration are checked by the same rules."""

    @pytest.mark.parametrize(("make", "message"), INVALID)
    def test_is_checked(self, make, message):
        with pytest.raises(ClusterConfigError, match=re.escape(message)) as caught:
            make()
        assert isinstance(caught.value, (ValueError, AssertionError))

    def test_mappings_are_read_as_in_a_configuration(self):
        config = robots(ARM, env_configs=[{"node_ranks": 1, "env_vars": [{"A": True}]}])
        made = ClusterConfig(**config, profiling={"backend": "nsight"})
        assert made == load({**config, "profiling": {"backend": "nsight"}})
        assert made.node_groups == [
            NodeGroupConfig(
                "a800",
                [0, 1],
                [NodeGroupEnvConfig([1], [{"A": "True"}])],
                NodeHardwareConfig("Franka", [FrankaConfig(0, "10.0.0.1")]),
            )
        ]
        (made_group,) = made.node_groups
        assert NodeGroupConfig(**config["node_groups"][0]) == made_group
        assert made_group.hardware_type == "Franka"
        assert dataclasses.replace(made_group) == made_group
        assert load({**config, "node_groups": made.node_groups}).node_groups == made.node_groups

    def test_containers_of_omegaconf_become_plain(self):
        create = pytest.importorskip("omegaconf").OmegaConf.create
        config = robots(
            {**ARM, "camera_serials": ["1"]},
            env_configs=[{"node_ranks": 1, "env_vars": [{"A": 1}]}],
        )
        (plain,) = config["node_groups"]
        values = {
            name: create(v) if isinstance(v, (dict, list)) else v for name, v in plain.items()
        }
        assert NodeGroupConfig(**values) == NodeGroupConfig(**plain)
        made = ClusterConfig(
            4, create([{"a": {"node_group": ["a800"], "placement": 0}}]), create([plain])
        )
        assert made.component_placement == [{"a": {"node_group": ["a800"], "placement": 0}}]
        assert type(made.component_placement[0]["a"]["node_group"]) is list
        assert made.node_groups == [NodeGroupConfig(**plain)]

    def test_dataclasses_can_be_derived_from(self):
        @dataclasses.dataclass
        class Mine(NodeGroupConfig):
            rack: str = "a1"

        made = Mine("a", "0-1", [{"node_ranks": 0}], rack="b2")
        assert (made.node_ranks, made.rack) == ([0, 1], "b2")
        assert made.env_configs == [NodeGroupEnvConfig([0])]
        with pytest.raises(ClusterConfigError, match="reserved"):
            Mine("node", [0])


@dataclasses.dataclass
class Made:
    node_rank: int
    name: str = "a"
    made: int = dataclasses.field(default=0, init=False)


def test_arguments_of_a_dataclass_are_compared_with_its_fields():
    assert dataclass_arg_check(Made, {"node_rank": 1}) == ([], set(), {"node_rank"})
    given = {"node_rank": 1, "x": 2}
    assert dataclass_arg_check(Made, given, no_check_unknown=True) == ([], {"x"}, {"node_rank"})
    with pytest.raises(AssertionError) as caught:
        dataclass_arg_check(Made, {"nam": 1, "made": 2}, error_suffix=" in here")
    assert str(caught.value) == (
        "Made: Missing fields '['node_rank']' detected in here; Unknown fields '{'made', 'nam'}' "
        "detected in here; did you mean 'name'?"
    )


class TestHardwareOfAUser:
    @pytest.fixture(autouse=True)
    def kind(self, registries):
        @NodeHardwareConfig.register_hardware_config("Drone")
        @dataclasses.dataclass
        class DroneConfig(HardwareConfig):
            LIMIT: ClassVar[int] = 4
            rotors: int = 4
            camera_node_rank: int | None = None

            def __post_init__(self):
                super().__post_init__()
                if self.rotors > self.LIMIT:
                    raise ValueError("rotors: too many")
                if not self.rotors:
                    raise AssertionError("none at all")

        return DroneConfig

    def drones(self, *configs):
        hardware = {"type": "Drone", "configs": list(configs)}
        return section(node_groups=[{"label": "d", "node_ranks": "all", "hardware": hardware}])

    def test_is_read_like_that_of_shoal(self, kind):
        config = load(self.drones({"node_rank": 1, "rotors": 3}))
        assert config.node_groups[0].hardware.configs == [kind(1, 3)]
        assert config.node_groups[0].hardware_type == "Drone"
        group = {"label": "d", "node_ranks": 0, "hardware_type": "Drone"}
        assert load(section(node_groups=[group]))

    def test_all_its_problems_are_named(self):
        wrong = [
            {"node_rank": 0, **rotors}
            for rotors in ({"rotors": 5}, {"rotors": 0}, {"rotor": 3}, {"rotors": "x"})
        ]
        with pytest.raises(ClusterConfigError) as caught:
            load(self.drones(*wrong))
        path = "cluster.node_groups[0].hardware.configs"
        assert [line.replace(path, "") for line in caught.value.problems] == [
            "[0].rotors: too many",
            "[1]: none at all",
            "[2].rotor: Unknown fields '{'rotor'}' detected; did you mean 'rotors'?",
            "[3]: '>' not supported between instances of 'str' and 'int'",
        ]

    def test_nodes_that_it_names_have_to_exist(self):
        with pytest.raises(ClusterConfigError, match="camera_node_rank: node 7 does not exist"):
            load(self.drones({"node_rank": 0, "camera_node_rank": 7}))


def test_str_is_yaml_with_hardware_and_profiling_and_without_the_placement():
    config = load({**robots(ARM), "profiling": {"backend": "nsight", "worker_groups": "all"}})
    data = yaml.safe_load(str(config))
    assert "component_placement" not in data
    assert data["node_groups"][0]["hardware"]["configs"][0]["robot_ip"] == "10.0.0.1"
    assert data["profiling"]["worker_groups"] == ["all"]
    config.node_groups[0].hardware.configs[0].robot_ip = ipaddress.ip_address("10.0.0.3")
    assert "robot_ip: 10.0.0.3" in str(config)
