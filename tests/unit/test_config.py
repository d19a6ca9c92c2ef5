"""Reading and checking the `cluster` section of a configuration, with the documented examples."""

import pickle
from pathlib import Path

import pytest
import yaml

from shoal.config import ClusterConfig, NodeGroupConfig, NodeGroupEnvConfig, load
from shoal.errors import ClusterConfigError
from support.documents import blocks, page

EXAMPLES = Path(__file__).parents[1] / "vectors" / "examples"
GROUP = {"label": "a800", "node_ranks": "0-1"}


def section(**changes):
    return {"num_nodes": 4, "component_placement": {"actor": "0-3"}, **changes}


def group(**changes):
    return section(node_groups=[{**GROUP, **changes}])


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


def test_a_whole_document_or_its_section_is_read():
    whole = {"cluster": section(), "train": {"lr": 0.1}}
    assert load(whole) == load(section()) == ClusterConfig.from_dict_cfg(whole)


def test_placement_may_be_a_list_or_a_mapping():
    for placement in ([{"a": 0}, {"b": "1"}], {"a": 0, "b": "1"}):
        config = load(section(component_placement=placement))
        assert config.component_placement == [{"a": 0}, {"b": "1"}]


@pytest.mark.parametrize("ranks", ["all", " ALL", ["all"], "0,all", [0, "all"]])
def test_all_means_the_nodes_of_the_group_within_it(ranks):
    config = load(group(env_configs=[{"node_ranks": ranks, "env_vars": [{"A": 1}]}]))
    assert config.node_groups[0].env_configs == [NodeGroupEnvConfig([0, 1], [{"A": "1"}])]


@pytest.mark.parametrize("name", ["eighteen_nodes", "node_groups_completed", "short_form"])
def test_documented_example_is_valid_from_every_source(name):
    path = EXAMPLES / f"{name}.yaml"
    config = load(path)
    document = yaml.safe_load(path.read_text().replace("node_group: 4090", "node_group: '4090'"))
    assert load(document) == config
    assert load(pytest.importorskip("omegaconf").OmegaConf.create(document)) == config


def test_documented_example_with_robots():
    config = load(EXAMPLES / "eighteen_nodes.yaml")
    assert [group.label for group in config.node_groups] == ["a800", "4090", "franka"]
    assert [group.hardware_type for group in config.node_groups] == [None, None, "Franka"]
    (arm,) = config.get_node_hw_configs_by_rank(17)
    assert (arm.robot_ip, arm.camera_serials) == ("10.10.10.2", ["322142001232", "322142001233"])
    assert config.get_node_hw_configs_by_rank(0) == []
    assert load(section()).get_node_hw_configs_by_rank(0) == []


def test_documented_example_without_its_groups_is_left_to_the_placement():
    """Unknown groups are not an error here: the cluster may have more groups than the file."""
    config = load(EXAMPLES / "node_groups_as_printed.yaml")
    assert (config.num_nodes, config.node_groups) == (2, None)


def test_unknown_keys_of_the_section_are_ignored_with_one_warning_at_the_caller():
    text = "ignored unknown keys: 'num_node'; did you mean 'num_nodes'.*'logs'"
    with pytest.warns(UserWarning, match=text) as seen:
        config = load(section(num_node=3, logs={}))
    assert [warning.filename for warning in seen] == [__file__]
    assert config.num_nodes == 4


def test_a_misspelt_required_key_is_in_the_error_with_its_place(tmp_path, recwarn):
    path = tmp_path / "job.yaml"
    path.write_text("num_nodes: 1\ncomponent_placment: {a: 0}\nlogs: {}\n")
    with pytest.raises(ClusterConfigError) as error:
        load(path)
    assert error.value.problems[0] == (
        f"cluster.component_placment ({path}:2:1): unknown key 'component_placment'; "
        "did you mean 'component_placement'?"
    )
    assert error.value.problems[1].endswith("Missing fields '['component_placement']' detected")
    assert [str(w.message) for w in recwarn] == [f"{path}: cluster: ignored unknown keys: 'logs'"]


def test_the_import_loads_neither_ray_nor_torch_nor_pydantic(run_python):
    code = (
        "import sys, shoal.config, shoal.placement; "
        "print(sorted({'ray', 'torch', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    assert run_python("-W", "ignore", "-c", code) == "[]\n"


def test_the_documented_configuration_is_read(tmp_path):
    (block,) = blocks(page("docs/configuration.md"), "yaml")
    path = tmp_path / "job.yaml"
    path.write_text(block)
    config = load(path)
    assert [group.label for group in config.node_groups] == ["a800", "old", "arms"]
    labels = [config.get_node_labels_by_rank(rank) for rank in range(4)]
    assert labels == [["a800"], ["a800"], ["old"], ["arms"]]
    assert config.profiling.profiles_worker_group("Actor")
    assert len(config.get_node_hw_configs_by_rank(3)) == 2
