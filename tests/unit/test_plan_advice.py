"""The warnings of a plan about settings that are allowed but may be mistakes."""

import pytest

from shoal.planner import plan


def warnings_of(placement, inventory, num_nodes=1, **section):
    config = {"num_nodes": num_nodes, "component_placement": placement, **section}
    return list(plan(config, inventory).warnings)


def test_a_plan_that_uses_everything_once_has_none():
    assert warnings_of({"actor": "0-3", "rollout": "4-7"}, "8/64cpu") == []


def test_devices_of_one_entry_are_shared_on_purpose():
    assert warnings_of({"actor,critic": "0-7"}, "8/64cpu") == []


def test_processes_of_one_component_may_share():
    assert warnings_of({"actor": "0-3:0-7"}, "4/64cpu") == []


def test_devices_of_different_entries_are_not():
    assert warnings_of({"actor,critic": "0-15", "rollout": "6-9"}, "2x8/64cpu", num_nodes=2) == [
        "actor, critic and rollout share 4 devices on nodes 0-1, placed by different entries; "
        'components of one entry ("actor,critic,rollout: …") say that they mean to'
    ]


@pytest.mark.parametrize(
    ("inventory", "expected"),
    [
        ("1x0/4cpu", ["node 0: 9 processes and 4 CPUs; 5 processes without a CPU"]),
        ("1x0/8cpu", ["node 0: 9 processes and 8 CPUs; 1 process without a CPU"]),
        ("1x0/9cpu", []),
        ("1x0", []),  # their number is unknown
    ],
)
def test_processes_without_a_cpu(inventory, expected):
    placement = {"agent": {"node_group": "node", "placement": "0:0-8"}}
    assert warnings_of(placement, inventory) == expected


def test_like_nodes_are_told_once():
    placement = {"agent": {"node_group": "node", "placement": "0-3:0-7"}}
    assert warnings_of(placement, "4x0/1cpu", num_nodes=4) == [
        "nodes 0-3: 2 processes and 1 CPU each; 1 process without a CPU"
    ]


def test_nodes_without_a_process():
    assert warnings_of({"actor": "0-7"}, "4x8", num_nodes=4) == ["no process runs on nodes 1-3"]


def test_nodes_that_the_job_does_not_want():
    assert warnings_of({"actor": "0-7"}, "3x8") == [
        "the inventory has 3 nodes and num_nodes is 1: nodes 1-2 stay unused"
    ]
    assert warnings_of({"actor": "0-7"}, "2x8") == [
        "the inventory has 2 nodes and num_nodes is 1: node 1 stays unused"
    ]


def test_accelerators_that_a_group_ignores():
    groups = [{"label": "plain", "node_ranks": "0-1", "ignore_hardware": True}]
    placement = {"agent": {"node_group": "plain", "placement": "0-1"}}
    assert warnings_of(placement, "2x8", num_nodes=2, node_groups=groups) == [
        "node group 'plain' ignores the 16 accelerators of its nodes (ignore_hardware)"
    ]
    unused = {"actor": "0-15"}
    assert warnings_of(unused, "2x8", num_nodes=2, node_groups=groups) == []


def test_variables_that_launch_sets_itself():
    variables = [{"RANK": "7"}, {"CUDA_VISIBLE_DEVICES": "1"}, {"MINE": "x"}, {"MASTER_PORT": "1"}]
    groups = [
        {
            "label": "gpus",
            "node_ranks": 0,
            "env_configs": [{"node_ranks": 0, "env_vars": variables}],
        }
    ]
    placement = {"actor": {"node_group": "gpus", "placement": "0"}}
    (warning,) = warnings_of(placement, "1x1", node_groups=groups)
    assert warning == (
        "node group 'gpus' sets CUDA_VISIBLE_DEVICES, MASTER_PORT and RANK in env_vars, which "
        "launch sets itself: the group's value is not used"
    )


def test_variables_that_launch_keeps_or_sets_alike_are_no_matter():
    variables = [{"NCCL_CUMEM_ENABLE": "1"}, {"WORLD_SIZE": "1"}]
    groups = [
        {
            "label": "gpus",
            "node_ranks": 0,
            "env_configs": [{"node_ranks": 0, "env_vars": variables}],
        }
    ]
    placement = {"actor": {"node_group": "gpus", "placement": "0"}}
    assert warnings_of(placement, "1x1", node_groups=groups) == []


def test_hardware_that_nothing_can_ask_for():
    (warning,) = warnings_of({"actor": "0"}, "1/gpu")
    assert warning.startswith("the inventory's hardware type 'gpu' is not registered, so no job")
    assert warnings_of({"actor": "0"}, "1/Franka") == []


def test_what_reading_the_configuration_warns_of_is_in_the_plan():
    (warning,) = warnings_of({"actor": "0"}, "1x1", num_node=3)
    assert "num_node" in warning
    assert "ignored" in warning
