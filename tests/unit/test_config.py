"""Reading and checking the `cluster` section."""

import pickle
import subprocess
import sys

import pytest

from shoal.config import ClusterConfig, NodeGroupConfig, NodeGroupEnvConfig, load
from shoal.errors import ClusterConfigError

GROUP = {"label": "a800", "node_ranks": "0-1"}


def section(**changes):
    return {"num_nodes": 4, "component_placement": {"actor": "0-3"}, **changes}


def group(**changes):
    return section(node_groups=[{**GROUP, **changes}])


def problems(config):
    with pytest.raises(ClusterConfigError) as caught:
        load(config)
    assert all(f"  {problem}" in str(caught.value) for problem in caught.value.problems)
    return list(caught.value.problems)


def test_load_makes_dataclasses():
    config = load(
        section(
            node_groups=[
                {
                    "label": 4090,
                    "node_ranks": [2, "0-1"],
                    "env_configs": [
                        {
                            "node_ranks": 0,
                            "env_vars": [{"A": True}, {"B": 1}, {"C": None}],
                            "python_interpreter_path": "/opt/python",
                        },
                        {"node_ranks": "1-2", "env_vars": [{"A": "other"}]},
                    ],
                },
                {"label": "rest", "node_ranks": "all", "ignore_hardware": True},
            ]
        )
    )
    envs = [
        NodeGroupEnvConfig([0], [{"A": "True"}, {"B": "1"}, {"C": ""}], "/opt/python"),
        NodeGroupEnvConfig([1, 2], [{"A": "other"}]),
    ]
    assert config == ClusterConfig(
        4,
        [{"actor": "0-3"}],
        [
            NodeGroupConfig("4090", [0, 1, 2], envs),
            NodeGroupConfig("rest", [0, 1, 2, 3], ignore_hardware=True),
        ],
    )
    assert config.get_node_labels_by_rank(1) == ["4090", "rest"]
    assert config.get_node_labels_by_rank(3) == ["rest"]
    assert config.get_node_python_interpreter_path_by_rank(0) == ["/opt/python"]
    assert config.get_node_python_interpreter_path_by_rank(1) == []
    assert pickle.loads(pickle.dumps(config)) == config
    assert load(config) is config


def test_whole_document_and_section_are_told_apart():
    whole = {"cluster": section(), "train": {"lr": 0.1}}
    assert load(whole) == load(section()) == ClusterConfig.from_dict_cfg(whole)


def test_placement_may_be_a_list_or_a_mapping():
    assert load(section(component_placement=[{"a": 0}, {"b": "1"}])).component_placement == [
        {"a": 0},
        {"b": "1"},
    ]
    assert load(section(component_placement={"a": 0, "b": "1"})).component_placement == [
        {"a": 0},
        {"b": "1"},
    ]


def test_str_is_yaml_without_the_placement():
    text = str(load(group()))
    assert "num_nodes: 4" in text
    assert "label: a800" in text
    assert "actor" not in text


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (section(num_nodes="2"), "cluster.num_nodes: 'num_nodes' must be a positive integer"),
        (section(num_nodes=0), "cluster.num_nodes: 'num_nodes' must be a positive integer"),
        (section(num_nodes=True), "cluster.num_nodes: 'num_nodes' must be a positive integer"),
        ({"num_nodes": 1}, "cluster: Missing fields '['component_placement']' detected"),
        (section(component_placement="0"), "cluster.component_placement: must be a mapping of"),
        (section(component_placement=["a"]), "cluster.component_placement: each entry must be a"),
        (section(profiling={}), "cluster.profiling: is not supported by this version of shoal"),
        (section(node_groups={}), "cluster.node_groups: input should be a valid list, not {}"),
        (section(node_groups=[3]), "cluster.node_groups[0]: Each node yaml config must be a dict"),
        (
            section(node_groups=[{"label": "a"}]),
            "cluster.node_groups[0]: Missing fields '['node_ranks']' detected",
        ),
        (
            group(node_rank=0),
            "cluster.node_groups[0]: Unknown fields '{'node_rank'}' detected; did you mean "
            "'node_ranks'?",
        ),
        (group(label="node"), "cluster.node_groups[0].label: the label 'node' is reserved"),
        (group(label="a,b"), "cluster.node_groups[0].label: a label must not be empty or"),
        (group(label=None), "cluster.node_groups[0].label: a label must be a text, not None"),
        (
            section(node_groups=[GROUP, GROUP]),
            "cluster.node_groups[1].label: the label 'a800' is duplicated",
        ),
        (
            group(node_ranks="0-"),
            "cluster.node_groups[0].node_ranks: Error parsing node_ranks: Invalid rank format '0-'",
        ),
        (
            group(node_ranks="3-4"),
            "cluster.node_groups[0].node_ranks: Error parsing node_ranks: node rank 4 does not "
            "exist; expected node ranks among 0-3",
        ),
        (group(node_ranks=""), "cluster.node_groups[0].node_ranks: Error parsing node_ranks: ther"),
        (
            group(hardware={"type": "Arm"}),
            "cluster.node_groups[0].hardware: is not supported by this version of shoal",
        ),
        (
            group(ignore_hardware="yes"),
            "cluster.node_groups[0].ignore_hardware: input should be a valid boolean, not 'yes'",
        ),
        (
            group(env_configs=[0]),
            "cluster.node_groups[0].env_configs[0]: Each node yaml config must be a dictionary",
        ),
        (
            group(env_configs=[{"node_ranks": 0, "env_var": []}]),
            "cluster.node_groups[0].env_configs[0]: Unknown fields '{'env_var'}' detected; did "
            "you mean 'env_vars'?",
        ),
        (
            group(env_configs=[{"node_ranks": "1-2"}]),
            "cluster.node_groups[0].env_configs[0].node_ranks: must be a subset of the group's "
            "node_ranks; [2] are not in it",
        ),
        (
            group(env_configs=[{"node_ranks": "0-1"}, {"node_ranks": 1}]),
            "cluster.node_groups[0].env_configs[1].node_ranks: the node ranks [1] are duplicated",
        ),
        (
            group(env_configs=[{"node_ranks": 0, "env_vars": {"A": 1}}]),
            "cluster.node_groups[0].env_configs[0].env_vars: must be a list of one-key dict",
        ),
        (
            group(env_configs=[{"node_ranks": 0, "env_vars": ["A=1"]}]),
            "cluster.node_groups[0].env_configs[0].env_vars: Each node env_var must be a dict",
        ),
        (
            group(env_configs=[{"node_ranks": 0, "env_vars": [{"A": 1, "B": 2}]}]),
            "cluster.node_groups[0].env_configs[0].env_vars: each entry must have exactly one "
            "key-value pair",
        ),
        (
            group(env_configs=[{"node_ranks": 0, "env_vars": [{"A": 1}, {"A": 2}]}]),
            "cluster.node_groups[0].env_configs[0].env_vars: the variable 'A' is duplicated",
        ),
        (
            group(env_configs=[{"node_ranks": 0, "env_vars": [{"A": [1]}]}]),
            "cluster.node_groups[0].env_configs[0].env_vars: the value of 'A' must be a text",
        ),
        (
            group(env_configs=[{"node_ranks": 0, "python_interpreter_path": 3}]),
            "cluster.node_groups[0].env_configs[0].python_interpreter_path: input should be a "
            "valid string, not 3",
        ),
    ],
)
def test_problem_is_named_with_its_path(config, expected):
    (problem,) = problems(config)
    assert problem.startswith(expected)


def test_one_variable_may_differ_between_the_nodes_of_a_group():
    envs = [{"node_ranks": rank, "env_vars": [{"IF": f"eth{rank}"}]} for rank in (0, 1)]
    config = load(group(env_configs=envs))
    assert [env.env_vars for env in config.node_groups[0].env_configs] == [
        [{"IF": "eth0"}],
        [{"IF": "eth1"}],
    ]


def test_all_problems_come_at_once():
    found = problems(
        {
            "num_nodes": -1,
            "node_groups": [
                {"lable": "a", "node_ranks": "x"},
                {"label": "cluster", "node_ranks": 0, "env_configs": [{"node_ranks": 0, "x": 1}]},
            ],
        }
    )
    paths = [problem.split(": ")[0] for problem in found]
    assert paths == [
        "cluster.num_nodes",
        "cluster",
        "cluster.node_groups[0].node_ranks",
        "cluster.node_groups[0]",
        "cluster.node_groups[0]",
        "cluster.node_groups[1].label",
        "cluster.node_groups[1].env_configs[0]",
    ]


def test_unknown_keys_of_the_section_are_ignored_with_one_warning():
    with pytest.warns(UserWarning, match="'num_node'; did you mean 'num_nodes'.*'tracer'") as seen:
        config = load(section(num_node=3, tracer={}))
    assert len(seen) == 1
    assert config.num_nodes == 4


def test_hardware_and_profiling_cannot_be_given_unseen():
    with pytest.raises(ClusterConfigError, match="hardware"):
        NodeGroupConfig("a", [0], None, {"type": "Arm"})
    with pytest.raises(ClusterConfigError, match="profiling"):
        ClusterConfig(1, [], None, {"backend": "nsys"})


def test_import_needs_neither_ray_nor_torch_nor_pydantic():
    code = (
        "import sys, shoal.config, shoal.placement; "
        "print(sorted({'ray', 'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
