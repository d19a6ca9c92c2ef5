"""The warnings of a plan about settings that are allowed but may be mistakes."""

import pytest

from shoal.planner import plan


def warnings_of(placement, inventory, num_nodes=1, **section):
    config = {"num_nodes": num_nodes, "component_placement": placement, **section}
    return list(plan(config, inventory).warnings)


def warnings_of_variables(*variables):
    """The warnings of a plan whose only node group sets variables."""
    envs = [{"node_ranks": 0, "env_vars": list(variables)}]
    groups = [{"label": "gpus", "node_ranks": 0, "env_configs": envs}]
    placement = {"actor": {"node_group": "gpus", "placement": "0"}}
    return warnings_of(placement, "1x1", node_groups=groups)


@pytest.mark.parametrize(
    ("placement", "inventory"),
    [
        ({"actor": "0-3", "rollout": "4-7"}, "8/64cpu"),
        ({"actor,critic": "0-7"}, "8/64cpu"),  # devices of one entry are shared on purpose
        ({"actor": "0-3:0-7"}, "4/64cpu"),  # and those of the processes of one component
    ],
)
def test_a_plan_without_warnings(placement, inventory):
    assert warnings_of(placement, inventory) == []


def test_devices_shared_by_different_entries():
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


def test_nodes_with_the_same_problem_share_a_warning():
    placement = {"agent": {"node_group": "node", "placement": "0-3:0-7"}}
    assert warnings_of(placement, "4x0/1cpu", num_nodes=4) == [
        "nodes 0-3: 2 processes and 1 CPU each; 1 process without a CPU"
    ]


def test_nodes_without_a_process():
    assert warnings_of({"actor": "0-7"}, "4x8", num_nodes=4) == ["no process runs on nodes 1-3"]


def test_nodes_that_the_job_does_not_use():
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
    (warning,) = warnings_of_variables(
        {"RANK": "7"}, {"CUDA_VISIBLE_DEVICES": "1"}, {"MINE": "x"}, {"MASTER_PORT": "1"}
    )
    assert warning == (
        "node group 'gpus' sets CUDA_VISIBLE_DEVICES, MASTER_PORT and RANK in env_vars, which "
        "launch sets itself: the group's value is not used"
    )
    # A variable that launch keeps, and one that launch sets to the same value.
    assert warnings_of_variables({"NCCL_CUMEM_ENABLE": "1"}, {"WORLD_SIZE": "1"}) == []


def test_hardware_of_an_unknown_type():
    (warning,) = warnings_of({"actor": "0"}, "1/gpu")
    assert warning.startswith("the inventory's hardware type 'gpu' is not registered, so no job")
    assert warnings_of({"actor": "0"}, "1/Franka") == []


def test_warnings_of_the_configuration_are_in_the_plan():
    (warning,) = warnings_of({"actor": "0"}, "1x1", num_node=3)
    assert "ignored unknown keys: 'num_node'" in warning
