"""The placement strategies on doubles of clusters, with either core."""

import logging
import pickle
import re
from types import SimpleNamespace

import pytest

from shoal.errors import PlacementError, ShoalTypeError
from shoal.placement import (
    FlexiblePlacementStrategy,
    MultiNodeGroupResolver,
    NodePlacementStrategy,
    PackedPlacementStrategy,
    PlacementStrategy,
)
from shoal.topology import NodeGroupInfo, NodeInfo
from support.cluster_doubles import Group, Node, core, make_cluster, where

__all__ = ["core"]


def test_packed_passes_its_numbers_on():
    strided = PackedPlacementStrategy(8, 15, 2, 4).get_placement(make_cluster([8, 8]))
    assert where(strided) == [(1, [0, 4]), (1, [1, 5]), (1, [2, 6]), (1, [3, 7])]


def test_packed_takes_the_older_keywords():
    cluster = make_cluster([8])
    today = PackedPlacementStrategy(0, 3, 2).get_placement(cluster)
    for older in (
        {"start_gpu_id": 0, "end_gpu_id": 3, "num_gpus_per_process": 2},
        {"start_accelerator_id": 0, "end_accelerator_id": 3, "num_accelerators_per_process": 2},
        {"start_hardware_rank": 0, "end_gpu_id": 3, "num_hardware_per_process": 2},
    ):
        assert PackedPlacementStrategy(**older).get_placement(cluster) == today


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((0, 3), {"start_gpu_id": 0}, "got both 'start_hardware_rank' and its older name"),
        ((0, 3), {"num_gpu": 1}, "unexpected keyword argument 'num_gpu'"),
        ((), {"end_gpu_id": 3}, "missing a required argument: 'start_hardware_rank'"),
    ],
)
def test_packed_names_the_wrong_argument(arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        PackedPlacementStrategy(*arguments, **keywords)


@pytest.mark.parametrize("arguments", [(-1, 3), (3, 1), (0, 2, 2), (0, 5, 2, 2), (0, 3, 0)])
def test_packed_checks_its_numbers_when_it_is_made(arguments):
    with pytest.raises(PlacementError):
        PackedPlacementStrategy(*arguments)


@pytest.mark.parametrize(
    ("strategy", "wrong"),
    [
        *[(NodePlacementStrategy, ranks) for ranks in (2, "01", ["a", 1], [1.5], [True], [[0]])],
        *[(FlexiblePlacementStrategy, ranks) for ranks in (2, "01", [0, [1]], [["a"]], [[True]])],
    ],
)
def test_ranks_of_a_wrong_type_are_named_with_what_is_expected(strategy, wrong):
    text = f"{strategy.__name__}: .*_rank.*={re.escape(repr(wrong))}: expected a list with the "
    with pytest.raises(ShoalTypeError, match=text):
        strategy(wrong)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("0", 3), "start_hardware_rank='0'"),
        ((0, 1.5), r"end_hardware_rank=1\.5"),
        ((0, 3, True), "num_hardware_per_process=True"),
        ((0, 3, 1, None), "stride=None"),
    ],
)
def test_packed_needs_integers(arguments, wrong):
    with pytest.raises(ShoalTypeError, match=f"^PackedPlacementStrategy: {wrong}: expected an int"):
        PackedPlacementStrategy(*arguments)


def test_flexible_follows_hardware_order_and_leaves_the_callers_list():
    given = [[5, 4], [1, 0]]
    placements = FlexiblePlacementStrategy(given).get_placement(make_cluster([8]))
    assert where(placements) == [(0, [0, 1]), (0, [4, 5])]
    assert given == [[5, 4], [1, 0]]


@pytest.mark.parametrize(("ranks", "message"), [([], "not be empty"), ([[0], []], "process 1")])
def test_flexible_needs_ranks(ranks, message):
    with pytest.raises(PlacementError, match=message):
        FlexiblePlacementStrategy(ranks)


def test_flexible_takes_groups_in_any_order():
    cluster = make_cluster([2, 2], {"a": [0], "b": [1]})
    placements = FlexiblePlacementStrategy([[0, 1], [2]], "b,a").get_placement(cluster)
    assert where(placements) == [(1, [0, 1]), (0, [0])]
    assert [p.node_group_label for p in placements] == ["b", "a"]


def test_a_process_sees_its_own_accelerators_or_all_of_its_node():
    cluster = make_cluster([4])
    strategy = FlexiblePlacementStrategy([[2], [3, 1], [2]])
    own = strategy.get_placement(cluster)
    assert [p.visible_accelerators for p in own] == [["1", "3"], ["2"], ["2"]]
    every = strategy.get_placement(cluster, isolate_accelerator=False)
    assert [p.visible_accelerators for p in every] == [["0", "1", "2", "3"]] * 3
    assert [p.local_hardware_ranks for p in every] == [[1, 3], [2], [2]]


def test_node_placement_shares_nodes_and_sees_all_accelerators():
    placements = NodePlacementStrategy([1, 0, 0]).get_placement(make_cluster([2, 2]))
    assert where(placements) == [(0, []), (0, []), (1, [])]
    assert [p.visible_accelerators for p in placements] == [["0", "1"]] * 3
    older = NodePlacementStrategy(node_ids=[0, 0, 1])
    assert older.get_placement(make_cluster([2, 2])) == placements


def test_node_placement_refuses_a_negative_rank_when_it_is_made():
    with pytest.raises(IndexError, match=r"node_ranks=\[0, -1\]: a node rank must be at least 0"):
        NodePlacementStrategy([0, -1])


def test_node_placement_without_accelerators():
    (one,) = NodePlacementStrategy([0], "node").get_placement(make_cluster([0]), False)
    assert (one.local_accelerator_rank, one.accelerator_type) == (-1, "NO_ACCEL")
    assert one.isolate_accelerator is False


@pytest.mark.parametrize("raises", [False, True])
def test_unknown_group_is_named_with_the_nearest(raises):
    cluster = make_cluster([1], raises=raises)
    with pytest.raises(PlacementError, match=r"no node group 'clutser'.*did you mean 'cluster'"):
        NodePlacementStrategy([0], "clutser").get_placement(cluster)
    cluster = make_cluster([1, 1], {"a800": [0, 1], "arms": [1]}, raises=raises)
    with pytest.raises(PlacementError, match=r"'a80'; there are a800, arms, cluster, node; did"):
        NodePlacementStrategy([0], "a80").get_placement(cluster)


def test_strategies_travel_and_show_themselves():
    for strategy in (
        PackedPlacementStrategy(0, 1, node_group="cluster"),
        FlexiblePlacementStrategy([[0], [1]], ["cluster"]),
        NodePlacementStrategy([0, 0], "node"),
    ):
        again = pickle.loads(pickle.dumps(strategy))
        assert repr(again) == repr(strategy)
        assert type(strategy).__name__ in repr(strategy)
        assert len(again.get_placement(make_cluster([2]))) == 2


def test_placements_are_made_one_by_one():
    strategy = FlexiblePlacementStrategy([[0, 1], [2, 3]])
    solved = strategy.solve(make_cluster([4]))
    assert list(solved) == strategy.get_placement(make_cluster([4]))
    assert type(strategy.get_placement(make_cluster([4]))) is list
    assert solved[1].local_hardware_ranks == [2, 3]
    assert solved[-1:] == [solved[1]]
    with pytest.raises(IndexError):
        solved[2]


def test_a_placement_is_logged_once_in_one_line(caplog):
    caplog.set_level(logging.INFO, logger="shoal")
    NodePlacementStrategy([0, 1, 1], "node").get_placement(make_cluster([0, 0]))
    assert [record.getMessage() for record in caplog.records] == [
        "NODE placement on node: 3 process(es) on 2 node(s)"
    ]


def test_a_strategy_of_a_user_needs_one_method():
    class OnFirst(PlacementStrategy):
        def get_placement(self, cluster, isolate_accelerator=True):
            return NodePlacementStrategy([0]).get_placement(cluster, isolate_accelerator)

    strategy = OnFirst()
    assert strategy.node_groups == ["cluster"]
    assert where(strategy.get_placement(make_cluster([1]))) == [(0, [])]


def test_a_cluster_may_be_a_stub_with_plain_nodes_or_nodes_of_shoal():
    node = SimpleNamespace(node_rank=0, num_accelerators=2, accelerator_type="NV_GPU")
    plain = SimpleNamespace(label="cluster", nodes=[node], hardware_type="Accelerator")
    stub = SimpleNamespace(get_node_group=lambda label: plain)
    assert where(PackedPlacementStrategy(0, 1).get_placement(stub)) == [(0, [0]), (0, [1])]
    assert MultiNodeGroupResolver([plain]).get_local_hardware_rank(1) == 1
    ours = NodeInfo(node_labels=[], node_rank=0, ray_id="", node_ip="10.0.0.1", num_cpus=4)
    group = NodeGroupInfo("cluster", [ours])
    stub = SimpleNamespace(get_node_group=lambda label: group, num_nodes=1, num_accelerators=0)
    assert where(NodePlacementStrategy([0, 0]).get_placement(stub)) == [(0, []), (0, [])]


def test_resolver_numbers_several_groups_through():
    nodes = [Node(0, 2), Node(1, 0, robots=1), Node(2, 1)]
    gpu = Group("gpu", [nodes[2], nodes[0]], "Accelerator")
    arm = Group("arm", nodes[1:2], "Arm")
    whole = Group("node", nodes)
    resolver = MultiNodeGroupResolver([arm, gpu])
    assert resolver.node_groups == [arm, gpu]
    assert resolver.hardware_resource_count == 4
    assert resolver.hardware_types == ["Arm", "Accelerator"]
    assert MultiNodeGroupResolver([gpu, whole]).hardware_types is None
    assert MultiNodeGroupResolver([whole]).hardware_resource_count == 3
    found = [
        (
            resolver.get_node_by_hardware_rank(rank).node_rank,
            resolver.get_local_hardware_rank(rank),
            resolver.get_node_group_label(rank),
            resolver.get_hardware_type_for_rank(rank),
        )
        for rank in range(4)
    ]
    assert found == [
        (1, 0, "arm", "Arm"),
        (0, 0, "gpu", "Accelerator"),
        (0, 1, "gpu", "Accelerator"),
        (2, 0, "gpu", "Accelerator"),
    ]
    assert resolver.get_node_group(3) is gpu
    for rank in (-1, 4):
        with pytest.raises(
            ValueError, match=f"no resource rank {rank}; the node groups 'arm', 'gpu'"
        ):
            resolver.get_node_group_label(rank)
    with pytest.raises(PlacementError, match="at least one node group"):
        MultiNodeGroupResolver([])
