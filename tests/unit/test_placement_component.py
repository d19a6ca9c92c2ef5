"""`ComponentPlacement` on doubles of clusters, with either core."""

import pickle
from pathlib import Path

import pytest

from shoal.errors import ClusterConfigError, PlacementError
from shoal.placement import ComponentPlacement, NodePlacementStrategy
from support.cluster_doubles import core, make_cluster, where

__all__ = ["core"]

EXAMPLES = Path(__file__).parents[1] / "vectors" / "examples"

CONFIG = {
    "num_nodes": 4,
    "component_placement": {
        "actor,inference": "0-3:0-1",
        "env": {"node_group": ["b", "a"], "placement": "0-1"},
        "agent": {"node_group": "node", "placement": "0-1:0-200,2-3:201-511"},
        "one": 3,
    },
}


def test_a_label_may_be_a_number_in_yaml():
    cluster = make_cluster([2, 2], {"4090": [1]})
    plan = ComponentPlacement(
        {"component_placement": {"a": {"node_group": 4090, "placement": "all"}}}, cluster
    )
    assert where(plan.get_strategy("a").get_placement(cluster)) == [(1, [0]), (1, [1])]


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
    assert str(caught.value) == (
        'cluster.component_placement.actor: placement "0-3:0-2": 4 resources and 3 processes: one '
        'count must be divisible by the other; did you mean "0-3:0-3"?\n'
        "  0-3:0-2\n  ^^^^^^^\n  cluster: ranks 0-7 on node 0"
    )
    assert caught.value.problems == (str(caught.value),)


def test_all_bad_entries_are_named():
    config = {
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
        ComponentPlacement(config, make_cluster([8], {"a800": [0]}))
    message = str(caught.value)
    assert message.startswith("8 problems in component_placement:\n")
    places = [line.split(":")[0].split(".")[2] for line in caught.value.problems]
    assert places == list(config["component_placement"])
    for part in (
        "  0-9\n    ^\n  cluster: ranks 0-7 on node 0",
        "cluster.component_placement.rollout.node_group: there is no node group 'a80'; there are a800, cluster, node; did you mean",
        "cluster.component_placement.env.node_groups: unknown key 'node_groups'; expected node_group and placement; did you mean",
        "component_placement.agent: the key placement is missing",
        'component_placement.critic: a placement must be a text such as "0-3", or a rank; not None',
        "component_placement.reward,: a component name is empty",
        "component_placement.judge,judge: a component is placed twice",
        'if this was written 1:1, YAML 1.1 made it a number: write "1:1"',
    ):
        assert part in message


def test_a_number_of_a_yaml_file_is_no_base_sixty_number(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("component_placement: {sixty: 61}")
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(path, make_cluster([8]))
    assert "YAML 1.1" not in str(caught.value)


def test_hint_at_base_sixty_goes_with_the_text_that_is_wrong():
    entry = {"node_group": "nowhere", "placement": 61}
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement({"component_placement": {"sixty": entry}}, make_cluster([8]))
    assert "YAML 1.1" not in str(caught.value)


def test_component_placed_in_two_entries_is_an_error():
    config = {"component_placement": [{"a": "0"}, {"a,b": "1"}]}
    with pytest.raises(PlacementError, match='component "a" is placed twice'):
        ComponentPlacement(config, make_cluster([8]))


def test_unknown_component_is_named_with_the_nearest():
    plan = ComponentPlacement({"component_placement": {"rollout": "0"}}, make_cluster([1]))
    for ask in (plan.get_strategy, plan.get_world_size, plan.get_hardware_ranks):
        with pytest.raises(AssertionError, match="did you mean 'rollout'"):
            ask("rolout")
        with pytest.raises(AssertionError, match='there is no component "None"; there are rollout'):
            ask(None)
    empty = ComponentPlacement({"component_placement": {}}, make_cluster([1]))
    with pytest.raises(PlacementError, match="there are none"):
        empty.get_world_size("actor")


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


def test_problems_of_a_file_stand_at_their_line_and_column(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "cluster:\n"
        "  component_placement:\n"
        "    actor: 0-8\n"
        "    rollout: {node_group: clutser, placement: 0}\n"
        "    agent: {node_group: node, placement: 0-1:0}\n"
    )
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(path, make_cluster([8]))
    first, second, third = caught.value.problems
    assert first == (
        f"cluster.component_placement.actor ({path}:3:12): "
        'placement "0-8": there is no rank 8; did you mean "0-7"?\n'
        "  0-8\n    ^\n  cluster: ranks 0-7 on node 0"
    )
    assert second.startswith(
        f"cluster.component_placement.rollout.node_group ({path}:4:27): there is no node group"
    )
    assert third.startswith(
        f"cluster.component_placement.agent.placement ({path}:5:42): "
        'placement "0-1:0": there is no rank 1; did you mean "0:0"?'
    )
    assert str(caught.value).startswith("3 problems in component_placement:\ncluster.comp")


def make_example(num_gpu_nodes, num_robot_nodes, groups):
    cluster = make_cluster([8] * num_gpu_nodes + [0] * num_robot_nodes, groups)
    for group in cluster.groups:
        if group.label in {"franka", "robot"}:
            group.hardware_type = "Arm"
    return cluster


def test_example_of_eighteen_nodes():
    cluster = make_example(16, 2, {"a800": range(8), "4090": range(8, 16), "franka": [16, 17]})
    for node in cluster.by_label["franka"].nodes:
        node.robots = 1
    plan = ComponentPlacement(EXAMPLES / "eighteen_nodes.yaml", cluster)
    actor, rollout, env, agent = (
        plan.get_strategy(name).get_placement(cluster) for name in plan.components
    )
    assert where(actor) == [(node, [device]) for node in range(8) for device in range(8)]
    assert where(rollout) == [(node, [device]) for node in range(8, 16) for device in range(8)]
    assert where(env) == [(16, [0]), (17, [0])]
    nodes = [p.cluster_node_rank for p in agent]
    assert nodes == [0] * 100 + [1] * 100 + [2] * 100 + [3] * 100


def test_example_as_printed_is_an_error_that_names_all_of_it():
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(EXAMPLES / "node_groups_as_printed.yaml", make_cluster([8, 8]))
    assert len(caught.value.problems) == 4
    for problem, part in zip(
        caught.value.problems,
        ("no node group 'a800'", "no node group '4090'", "no node group 'robot'", "no rank 3"),
        strict=True,
    ):
        assert part in problem
        assert "node_groups_as_printed.yaml:" in problem


def test_example_completed_shares_nodes_unevenly():
    cluster = make_example(4, 2, {"a800": [0, 1], "4090": [2, 3], "robot": [4, 5]})
    for node in cluster.by_label["robot"].nodes:
        node.robots = 2
    plan = ComponentPlacement(EXAMPLES / "node_groups_completed.yaml", cluster)
    assert [plan.get_world_size(name) for name in plan.components] == [9, 9, 8, 512]
    env = plan.get_strategy("env").get_placement(cluster)
    assert where(env) == [(4, [0])] * 2 + [(4, [1])] * 2 + [(5, [0])] * 2 + [(5, [1])] * 2
    agents = plan.get_strategy("agent").get_placement(cluster)
    nodes = [p.cluster_node_rank for p in agents]
    assert nodes == [0] * 101 + [1] * 100 + [2] * 156 + [3] * 155
    assert [p.rank for p in agents] == list(range(512))


def test_example_in_short_form_gives_two_components_one_placement():
    plan = ComponentPlacement(EXAMPLES / "short_form.yaml", make_cluster([8]))
    assert plan.get_strategy("actor") is plan.get_strategy("inference")
    assert [plan.get_world_size(name) for name in plan.components] == [8, 8]


def test_strategies_of_a_plan_travel_and_place_on_other_clusters():
    here, there = make_cluster([2, 2]), make_cluster([4])
    plan = ComponentPlacement({"component_placement": {"actor": "0-3", "agent": 0}}, here)
    strategy = plan.get_strategy("actor")
    assert where(strategy.get_placement(here)) == [(0, [0]), (0, [1]), (1, [0]), (1, [1])]
    assert where(strategy.get_placement(there)) == [(0, [rank]) for rank in range(4)]
    again = pickle.loads(pickle.dumps(strategy))
    assert again.get_placement(here) == strategy.get_placement(here)
    assert repr(again) == repr(strategy)


def test_a_cluster_without_weak_references_will_do():
    class Slotted:
        __slots__ = ("get_node_group",)

    cluster = Slotted()
    cluster.get_node_group = make_cluster([2]).get_node_group
    plan = ComponentPlacement({"component_placement": {"actor": "all"}}, cluster)
    assert where(plan.get_strategy("actor").get_placement(cluster)) == [(0, [0]), (0, [1])]
