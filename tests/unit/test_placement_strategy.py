"""The strategies and `ComponentPlacement`, on clusters made by hand, with either core."""

import pickle
from dataclasses import dataclass, field

import pytest

from shoal import _backend, placement
from shoal.errors import ClusterConfigError, PlacementError, PlacementIndexError
from shoal.placement import (
    ComponentPlacement,
    FlexiblePlacementStrategy,
    NodePlacementStrategy,
    PackedPlacementStrategy,
)


@dataclass
class Node:
    node_rank: int
    num_accelerators: int = 0
    robots: int = 0

    @property
    def accelerator_type(self):
        return "NV_GPU" if self.num_accelerators else "NO_ACCEL"

    def get_hw_resource_count(self, hw_type):
        return {"Accelerator": self.num_accelerators, "Arm": self.robots}.get(hw_type, 0)


@dataclass
class Group:
    label: str
    nodes: list
    hardware_type: str | None = None


@dataclass
class Cluster:
    """Answers None for an unknown label, or raises, as some existing callers' doubles do."""

    groups: list
    raises: bool = False
    by_label: dict = field(init=False)

    def __post_init__(self):
        self.by_label = {group.label: group for group in self.groups}

    def get_node_group(self, label):
        if self.raises and label not in self.by_label:
            raise AssertionError(label)
        return self.by_label.get(label)


def make_cluster(sizes, groups=(), **keywords):
    nodes = [Node(rank, size) for rank, size in enumerate(sizes)]
    kind = "Accelerator" if any(sizes) else None
    return Cluster(
        [
            Group("cluster", nodes, kind),
            Group("node", nodes),
            *(
                Group(label, [nodes[rank] for rank in ranks], kind)
                for label, ranks in dict(groups).items()
            ),
        ],
        **keywords,
    )


@pytest.fixture(autouse=True)
def core(backend, monkeypatch):
    """Runs the public classes on the backend of the test."""
    for module in (placement.groups, placement.strategy, placement.component):
        for name in vars(module).keys() & set(_backend.__all__) - {"backend", "load"}:
            monkeypatch.setattr(module, name, getattr(backend, name))


def where(placements):
    return [(p.cluster_node_rank, p.local_hardware_ranks) for p in placements]


def test_packed_gives_neighbouring_ranks():
    placements = PackedPlacementStrategy(6, 9, 2).get_placement(make_cluster([8, 8]))
    assert where(placements) == [(0, [6, 7]), (1, [0, 1])]
    assert [p.visible_accelerators for p in placements] == [["6", "7"], ["0", "1"]]


def test_packed_never_leaves_its_node():
    strategy = PackedPlacementStrategy(3, 4, num_hardware_per_process=2)
    with pytest.raises(PlacementError, match="same node"):
        strategy.get_placement(make_cluster([4, 4]))


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
def test_packed_says_which_argument_is_wrong(arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        PackedPlacementStrategy(*arguments, **keywords)


@pytest.mark.parametrize("arguments", [(-1, 3), (3, 1), (0, 2, 2), (0, 5, 2, 2), (0, 3, 0)])
def test_packed_checks_its_numbers_at_once(arguments):
    with pytest.raises(PlacementError):
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
    for labels in ("b,a", ["b", "a"], ("b", "a")):
        strategy = FlexiblePlacementStrategy([[0, 1], [2]], labels)
        placements = strategy.get_placement(cluster)
        assert where(placements) == [(1, [0, 1]), (0, [0])]
        assert [p.node_group_label for p in placements] == ["b", "a"]
        assert [p.placement_node_rank for p in placements] == [0, 1]


def test_a_label_may_be_a_number_in_yaml():
    cluster = make_cluster([2, 2], {"4090": [1]})
    plan = ComponentPlacement(
        {"component_placement": {"a": {"node_group": 4090, "placement": "all"}}}, cluster
    )
    assert where(plan.get_strategy("a").get_placement(cluster)) == [(1, [0]), (1, [1])]


def test_node_placement_shares_nodes_and_sees_all_accelerators():
    placements = NodePlacementStrategy([1, 0, 0]).get_placement(make_cluster([2, 2]))
    assert where(placements) == [(0, []), (0, []), (1, [])]
    assert [(p.local_rank, p.local_world_size) for p in placements] == [(0, 2), (1, 2), (0, 1)]
    assert [p.visible_accelerators for p in placements] == [["0", "1"]] * 3
    assert [p.local_accelerator_rank for p in placements] == [0, 0, 0]
    older = NodePlacementStrategy(node_ids=[0, 0, 1])
    assert older.get_placement(make_cluster([2, 2])) == placements


def test_node_placement_without_accelerators():
    (one,) = NodePlacementStrategy([0], "node").get_placement(make_cluster([0]), False)
    assert (one.local_accelerator_rank, one.accelerator_type) == (-1, "NO_ACCEL")
    assert one.isolate_accelerator is False


def test_node_placement_of_a_missing_node_is_an_index_error():
    with pytest.raises(IndexError) as caught:
        NodePlacementStrategy([0, 2]).get_placement(make_cluster([0, 0]))
    assert type(caught.value) is PlacementIndexError
    assert "cluster: ranks 0-1 on nodes 0-1 (each a whole node)" in str(caught.value)


@pytest.mark.parametrize("raises", [False, True])
def test_unknown_group_is_named_with_the_nearest(raises):
    cluster = make_cluster([1], raises=raises)
    with pytest.raises(PlacementError, match=r"no node group 'clutser'.*did you mean 'cluster'"):
        NodePlacementStrategy([0], "clutser").get_placement(cluster)


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


CONFIG = {
    "num_nodes": 4,
    "component_placement": {
        "actor,inference": "0-3:0-1",
        "env": {"node_group": ["b", "a"], "placement": "0-1"},
        "agent": {"node_group": "node", "placement": "0-1:0-200,2-3:201-511"},
        "one": 3,
    },
}


def test_component_placement_resolves_every_entry():
    cluster = make_cluster([2, 2, 2, 2], {"a": [0], "b": [1]})
    for config in (CONFIG, {"cluster": CONFIG, "other": 1}):
        plan = ComponentPlacement(config, cluster)
        assert plan.components == ["actor", "inference", "env", "agent", "one"]
        assert [plan.get_world_size(name) for name in plan.components] == [2, 2, 2, 512, 1]
        assert plan.get_hardware_ranks("actor") == [0, 1, 2, 3]
        assert plan.get_hardware_ranks("agent") == [0, 1, 2, 3]
        assert plan.get_strategy("actor") is plan.get_strategy("inference")
        assert plan.placement_mode is None
        actor = plan.get_strategy("actor").get_placement(cluster)
        assert where(actor) == [(0, [0, 1]), (1, [0, 1])]
        assert where(plan.get_strategy("env").get_placement(cluster)) == [(1, [0]), (1, [1])]
        agents = plan.get_strategy("agent").get_placement(cluster)
        counts = [sum(p.cluster_node_rank == node for p in agents) for node in range(4)]
        assert counts == [101, 100, 156, 155]


def test_component_placement_reads_a_list_and_a_file(tmp_path):
    cluster = make_cluster([0])
    path = tmp_path / "plan.yaml"
    # Not 60: the file is read without YAML 1.1's base-sixty numbers.
    path.write_text("cluster: {component_placement: {a: {node_group: node, placement: 0:0}}}")
    for config in (path, str(path), {"component_placement": [{"a": "0"}, {}]}):
        assert ComponentPlacement(config, cluster).get_world_size("a") == 1


def test_component_placement_takes_omegaconf():
    omegaconf = pytest.importorskip("omegaconf")
    document = omegaconf.OmegaConf.create(
        {"cluster": {**CONFIG, "num_nodes": "${nodes}"}, "nodes": 4, "later": "???"}
    )
    cluster = make_cluster([2, 2, 2, 2], {"a": [0], "b": [1]})
    assert ComponentPlacement(document, cluster).get_world_size("env") == 2
    assert ComponentPlacement(document.cluster, cluster).get_world_size("env") == 2


def test_one_bad_entry_points_at_its_text():
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement({"component_placement": {"actor": "0-3:0-2"}}, make_cluster([8]))
    assert (caught.value.text, caught.value.span) == ("0-3:0-2", (0, 7))
    assert str(caught.value).startswith('component "actor": placement "0-3:0-2": 4 resources and 3')


def test_all_bad_entries_are_named():
    config = {
        "node_groups": [{"label": "a800", "node_ranks": 0}],
        "component_placement": {
            "actor": "0-9",
            "rollout": {"node_group": "a80", "placement": "0"},
            "env": {"node_groups": "a800", "placement": "0"},
            "agent": {"node_group": "node"},
            "critic": None,
            "reward,": "0",
            "judge,judge": "0",
            "sixty": 61,
        },
    }
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(config, make_cluster([8]))
    message = str(caught.value)
    assert message.startswith("8 problems in component_placement:\n")
    for part in (
        "  0-9\n    ^\n  cluster: ranks 0-7 on node 0",
        "\"rollout\": there is no node group 'a80'; there are a800, cluster, node; did you mean",
        "\"env\": unknown key 'node_groups'; expected node_group and placement; did you mean",
        '"agent": the key placement is missing',
        '"critic": a placement must be a text such as "0-3", or a rank; not None',
        '"reward,": a component name is empty',
        '"judge,judge": a component is placed twice',
        'if this was written 1:1, YAML 1.1 made it a number: write "1:1"',
    ):
        assert part in message


def test_component_placed_in_two_entries_is_an_error():
    config = {"component_placement": [{"a": "0"}, {"a,b": "1"}]}
    with pytest.raises(PlacementError, match='component "a" is placed twice'):
        ComponentPlacement(config, make_cluster([8]))


def test_unknown_component_is_named_with_the_nearest():
    plan = ComponentPlacement({"component_placement": {"rollout": "0"}}, make_cluster([1]))
    for ask in (plan.get_strategy, plan.get_world_size, plan.get_hardware_ranks):
        with pytest.raises(AssertionError, match="did you mean 'rollout'"):
            ask("rolout")


def test_missing_parts_are_named():
    cluster = make_cluster([1])
    with pytest.raises(PlacementError, match="perhaps written 'component_placment'"):
        ComponentPlacement({"num_nodes": 1, "component_placment": {}}, cluster)
    with pytest.raises(ClusterConfigError, match="no key 'cluster'"):
        ComponentPlacement({}, cluster)
    with pytest.raises(PlacementError, match="must be a mapping of components"):
        ComponentPlacement({"component_placement": "0-3"}, cluster)


def test_subclass_reads_the_attributes_of_the_contract():
    class Mine(ComponentPlacement):
        def __init__(self, config, cluster):
            super().__init__(config, cluster)
            self._placement_mode = "collocated"
            self._placements["late"] = NodePlacementStrategy([0])

    plan = Mine({"component_placement": {"a": "0"}}, make_cluster([1]))
    assert plan.placement_mode == "collocated"
    assert repr(plan.get_strategy("late")).startswith("NodePlacementStrategy")
    assert plan._component_world_size == {"a": 1}


AS_PRINTED = """
cluster:
  num_nodes: 2
  component_placement:
    actor: {node_group: a800, placement: 0-8}
    rollout: {node_group: 4090, placement: 0-8}
    env: {node_group: robot, placement: "0-3:0-7"}
    agent: {node_group: node, placement: "0-1:0-200,2-3:201-511"}
"""


def test_as_printed_example_names_everything(tmp_path):
    path = tmp_path / "as_printed.yaml"
    path.write_text(AS_PRINTED)
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(path, make_cluster([8, 8]))
    message = str(caught.value)
    assert message.startswith("4 problems")
    for part in ("no node group 'a800'", "no node group '4090'", "no node group 'robot'"):
        assert part in message
    assert "there is no rank 3" in message
