"""Every rule of the documented placement format, on doubles of clusters."""

import pytest

from shoal.errors import PlacementError
from shoal.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
)
from support.cluster_doubles import Cluster, Group, Node, core, make_cluster, where

__all__ = ["core"]


def ranks_of(entry, cluster=None):
    """The resource ranks of each process of a component."""
    plan = ComponentPlacement(
        {"component_placement": {"actor": entry}}, cluster or make_cluster([8])
    )
    return list(plan._component_rank_map["actor"])


def problem_of(entry, cluster=None):
    with pytest.raises(PlacementError) as caught:
        ranks_of(entry, cluster)
    assert isinstance(caught.value, (ValueError, AssertionError))
    return str(caught.value)


def one_each(*ranks):
    return [[rank] for rank in ranks]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("0-3,4-7", one_each(*range(8))),
        ("0-3:0-7", one_each(0, 0, 1, 1, 2, 2, 3, 3)),
        ("0-3:0-1", [[0, 1], [2, 3]]),
        ("all", one_each(*range(8))),
        ("ALL", one_each(*range(8))),
        ("all:0-3", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("0-1 : 0-3 , 3", one_each(0, 0, 1, 1, 3)),
        ("0,,3,", one_each(0, 3)),
        ("0-1:0-3,3-5,6-7:7-10", one_each(0, 0, 1, 1, 3, 4, 5, 6, 6, 7, 7)),
        (3, [[3]]),
        ({"placement": 0}, [[0]]),
        ({"placement": "0-7/4!4", "node_group": None}, [[0]]),
    ],
)
def test_placements_of_the_documents(entry, expected):
    assert ranks_of(entry) == expected


def test_the_documents_longest_placement():
    found = ranks_of("0-1:0-3,3-5,7-10:7-14", make_cluster([8, 8]))
    assert found == one_each(0, 0, 1, 1, 3, 4, 5, 7, 7, 8, 8, 9, 9, 10, 10)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("", "expected ranks"),
        ("0:1:2", "one ':' in a segment"),
        ("None", "expected a rank"),
        ("0-", "expected a rank after '-'"),
        ("-1", "expected a rank"),
        ("a-b", "expected a rank"),
        ("3-1", "must not end below its start"),
        ("0-8", "there is no rank 8"),
        ("0-1,1-2", "must be unique"),
        ("2,0", "must be in ascending order"),
        ("0-3:all", "cannot be 'all'"),
        ("0-3:ALL", "cannot be 'all'"),
        ("0-1:0-1,2-3:3-4", "in ascending order without gaps"),
        ("0-1:0-1,2-3:1-2", "process ranks must be unique"),
        ("0-1:5-6", "must start at 0"),
        ("0-3:0-2", "must be divisible by the other"),
        ({"node_group": "node", "placement": "0:0-1:2"}, "one ':' in a segment"),
        ({"node_group": "cluster"}, "the key placement is missing"),
        ({"node_group": "gpus", "placement": "0"}, "there is no node group 'gpus'"),
        (True, "a placement must be a text"),
        (1.5, "a placement must be a text"),
    ],
)
def test_what_the_documents_forbid(entry, message):
    assert message in problem_of(entry)


def test_components_of_one_entry_share_one_strategy():
    plan = ComponentPlacement(
        {"component_placement": {" actor , rollout ": "0-7"}}, make_cluster([8])
    )
    assert plan.components == ["actor", "rollout"]
    assert plan.get_strategy("actor") is plan.get_strategy("rollout")
    assert plan.get_hardware_ranks("rollout") == list(range(8))


@pytest.mark.parametrize("label", ["b,a", " b , a ", ["b", "a"], ("b", "a")])
def test_groups_may_be_a_list_in_any_order(label):
    cluster = make_cluster([2, 2], {"a": [0], "b": [1]})
    assert ranks_of({"node_group": label, "placement": "all:0-1"}, cluster) == [[0, 1], [2, 3]]
    plan = ComponentPlacement(
        {"component_placement": {"x": {"node_group": label, "placement": "all:0-1"}}}, cluster
    )
    placed = plan.get_strategy("x").get_placement(cluster)
    assert where(placed) == [(1, [0, 1]), (0, [0, 1])]
    assert [p.placement_node_rank for p in placed] == [0, 1]


def test_labels_are_case_sensitive():
    cluster = make_cluster([1], {"GPU": [0]})
    assert "no node group 'gpu'" in problem_of({"node_group": "gpu", "placement": "0"}, cluster)


def test_groups_of_nodes_and_of_hardware_do_not_mix():
    cluster = make_cluster([2, 2], {"a": [0]})
    message = problem_of({"node_group": "node,a", "placement": "0-1"}, cluster)
    assert '"node" (whole nodes) and "a" (hardware) cannot be mixed' in message
    assert message.startswith("cluster.component_placement.actor.node_group: ")


def test_groups_of_one_entry_share_no_device():
    cluster = make_cluster([2, 2], {"a": [0], "b": [0, 1]})
    message = problem_of({"node_group": ["a", "b"], "placement": "0"}, cluster)
    assert 'node groups "a" and "b" both have the resources of node 0' in message


def test_nodes_without_hardware_count_nothing_beside_nodes_that_have_some():
    cluster = make_cluster([2, 0, 2])
    assert ranks_of("all", cluster) == one_each(0, 1, 2, 3)
    plan = ComponentPlacement({"component_placement": {"x": "2-3"}}, cluster)
    assert where(plan.get_strategy("x").get_placement(cluster)) == [(2, [0]), (2, [1])]


def test_robots_are_numbered_through_their_group():
    nodes = [Node(0), Node(1, robots=2), Node(2, num_accelerators=1, robots=1)]
    cluster = Cluster([Group("arms", nodes, "Arm")])
    plan = ComponentPlacement(
        {"component_placement": {"env": {"node_group": "arms", "placement": "0-2:0-5"}}}, cluster
    )
    placed = plan.get_strategy("env").get_placement(cluster)
    assert where(placed) == [(1, [0])] * 2 + [(1, [1])] * 2 + [(2, [0])] * 2
    # A robot is not an accelerator: every accelerator of the node stays visible.
    assert [p.visible_accelerators for p in placed] == [[]] * 4 + [["0"]] * 2
    assert [p.local_accelerator_rank for p in placed] == [-1] * 4 + [0] * 2


def test_whole_nodes_take_any_number_of_processes():
    cluster = make_cluster([0] * 4)
    entry = {"node_group": "node", "placement": "0-1:0-200,2-3:201-511"}
    found = [ranks[0] for ranks in ranks_of(entry, cluster)]
    assert [found.count(node) for node in range(4)] == [101, 100, 156, 155]
    assert "one process cannot run across multiple nodes" in problem_of("0-3:0-2", cluster)


@pytest.mark.parametrize(
    ("sizes", "start", "end"), [([4, 4], 3, 4), ([4, 4], 2, 5), ([1, 1], 0, 1)]
)
def test_no_packed_process_leaves_its_node(sizes, start, end):
    """A process that starts on the last device of a node is the case that checks tend to miss."""
    cluster = make_cluster(sizes)
    strategy = PackedPlacementStrategy(start, end, num_hardware_per_process=end - start + 1)
    with pytest.raises(PlacementError, match="on the same node"):
        strategy.get_placement(cluster)
    fitting = PackedPlacementStrategy(0, sum(sizes) - 1, num_hardware_per_process=sizes[0])
    placed = fitting.get_placement(cluster)
    assert where(placed) == [(node, list(range(size))) for node, size in enumerate(sizes)]


def test_no_placement_string_leaves_its_node_either():
    assert "process 1 would get ranks 3-4" not in problem_of("0-5:0-1", make_cluster([4, 4]))
    message = problem_of("0-5:0-1", make_cluster([4, 4]))
    assert "process 1 would get ranks 3-5, which are on nodes 0-1" in message
    assert 'did you mean "0-5:0-2"?' in message


def test_strides_interleave_processes():
    placed = PackedPlacementStrategy(0, 7, 2, 2).get_placement(make_cluster([8]))
    assert [p.visible_accelerators for p in placed] == [
        ["0", "2"],
        ["1", "3"],
        ["4", "6"],
        ["5", "7"],
    ]


def test_isolation_shows_the_own_devices_only():
    cluster = make_cluster([4])
    strategy = FlexiblePlacementStrategy([[2], [3, 1], [2]])
    own = strategy.get_placement(cluster)
    assert [p.visible_accelerators for p in own] == [["1", "3"], ["2"], ["2"]]
    assert [p.local_accelerator_rank for p in own] == [1, 2, 2]
    every = strategy.get_placement(cluster, isolate_accelerator=False)
    assert [p.visible_accelerators for p in every] == [["0", "1", "2", "3"]] * 3
    assert [p.local_accelerator_rank for p in every] == [0, 0, 0]
    assert [p.local_hardware_ranks for p in every] == [[1, 3], [2], [2]]
    assert {p.local_world_size for p in own} == {3}


def test_node_placement_gives_numbers_not_texts():
    (placed,) = NodePlacementStrategy([0]).get_placement(make_cluster([2]))
    assert type(placed.local_accelerator_rank) is int
    assert placed.local_hardware_ranks == []
    assert placed.node_group_label == "cluster"
