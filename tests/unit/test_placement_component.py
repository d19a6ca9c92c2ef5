"""`ComponentPlacement` on doubles of clusters, with either core.

The rules of placement strings are those of the shared vectors, which `test_placement_core.py` runs.
"""

import pickle
from pathlib import Path

import pytest

from shoal.errors import ClusterConfigError, PlacementError
from shoal.placement import ComponentPlacement, NodePlacementStrategy
from support.cluster_doubles import Cluster, Group, Node, core, make_cluster, where

__all__ = ["core"]

EXAMPLES = Path(__file__).parents[1] / "vectors" / "examples"

CONFIG = {
    "num_nodes": 4,
    "component_placement": {
        " actor , inference ": "0-3:0-1",
        "env": {"node_group": ["b", "a"], "placement": "0-1"},
        "agent": {"node_group": "node", "placement": "0-1:0-200,2-3:201-511"},
        "one": 3,
    },
}


def plan(cluster, **components):
    return ComponentPlacement({"component_placement": components}, cluster)


def placed(entry, cluster):
    """The placements of a component."""
    return plan(cluster, actor=entry).get_strategy("actor").get_placement(cluster)


def test_every_entry_is_resolved():
    cluster = make_cluster([2, 2, 2, 2], {"a": [0], "b": [1]})
    for config in (CONFIG, {"cluster": CONFIG, "other": 1}):
        made = ComponentPlacement(config, cluster)
        assert made.components == ["actor", "inference", "env", "agent", "one"]
        assert [made.get_world_size(name) for name in made.components] == [2, 2, 2, 512, 1]
        assert made.get_hardware_ranks("inference") == [0, 1, 2, 3]
        assert made.get_hardware_ranks("agent") == [0, 1, 2, 3]
        assert made.get_strategy("actor") is made.get_strategy("inference")
        assert made.placement_mode is None
        actor, env, agent = (
            made.get_strategy(name).get_placement(cluster) for name in ("actor", "env", "agent")
        )
        assert where(actor) == [(0, [0, 1]), (1, [0, 1])]
        assert where(env) == [(1, [0]), (1, [1])]
        nodes = [p.cluster_node_rank for p in agent]
        assert [nodes.count(node) for node in range(4)] == [101, 100, 156, 155]
        assert [p.rank for p in agent] == list(range(512))


def test_a_list_and_a_file_are_read(tmp_path):
    cluster = make_cluster([0])
    path = tmp_path / "plan.yaml"
    # Not 60: the file is read without YAML 1.1's base-sixty numbers.
    path.write_text("cluster: {component_placement: {a: {node_group: node, placement: 0:0}}}")
    for config in (path, str(path), {"component_placement": [{"a": "0"}, {}]}):
        assert ComponentPlacement(config, cluster).get_world_size("a") == 1


def test_omegaconf_is_read():
    omegaconf = pytest.importorskip("omegaconf")
    document = omegaconf.OmegaConf.create(
        {"cluster": {**CONFIG, "num_nodes": "${nodes}"}, "nodes": 4, "later": "???"}
    )
    cluster = make_cluster([2, 2, 2, 2], {"a": [0], "b": [1]})
    assert ComponentPlacement(document, cluster).get_world_size("env") == 2
    assert ComponentPlacement(document.cluster, cluster).get_world_size("env") == 2


@pytest.mark.parametrize(
    ("entry", "ranks"),
    [
        (3, [[3]]),
        ("ALL:0-3", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("0-1 : 0-3 ,, 3,", [[0], [0], [1], [1], [3]]),
        ({"placement": 0}, [[0]]),
        ({"placement": "0-7/4!4", "node_group": None}, [[0]]),
    ],
)
def test_ranks_of_an_entry(entry, ranks):
    assert list(plan(make_cluster([8]), actor=entry)._component_rank_map["actor"]) == ranks


@pytest.mark.parametrize("label", ["b,a", " b , a ", ["b", "a"], ("b", "a")])
def test_groups_are_counted_in_the_order_of_their_labels(label):
    cluster = make_cluster([2, 2], {"a": [0], "b": [1]})
    found = placed({"node_group": label, "placement": "all:0-1"}, cluster)
    assert where(found) == [(1, [0, 1]), (0, [0, 1])]
    assert [p.placement_node_rank for p in found] == [0, 1]


def test_a_label_may_be_a_number_in_yaml():
    cluster = make_cluster([2, 2], {"4090": [1]})
    found = placed({"node_group": 4090, "placement": "all"}, cluster)
    assert where(found) == [(1, [0]), (1, [1])]


def test_robots_are_numbered_through_their_group():
    nodes = [Node(0), Node(1, robots=2), Node(2, num_accelerators=1, robots=1)]
    cluster = Cluster([Group("arms", nodes, "Arm")])
    found = placed({"node_group": "arms", "placement": "0-2:0-5"}, cluster)
    assert where(found) == [(1, [0])] * 2 + [(1, [1])] * 2 + [(2, [0])] * 2
    # A robot is not an accelerator: every accelerator of the node stays visible.
    assert [p.visible_accelerators for p in found] == [[]] * 4 + [["0"]] * 2
    assert [p.local_accelerator_rank for p in found] == [-1] * 4 + [0] * 2


def test_one_bad_entry_points_at_its_text():
    with pytest.raises(PlacementError) as caught:
        plan(make_cluster([8]), actor="0-3:0-2")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AssertionError)
    assert (caught.value.text, caught.value.span) == ("0-3:0-2", (0, 7))
    assert str(caught.value) == (
        'cluster.component_placement.actor: placement "0-3:0-2": 4 resources and 3 processes: one '
        'count must be divisible by the other; did you mean "0-3:0-3"?\n'
        "  0-3:0-2\n  ^^^^^^^\n  cluster: ranks 0-7 on node 0"
    )
    assert caught.value.problems == (str(caught.value),)


def test_all_bad_entries_are_named():
    wrong = {
        "actor": ("0-9", ': placement "0-9": there is no rank 9\n  0-9\n    ^\n  cluster: ranks'),
        "rollout": (
            {"node_group": "a80", "placement": "0"},
            ".node_group: there is no node group 'a80'; there are a800, cluster, node; did you",
        ),
        "simulator": ({"node_group": "A800", "placement": "0"}, ".node_group: there is no node gr"),
        "env": (
            {"node_groups": "a800", "placement": "0"},
            ".node_groups: unknown key 'node_groups'; expected node_group and placement; did you",
        ),
        "mix": (
            {"node_group": "node,a800", "placement": "0"},
            '.node_group: node groups "node" (whole nodes) and "a800" (hardware) cannot be mixed',
        ),
        "both": (
            {"node_group": ["cluster", "a800"], "placement": "0"},
            '.node_group: node groups "cluster" and "a800" both have the resources of node 0',
        ),
        "agent": ({"node_group": "node"}, ": the key placement is missing"),
        "critic": (None, ': a placement must be a text such as "0-3", or a rank; not None'),
        "flag": (True, ": a placement must be a text"),
        "part": (1.5, ": a placement must be a text"),
        "reward,": ("0", ": a component name is empty"),
        "judge,judge": ("0", ": a component is placed twice"),
        "sixty": (
            61,
            ': placement "61": there is no rank 61\n  61\n  ^^\n  cluster: ranks 0-7 on node 0\n'
            '  if this was written 1:1, YAML 1.1 made it a number: write "1:1"',
        ),
    }
    with pytest.raises(PlacementError) as caught:
        plan(
            make_cluster([8], {"a800": [0]}), **{name: entry for name, (entry, _) in wrong.items()}
        )
    assert str(caught.value).startswith("13 problems in component_placement:\ncluster.comp")
    expected = [f"cluster.component_placement.{name}{text}" for name, (_, text) in wrong.items()]
    cut = [line[: len(text)] for line, text in zip(caught.value.problems, expected, strict=True)]
    assert cut == expected


def test_the_hint_at_base_sixty_is_for_wrong_numbers_outside_files(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("component_placement: {sixty: 61}")
    in_a_group = {"component_placement": {"sixty": {"node_group": "nowhere", "placement": 61}}}
    for config in (path, in_a_group):
        with pytest.raises(PlacementError) as caught:
            ComponentPlacement(config, make_cluster([8]))
        assert "YAML 1.1" not in str(caught.value)


def test_a_component_placed_in_two_entries_is_an_error():
    config = {"component_placement": [{"a": "0"}, {"a,b": "1"}]}
    with pytest.raises(PlacementError, match='component "a" is placed twice'):
        ComponentPlacement(config, make_cluster([8]))


def test_an_unknown_component_is_named_with_the_nearest():
    made = plan(make_cluster([1]), rollout="0")
    for ask in (made.get_strategy, made.get_world_size, made.get_hardware_ranks):
        with pytest.raises(AssertionError, match="did you mean 'rollout'"):
            ask("rolout")
        with pytest.raises(AssertionError, match='there is no component "None"; there are rollout'):
            ask(None)
        with pytest.raises(PlacementError, match="there is no component "):
            ask(["rollout"])
    with pytest.raises(PlacementError, match="there are none"):
        plan(make_cluster([1])).get_world_size("actor")


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (
            {"num_nodes": 1, "component_placment": {}},
            PlacementError,
            "written 'component_placment'",
        ),
        ({}, ClusterConfigError, "no key 'cluster'"),
        ({"component_placement": "0-3"}, PlacementError, "must be a mapping of components"),
    ],
)
def test_missing_parts_are_named(config, error, message):
    with pytest.raises(error, match=message):
        ComponentPlacement(config, make_cluster([1]))


def test_a_subclass_reads_the_attributes_of_the_contract():
    class Mine(ComponentPlacement):
        def __init__(self, config, cluster):
            super().__init__(config, cluster)
            self._placement_mode = "collocated"
            self._placements["late"] = NodePlacementStrategy([0])

    made = Mine({"component_placement": {"a": "0"}}, make_cluster([1]))
    assert made.placement_mode == "collocated"
    assert repr(made.get_strategy("late")).startswith("NodePlacementStrategy")
    assert made._component_world_size == {"a": 1}


def test_problems_of_a_file_have_their_line_and_column(tmp_path):
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
    assert [problem.partition(":\n")[0].splitlines()[0] for problem in caught.value.problems] == [
        f'cluster.component_placement.actor ({path}:3:12): placement "0-8": there is no rank 8; '
        'did you mean "0-7"?',
        f"cluster.component_placement.rollout.node_group ({path}:4:27): there is no node group "
        "'clutser'; there are cluster, node; did you mean 'cluster'?",
        f'cluster.component_placement.agent.placement ({path}:5:42): placement "0-1:0": there is '
        'no rank 1; did you mean "0:0"?',
    ]


def test_example_as_printed_is_an_error_that_names_all_of_it():
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(EXAMPLES / "node_groups_as_printed.yaml", make_cluster([8, 8]))
    parts = ("no node group 'a800'", "no node group '4090'", "no node group 'robot'", "no rank 3")
    for problem, part in zip(caught.value.problems, parts, strict=True):
        assert part in problem
        assert "node_groups_as_printed.yaml:" in problem


def test_strategies_of_a_plan_travel_and_place_on_other_clusters():
    here, there = make_cluster([2, 2]), make_cluster([4])
    strategy = plan(here, actor="0-3", agent=0).get_strategy("actor")
    assert where(strategy.get_placement(here)) == [(0, [0]), (0, [1]), (1, [0]), (1, [1])]
    assert where(strategy.get_placement(there)) == [(0, [rank]) for rank in range(4)]
    again = pickle.loads(pickle.dumps(strategy))
    assert again.get_placement(here) == strategy.get_placement(here)
    assert repr(again) == repr(strategy)


def test_a_cluster_may_have_no_weak_references():
    class Slotted:
        __slots__ = ("get_node_group",)

    cluster = Slotted()
    cluster.get_node_group = make_cluster([2]).get_node_group
    assert where(placed("all", cluster)) == [(0, [0]), (0, [1])]
