"""Nodes and node groups: their counts, translation of ranks, and errors for wrong ranks."""

import pytest

from shoal import NodeGroupInfo, NodeInfo
from shoal.config import ClusterConfig, NodeGroupConfig, NodeGroupEnvConfig
from shoal.errors import ClusterConfigError, ClusterError, PlacementIndexError, ShoalValueError
from shoal.hardware import (
    ACCELERATOR_HW_TYPE,
    FrankaConfig,
    FrankaHWInfo,
    HardwareInfo,
    HardwareResource,
    NodeHardwareConfig,
)
from shoal.node_probe.ask import _questions
from shoal.topology import DescribedCluster, build_groups


def node(rank, accelerators=0, names=()):
    info = HardwareInfo(ACCELERATOR_HW_TYPE, "NV_GPU:H200")
    resources = [HardwareResource(ACCELERATOR_HW_TYPE, [info] * accelerators, list(names))]
    return NodeInfo(
        [], rank, f"id{rank}", f"10.0.0.{rank}", 8, hardware_resources=resources[: accelerators > 0]
    )


def config(*groups, num_nodes=3):
    return ClusterConfig(num_nodes=num_nodes, component_placement=[], node_groups=list(groups))


def test_nodes_with_and_without_accelerators():
    plain = node(0)
    assert (plain.num_accelerators, plain.num_gpus) == (0, 0)
    assert (plain.accelerator_type, plain.accelerator_model) == ("NO_ACCEL", "")
    assert plain.device_names() == []
    assert plain.get_hw_resource_count(None) == 0
    full = node(0, 2, ["GPU-a", "GPU-b"])
    assert (full.num_accelerators, full.accelerator_type) == (2, "NV_GPU")
    assert full.accelerator_model == "NV_GPU:H200"
    assert full.device_names() == ["GPU-a", "GPU-b"]
    assert full.get_hw_resource_count("Robot") == 0


def test_a_group_counts_accelerators_over_its_nodes():
    group = NodeGroupInfo("a", [node(1, 2), node(3, 3)])
    assert group.node_ranks == [1, 3]
    assert group.hardware_type == ACCELERATOR_HW_TYPE
    assert group.hardware_resource_count == 5
    assert group.local_hardware_ranks == [[0, 1], [2, 3, 4]]
    assert group.get_node_by_hardware_rank(3).node_rank == 3
    assert group.get_local_hardware_rank(3) == 1
    assert group.get_node_by_hardware_rank(5) is None
    assert group.get_local_hardware_rank(5) == -1


@pytest.mark.parametrize(("label", "accelerators"), [("cpu", 0), ("node", 4), ("bare", 4)])
def test_each_node_is_one_resource_if_hardware_does_not_count(label, accelerators):
    nodes = [node(0, accelerators), node(1, accelerators)]
    entry = NodeGroupConfig("bare", [0, 1], ignore_hardware=True)
    group = {"cpu": NodeGroupInfo("cpu", nodes), **build_groups(nodes, config(entry))}[label]
    assert (group.hardware_type, group.local_hardware_ranks) == (None, [[0], [1]])
    assert group.get_hardware_infos(1) == []


def test_ranks_within_a_group_are_nodes_of_the_cluster():
    group = NodeGroupInfo("a", [node(2), node(5)])
    assert group.group_ranks_to_global_ranks([1, 0]) == [5, 2]
    for wrong in (2, -1):
        with pytest.raises(PlacementIndexError, match=f"'a' has 2 nodes; there is no node {wrong}"):
            group.group_ranks_to_global_ranks([0, wrong])


def test_groups_of_a_configuration_come_with_cluster_and_node():
    nodes = [node(0), node(1), node(2)]
    entry = NodeGroupConfig(label="robots", node_ranks=[2, 1])
    groups = build_groups(nodes, config(entry))
    assert list(groups) == ["robots", "cluster", "node"]
    assert groups["robots"].node_ranks == [1, 2]
    assert groups["cluster"].node_ranks == [0, 1, 2]
    assert nodes[1].node_labels == ["robots", "cluster", "node"]
    assert nodes[0].node_labels == ["cluster", "node"]


def test_a_group_that_names_missing_nodes_is_an_error():
    entry = NodeGroupConfig(label="robots", node_ranks=[1, 3])
    with pytest.raises(ClusterError, match=r"'robots' names the nodes \[3\].*nodes 0 to 1"):
        build_groups([node(0), node(1)], config(entry, num_nodes=4))


def test_variables_differ_by_node_within_a_group():
    entry = NodeGroupConfig(
        label="a",
        node_ranks=[0, 1],
        env_configs=[
            NodeGroupEnvConfig(node_ranks=[0], env_vars=[{"X": "0"}, {"Y": "1"}]),
            NodeGroupEnvConfig(node_ranks=[1], env_vars=[{"X": "2"}]),
        ],
    )
    nodes = [node(0), node(1)]
    group = build_groups(nodes, config(entry))["a"]
    assert group.get_node_env_vars(0) == {"X": "0", "Y": "1"}
    assert group.get_node_env_vars(1) == {"X": "2"}
    assert nodes[1].env_vars == {"X": "2"}


def test_two_interpreters_of_a_node_are_an_error():
    one = NodeGroupEnvConfig(node_ranks=[0, 1], python_interpreter_path="/a/python")
    other = NodeGroupEnvConfig(node_ranks=[1], python_interpreter_path="/b/python")
    group = NodeGroupInfo("a", [node(0), node(1), node(2)], env_configs=[one, other])
    assert group.get_node_python_interpreter_path(0) == "/a/python"
    assert group.get_node_python_interpreter_path(2) is None
    with pytest.raises(ClusterConfigError, match=r"several interpreters on node 1: /a.*, /b"):
        group.get_node_python_interpreter_path(1)


def robots(rank, count, accelerators=0):
    made = node(rank, accelerators)
    infos = [
        FrankaHWInfo("Franka", "Franka", FrankaConfig(rank, f"10.0.{rank}.{i}"))
        for i in range(count)
    ]
    made.hardware_resources.append(HardwareResource("Franka", infos))
    return made


def test_a_node_without_accelerators_in_a_group_that_has_some_counts_nothing():
    group = NodeGroupInfo("mixed", [node(0), node(1, 2), node(2)])
    assert group.hardware_type == ACCELERATOR_HW_TYPE
    assert group.local_hardware_ranks == [[], [0, 1], []]
    assert group.get_node_by_hardware_rank(0).node_rank == 1
    assert group.get_hardware_infos(0) == []


def test_a_group_of_robots_does_not_count_accelerators():
    nodes = [node(0, 8), robots(1, 1, accelerators=4), robots(2, 2)]
    arms = [FrankaConfig(rank, f"10.0.{rank}.{i}") for rank, i in ((1, 0), (2, 0), (2, 1))]
    hardware = NodeHardwareConfig("Franka", arms)
    entry = NodeGroupConfig(label="arms", node_ranks=[1, 2], hardware=hardware)
    groups = build_groups(nodes, config(entry))
    arms = groups["arms"]
    assert (arms.hardware_type, arms.local_hardware_ranks) == ("Franka", [[0], [1, 2]])
    assert [info.config.robot_ip for info in arms.get_hardware_infos(2)] == ["10.0.2.0", "10.0.2.1"]
    with pytest.raises(PlacementIndexError, match=r"'arms' has no node 0; it has \[1, 2\]"):
        arms.get_hardware_infos(0)
    # In the group of all nodes, the same nodes count their accelerators.
    assert groups["cluster"].local_hardware_ranks == [list(range(8)), [8, 9, 10, 11], []]


def test_a_group_of_a_named_kind():
    entry = NodeGroupConfig(label="arms", node_ranks=[0, 1], hardware_type="Franka")
    group = build_groups([robots(0, 0, 8), robots(1, 1)], config(entry))["arms"]
    assert group.local_hardware_ranks == [[], [0]]


def test_a_printed_node_shows_no_variable():
    made = robots(1, 1, accelerators=2)
    made.env_vars = made.default_env_vars = {"TOKEN": "secret"}
    text = str(made)
    assert "NV_GPU:H200" in text
    assert "Franka" in text
    assert "secret" not in text


def test_egl_indices_belong_to_accelerators():
    assert robots(0, 1).egl_ids() == []
    made = node(0, 2)
    made.hardware_resources[0].egl_ids = [1, 0]
    assert made.egl_ids() == [1, 0]


class NoSearch(list):
    """Ranks that allow iteration but not a search for each node."""

    def __contains__(self, rank):
        raise AssertionError("searching here for each node takes the square of their number")


def test_the_settings_of_a_node_are_found_without_a_search():
    env = NodeGroupEnvConfig([0, 1], [{"X": "1"}], "/opt/python")
    env.node_ranks = NoSearch(env.node_ranks)
    entry = NodeGroupConfig(label="a", node_ranks=[0, 1], env_configs=[env])
    entry.node_ranks = NoSearch(entry.node_ranks)
    wanted = config(entry, num_nodes=2)
    nodes = [node(0), node(1)]
    group = build_groups(nodes, wanted)["a"]
    assert group.get_node_python_interpreter_path(1) == "/opt/python"
    assert nodes[1].env_vars == {"X": "1"}
    questions = _questions(2, wanted)
    assert [question.interpreters for question in questions] == [("/opt/python",)] * 2


@pytest.mark.parametrize("wrong", [2, -1, "0", None, 1.0])
def test_a_cluster_and_its_missing_nodes(wrong):
    nodes = [node(0, 2), node(1, 1)]
    cluster = DescribedCluster(nodes, build_groups(nodes, None))
    assert (cluster.num_nodes, cluster.num_accelerators) == (2, 3)
    assert cluster.accelerator_ranks == [[0, 1], [2]]
    assert (cluster.get_node_ip(-1), cluster.get_node_info(1)) == ("10.0.0.1", nodes[1])
    assert cluster.get_node_group(None).label == "cluster"
    assert cluster.get_node_group("robots") is None
    with pytest.raises(ShoalValueError, match=f"node {wrong!r} does not exist; .* nodes 0 to 1"):
        cluster.get_node_info(wrong)
    with pytest.raises(ShoalValueError, match=r"node 'a' does not exist; .* nodes 0 to 1"):
        cluster.get_node_ip("a")
    with pytest.raises(IndexError):
        cluster.get_node_ip(2)


def test_a_cluster_answers_to_the_names_of_older_versions():
    nodes = [node(0, 2), node(1), node(2, 1)]
    cluster = DescribedCluster(nodes, build_groups(nodes, None))
    assert cluster.num_accelerators_in_cluster == 3
    assert cluster.node_accelerator_ids == [[0, 1], [], [2]]
    assert [cluster.get_node_num_accelerators(rank) for rank in range(3)] == [2, 0, 1]
    assert [cluster.get_node_id_from_accel_id(rank) for rank in range(3)] == [0, 0, 2]
    assert [cluster.global_accel_id_to_local_accel_id(rank) for rank in range(3)] == [0, 1, 0]
    for wrong in (-1, 3, None):
        with pytest.raises(ShoalValueError, match=f"accelerator {wrong} does not exist; .* has 3"):
            cluster.get_node_id_from_accel_id(wrong)
