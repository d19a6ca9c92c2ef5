"""Plans: their content for each process, node and device, and their errors."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import event, given, strategies as st

import shoal
from shoal.cluster.allocate import Allocation, _accelerator_env
from shoal.errors import ClusterConfigError, PlacementError, ShoalValueError
from shoal.placement.environment import group_environment, process_environment
from shoal.planner import PlannedProcess, plan, read_inventory
from shoal.planner.diff import diff_plans
from shoal.planner.environment import AT_LAUNCH
from shoal.planner.grouping import blocks_of
from shoal.planner.html import render_html
from shoal.planner.markdown import render_markdown
from shoal.planner.plan_json import from_json, to_json
from shoal.worker.identity import Identity

EXAMPLES = Path(__file__).parents[1] / "vectors" / "examples"


def job(placement, num_nodes=1, **section):
    return {"num_nodes": num_nodes, "component_placement": placement, **section}


GROUPS = [
    {
        "label": "gpus",
        "node_ranks": "0-1",
        "env_configs": [
            {"node_ranks": 0, "env_vars": [{"NET": "eth0"}], "python_interpreter_path": "/opt/py"},
            {"node_ranks": 1, "env_vars": [{"NET": "eth1"}]},
        ],
    },
    {"label": "cpus", "node_ranks": 2},
]
MIXED = job(
    {
        "actor": {"node_group": "gpus", "placement": "0-7:0-3"},
        "rollout,reward": {"node_group": "gpus", "placement": "8-15"},
        "agent": {"node_group": "cpus", "placement": "0:0-2"},
    },
    num_nodes=3,
    node_groups=GROUPS,
)


def test_components_are_placed_as_a_launch_would():
    made = plan(MIXED, "2x8:H100/64cpu,1x0/2cpu")
    actor, rollout, reward, agent = made.components
    assert [c.name for c in made.components] == ["actor", "rollout", "reward", "agent"]
    assert [c.entry for c in made.components[:2]] == [("actor",), ("rollout", "reward")]
    assert agent.node_groups == ("cpus",)
    process = actor.processes[3]
    assert process == PlannedProcess(
        rank=3,
        node=0,
        node_group="gpus",
        hardware_type="Accelerator",
        hardware_ranks=(6, 7),
        visible_devices=("6", "7"),
        interpreter="/opt/py",
        configured={"NET": "eth0"},
        environment=process.environment,
    )
    assert [p.hardware_ranks for p in rollout.processes] == [(i,) for i in range(8)]
    assert {p.node for p in reward.processes} == {1}
    assert {p.interpreter for p in reward.processes} == {""}
    assert [(p.node, p.hardware_type, p.hardware_ranks) for p in agent.processes] == [
        (2, None, ())
    ] * 3
    assert made.source == "the configuration"
    assert made.inventory == "2x8:H100/64cpu,1x0/2cpu"
    assert made.nodes[1].devices[2].components == ("rollout", "reward")


def test_the_environment_equals_that_of_a_launch(monkeypatch):
    """Compares each variable, except those that only launch knows."""
    made = plan(MIXED, [*nodes_with_addresses("2x8:H100,1x0")])
    # The same placements, from the public parts that launch uses.
    placement = shoal.ComponentPlacement(MIXED, cluster_of(made))
    for component in made.components:
        placements = placement.get_strategy(component.name).get_placement(cluster_of(made))
        for process, placed in zip(component.processes, placements, strict=True):
            cluster = cluster_of(made)
            node = cluster.get_node_info(placed.cluster_node_rank)
            launched = group_environment(component.name, placements, cluster)
            launched |= process_environment(component.name, placed, node.accelerator_model)
            request = Allocation(object, "name", node.node_rank, env_vars=dict(launched))
            launched |= _accelerator_env(node, request, process.configured)
            planned = component.environment_of(process)
            assert not planned.keys() & set(AT_LAUNCH)
            own = {name: planned.pop(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")}
            assert planned == process.configured | launched
            with monkeypatch.context() as patched:
                for name, value in launched.items():
                    patched.setenv(name, value)
                set_by_worker = Identity.read(None, None, None).set_local_rank()
                assert tuple(map(str, set_by_worker)) == tuple(own.values())


def nodes_with_addresses(text):
    nodes = read_inventory(text).nodes
    for node in nodes:
        node.node_ip = f"10.0.0.{node.node_rank}"
    return nodes


def cluster_of(made):
    """A double of the cluster for launch, with the nodes of a plan."""
    nodes = nodes_with_addresses("2x8:H100,1x0")
    groups = {
        "gpus": SimpleNamespace(label="gpus", nodes=nodes[:2], hardware_type="Accelerator"),
        "cpus": SimpleNamespace(label="cpus", nodes=nodes[2:], hardware_type=None),
    }
    return SimpleNamespace(
        get_node_group=groups.get,
        get_node_info=lambda rank: nodes[rank],
    )


def test_visible_devices_have_the_names_of_the_node():
    nodes = read_inventory("1x2:H100").nodes
    nodes[0].hardware_resources[0].device_names[:] = ["GPU-aa", "GPU-bb"]
    (component,) = plan(job({"actor": "1"}), list(nodes)).components
    (process,) = component.processes
    assert process.visible_devices == ("GPU-bb",)
    assert process.environment["CUDA_VISIBLE_DEVICES"] == "GPU-bb"


def test_planning_leaves_the_inventory_as_it_was():
    inventory = read_inventory("2x8,1x0")
    before = [(list(n.node_labels), dict(n.env_vars)) for n in inventory.nodes]
    plan(MIXED, inventory)
    plan(job({"other": "0-3"}), inventory)
    assert [(n.node_labels, n.env_vars) for n in inventory.nodes] == before


def test_the_inventory_may_list_the_robots_of_the_configuration_or_leave_them_out():
    path = EXAMPLES / "node_groups_completed.yaml"
    without = plan(path, "4x8,2x0")
    assert without == replace(plan(path, "4x8,2x0/2xFranka"), inventory="4x8,2x0")
    message = r"node 4: the configuration lists 2 Franka.* has 1"
    with pytest.raises(ClusterConfigError, match=message):
        plan(path, "4x8,2x0/Franka")
    assert [n.processes.get("agent", 0) for n in without.nodes[:5]] == [101, 100, 156, 155, 0]
    assert [len(c.processes) for c in without.components] == [9, 9, 8, 512]
    env = without.component("env")
    assert [p.hardware_ranks for p in env.processes] == [(0,), (0,), (1,), (1,)] * 2


def test_a_variable_of_the_configuration_replaces_those_of_launch():
    env_configs = [{"node_ranks": 0, "env_vars": [{"MUJOCO_GL": "osmesa"}]}]
    groups = [{"label": "soft", "node_ranks": 0, "env_configs": env_configs}]
    made = plan(job({"a": {"node_group": "soft", "placement": 0}}, node_groups=groups), "1x1:H100")
    assert "EGL_DEVICE_ID" not in made.components[0].processes[0].environment
    (plain,) = plan(job({"a": "0"}), "1x1:H100").components[0].processes
    assert plain.environment["EGL_DEVICE_ID"] == "0"


@pytest.mark.parametrize("count", [1, 18])
def test_without_an_inventory_the_error_shows_an_example_of_the_right_size(count):
    with pytest.raises(ShoalValueError, match=f"such as {count}x8:H100/64cpu for {count} node"):
        plan(job({"actor": "0"}, num_nodes=count))


def test_too_few_nodes_are_named_with_the_entries_that_do_not_fit():
    with pytest.raises(ClusterConfigError) as caught:
        plan(job({"actor": "0-31", "agent": "x"}, num_nodes=4), "2x8")
    first, actor, agent = caught.value.problems
    assert first == "cluster.num_nodes: the job wants 4 nodes, and the inventory 2x8 has 2"
    assert actor.startswith("cluster.component_placement.actor: ")
    assert agent.startswith("cluster.component_placement.agent: ")


def test_unreadable_entries_and_entries_that_do_not_fit_are_named_together():
    job = {
        "num_nodes": 1,
        "typo": 1,
        "component_placement": {"a": {"placment": "0"}, "b": "0-9", "c": "0-7"},
    }
    with pytest.raises(PlacementError) as caught:
        plan(job, "1x8")
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "cluster.component_placement.a.placment",
        "cluster.component_placement.a",
        "cluster.component_placement.b",
    ]
    assert len(caught.value.__notes__) == 1  # the note about the unknown key


def test_problems_of_the_configuration_and_of_the_inventory_come_together():
    with pytest.raises(ClusterConfigError) as caught:
        plan(job({"actor": "0"}, num_nodes="two"), "2y8")
    text = str(caught.value)
    assert "'num_nodes' must be a positive integer" in text
    assert "is not a number of nodes" in text
    assert len(caught.value.problems) == 2


def test_a_wrong_configuration_comes_before_a_missing_inventory():
    with pytest.raises(ClusterConfigError, match="num_nodes"):
        plan(job({"actor": "0"}, num_nodes=0))


SEGMENTS = st.lists(
    st.sampled_from(
        ["0", "1", "0-1", "0-3", "2-3", "4-7", "all", "0-7/2", "all!0", "0:0-3", "0-3:0-1"]
    ),
    min_size=1,
    max_size=2,
).map(",".join)
ENTRIES = st.one_of(
    SEGMENTS,
    st.builds(
        lambda group, placement: {"node_group": group, "placement": placement},
        st.sampled_from(["node", "cluster", "gpus"]),
        SEGMENTS,
    ),
)


@given(
    placement=st.dictionaries(st.sampled_from(["a", "b,c", "d"]), ENTRIES, min_size=1),
    sizes=st.lists(st.integers(0, 4), min_size=2, max_size=4),
)
def test_any_job_is_planned_or_refused(placement, sizes):
    """The plan's sums are right, JSON restores it, and it can be shown in every form."""
    groups = [{"label": "gpus", "node_ranks": "0-1"}]
    config = job(placement, num_nodes=len(sizes), node_groups=groups)
    try:
        made = plan(config, ",".join(map(str, sizes)))
    except (ClusterConfigError, PlacementError):
        event("refused")
        return
    event("planned")
    assert from_json(to_json(made)) == made
    for component in made.components:
        assert [p.rank for p in component.processes] == list(range(len(component.processes)))
        blocks = blocks_of(component)
        assert [p for block in blocks for p in block.processes] == list(component.processes)
    owned = [
        (process.node, index, (component.name, process.rank))
        for component in made.components
        for process in component.processes
        for index in process.hardware_ranks
    ]
    assert sorted(owned) == sorted(
        (node.rank, device.index, user) for node, device in made.devices() for user in device.users
    )
    assert made.totals.processes == sum(sum(n.processes.values()) for n in made.nodes)
    assert diff_plans(made, made) == []
    assert render_markdown(made)
    assert render_html(made).endswith("</html>\n")


def test_devices_of_a_job_without_components_are_idle():
    made = plan(job({}), "1x8")
    assert made.components == ()
    assert made.totals.idle_devices == 8
    assert made.warnings == ("no process runs on node 0",)


def test_warnings_of_the_configuration_are_notes_of_the_error():
    with pytest.raises(ClusterConfigError) as failed:
        plan({"num_nodes": 1, "node_grups": []}, "1x8")
    (note,) = failed.value.__notes__
    assert note.startswith("warning: ")
    assert "did you mean 'node_groups'?" in note


def test_nodes_of_an_inventory_must_have_the_ranks_from_0():
    with pytest.raises(ClusterConfigError, match="must have the ranks 0 to 1, in this order"):
        plan(job({"actor": 0}), read_inventory("3x8").nodes[1:])
