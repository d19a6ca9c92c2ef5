"""Auto placement: costs from a profile, the search, and the plan that it gives."""

import itertools
import json
import math

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

import shoal
from shoal.auto_placement import Stage, auto_place, auto_plan, find_placement, search
from shoal.auto_placement.curves import fit
from shoal.auto_placement.profiles import read_profile
from shoal.auto_placement.search import IN_TURN, PIPELINE, in_turn
from shoal.cli.app import app
from shoal.errors import ClusterConfigError, PlacementError, ShoalTypeError, ShoalValueError
from shoal.planner import from_json, to_json


def reasoning(**profile):
    """The job of the worked example."""
    return {
        "cluster": {"num_nodes": 16, "component_placement": {"actor,critic": "0-7", "reward": "0"}},
        "algorithm": {"group_size": 16, "n_minibatches": 4},
        "data": {"rollout_batch_size": 512},
        "rollout": {"max_running_requests": 128},
        "actor": {"model": {"tensor_model_parallel_size": 2}},
        "profile_data": {"actor_cost": 101, "rollout_cost": 224, "inference_cost": 10} | profile,
    }


def table(components, batch=100):
    return {
        "cluster": {"num_nodes": 1},
        "profile_data": {"batch_size": batch, "components": components},
    }


def embodied(envs=64):
    return {
        "cluster": {"num_nodes": 1},
        "data": {"env_num": envs},
        "profile_data": {
            "actor_cost": 16,
            "env_profile_data": {4: 4.0, 8: 7.0, 16: 13.0, 32: 25.0},
            "rollout_profile_data": {8: 2.0, 16: 3.0, 32: 5.0, 64: 9.0},
        },
    }


# Costs.


def test_costs_of_the_worked_example():
    rollout, inference, actor = read_profile(reasoning(), 128).stages
    assert [rollout.cost(gpus) for gpus in (96, 64, 32)] == [0.4375, 0.875, 1.75]
    assert round(actor.cost(32), 4) == 0.5636
    assert round(actor.cost(64), 4) == 0.3288
    assert actor.cost(128) == 101 / 512  # as measured
    assert actor.cost(48) is None
    assert inference.cost(2) == pytest.approx(10 / 512 * 64 / 1.9)


def test_environments_cost_what_was_measured():
    env, rollout, actor = read_profile(embodied(), 8).stages
    assert env.cost(8) == 7.0 / 64
    assert rollout.cost(1) == 9.0 / 64
    assert rollout.cost(65) is None
    assert actor.cost(8) == 16 / 64
    assert actor.cost(4) is None


@given(
    st.dictionaries(
        st.integers(1, 1000), st.floats(0.01, 1000, allow_nan=False), min_size=1, max_size=8
    )
)
def test_a_curve_passes_through_its_points_and_is_positive(points):
    curve = fit(points)
    assert all(curve(x) == y for x, y in points.items())
    for x in range(1, 2 * max(points), max(1, max(points) // 20)):
        assert curve(x) > 0


@pytest.mark.parametrize(
    "law",
    [
        lambda x: 3 * x**0.7,
        lambda x: 2 * math.exp(0.05 * x),
        lambda x: 1 + 2 * math.log(x),
        lambda x: 0.1 * x * x - x + 7,
    ],
)
def test_a_curve_follows_each_law(law):
    curve = fit({x: law(x) for x in (1, 2, 4, 8, 16, 32)})
    for x in (3, 11, 25):
        assert curve(x) == pytest.approx(law(x), rel=1e-6)


@pytest.mark.parametrize("points", [{}, {1: 0}, {0: 1.0}, {1: "2"}, {1: math.inf}])
def test_points_without_a_positive_measurement_are_refused(points):
    with pytest.raises(ShoalValueError, match="expected counts with the seconds"):
        fit(points)


# Search.

costs = st.lists(
    st.dictionaries(st.integers(1, 6), st.integers(1, 30), min_size=1), min_size=1, max_size=3
)


def brute_force(tables, num_gpus, batch):
    """The least seconds of a pure pipeline, from all assignments of GPUs."""
    return min(
        (
            sum(t[g] for t, g in zip(tables, gpus, strict=True))
            + max(t[g] for t, g in zip(tables, gpus, strict=True)) * (batch - 1)
            for gpus in itertools.product(*tables)
            if sum(gpus) <= num_gpus
        ),
        default=None,
    )


@given(costs, st.integers(1, 12), st.integers(1, 50))
def test_search_finds_the_fastest_pipeline(tables, num_gpus, batch):
    stages = [Stage(str(i), one.get) for i, one in enumerate(tables)]
    found = search(stages, num_gpus, batch, [PIPELINE])
    best = brute_force(tables, num_gpus, batch)
    assert best == (None if found is None else found.seconds(batch))
    if found is not None:
        assert [leaf.name for leaf in found.leaves()] == [stage.name for stage in stages]
        assert sum(leaf.gpus for leaf in found.leaves()) == found.gpus <= num_gpus


@given(costs, st.integers(1, 12), st.integers(1, 50))
def test_mixed_forms_are_never_slower(tables, num_gpus, batch):
    stages = [Stage(str(i), one.get) for i, one in enumerate(tables)]
    mixed = search(stages, num_gpus, batch)
    for other in (
        search(stages, num_gpus, batch, [PIPELINE]),
        search(stages, num_gpus, batch, [IN_TURN]),
        in_turn(stages, num_gpus),
    ):
        if other is not None:
            assert mixed is not None
            assert mixed.seconds(batch) <= other.seconds(batch)


def test_a_source_may_have_all_gpus_but_one():
    stages = [Stage("a", {7: 1}.get), Stage("b", {1: 1}.get)]
    assert search(stages, 8, 10, [PIPELINE]).gpus == 8


# Placements.


def test_worked_example():
    found = find_placement(reasoning(), 128)
    assert found.component_placement == {
        "rollout": "0-79",
        "inference": "80-95",
        "actor": "96-127",
        "critic": "0-7",
        "reward": "0",
    }
    assert (found.form, round(found.seconds, 3)) == ("pipeline", 289.096)
    assert found.explanation[:4] == (
        "Best placement for this task is:",
        "rollout : 0-79",
        "inference : 80-95",
        "actor : 96-127",
    )
    assert found.alternatives == {"all in turn": 335}


def test_slow_training_is_done_in_turn_on_all_gpus():
    found = find_placement(reasoning(actor_cost=2000), 128)
    others = {"critic": "0-7", "reward": "0"}
    assert found.component_placement == {"rollout": "0-127", "actor": "0-127"} | others
    assert found.explanation[1] == "rollout, actor : all"
    assert "inference" not in found.component_placement


def test_processes_of_several_gpus_come_first():
    components = {
        "single": {"seconds": {1: 10, 2: 5, 3: 4}},
        "wide": {"seconds": {4: 8, 8: 4}, "gpus_per_process": 4},
    }
    found = find_placement(table(components), 8)
    assert found.component_placement["wide"].endswith((":0", ":0-1"))
    shoal.plan({"component_placement": found.component_placement, "num_nodes": 1}, "1x8")


@pytest.mark.parametrize("name", ["llm.v2", 7])
def test_a_name_of_a_component_need_not_be_a_plain_word(name):
    job = table({name: {"seconds": {2: 8, 8: 4}, "gpus_per_process": 2}})
    assert find_placement(job, 8).component_placement == {str(name): "0-7:0-3"}
    del job["profile_data"]["components"][name]["seconds"]
    text = rf"profile_data\.components\.{name}\.seconds: the key is missing"
    with pytest.raises(ClusterConfigError, match=text):
        find_placement(job, 8)


def test_tables_of_large_clusters_are_searched_in_steps():
    components = {name: {"seconds": {1: 1000, 1024: 2}} for name in "abc"}
    stage = read_profile(table(components), 1024).stages[0]
    sizes = [gpus for gpus, _ in stage.costs(1024)]
    assert (sizes[0], sizes[1], sizes[-1], len(sizes)) == (1, 16, 1024, 65)
    assert find_placement(table(components), 1024).num_gpus == 1024


def test_environments_share_the_gpus_and_the_actor_has_all():
    found = find_placement(embodied(), 8)
    placed = found.component_placement
    assert placed["actor"] == "0-7"
    assert found.form in ("mixed", "all in turn")
    assert set(placed) == {"env", "rollout", "actor"}


def test_environments_are_shared_evenly():
    """Otherwise an embodied job does not start."""
    env, rollout, _ = read_profile(embodied(12), 12).stages
    for stage in (env, rollout):
        assert [gpus for gpus, _ in stage.costs(16)] == [1, 2, 3, 4, 6, 12]


# Seconds by environments of an instance; `env_cost` is of no use to the placement.
EMBODIED = {
    "actor_cost": 95.7,
    "env_cost": 60,
    "env_profile_data": {1: 10.0, 8: 58.1},
    "rollout_profile_data": {1: 59.9, 8: 120.0},
}


def test_costs_of_an_embodied_job_that_do_not_apply_are_named():
    job = {
        "cluster": {"num_nodes": 1, "component_placement": {"env": "0-3", "rollout,actor": "all"}},
        "runner": {"task_type": "embodied"},
        "data": {"env_num": 8},
        "profile_data": EMBODIED,
    }
    found = auto_place(job, "1x8")
    assert found.component_placement == {"env": "0-7", "rollout": "0-7", "actor": "0-7"}
    assert found.seconds == pytest.approx(10.0 + 59.9 + 95.7)
    assert found.explanation[:2] == (
        "Best placement for this task is:",
        "env, rollout, actor : all",
    )
    assert found.explanation[-1] == (
        "Not used: profile_data.env_cost; by actor_cost, env_profile_data, rollout_profile_data "
        "this is a job of the kind embodied"
    )
    assert {c.name for c in auto_plan(job, "1x8").components} == {"env", "rollout", "actor"}


def test_an_embodied_job_needs_the_times_of_environments():
    job = reasoning() | {"runner": {"task_type": "embodied"}}
    with pytest.raises(
        ClusterConfigError, match="or, for an embodied job, actor_cost, env_profile"
    ):
        find_placement(job, 128)


@pytest.mark.parametrize("actor_cost", [101, 2000])
def test_a_job_that_does_not_recompute_log_probabilities_has_no_inference(actor_cost):
    job = reasoning(actor_cost=actor_cost)
    job["algorithm"]["recompute_logprobs"] = False
    job["cluster"]["component_placement"]["inference"] = "8-15"
    found = find_placement(job, 128)
    assert list(found.component_placement) == ["rollout", "actor", "critic", "reward"]
    without = reasoning(actor_cost=actor_cost)
    del without["profile_data"]["inference_cost"]
    assert found.seconds == find_placement(without, 128).seconds
    assert found.explanation[-1] == (
        "Not used: profile_data.inference_cost; algorithm.recompute_logprobs is false, so the job "
        "has no inference"
    )


def test_an_impossible_placement_names_each_component():
    components = {"a": {"seconds": {4: 1, 6: 1}}, "b": {"seconds": {16: 1}}}
    with pytest.raises(PlacementError) as caught:
        find_placement(table(components), 8)
    assert str(caught.value) == (
        "no placement of 2 components fits on 8 GPUs:\n"
        "  a can use 4-6 of them\n"
        "  b cannot use any number of them"
    )


@pytest.mark.parametrize("gpus", ["8", 8.0, None, True])
def test_a_number_of_gpus_of_a_wrong_type_is_named(gpus):
    with pytest.raises(ShoalTypeError, match=f"num_gpus={gpus!r}: expected an integer"):
        find_placement(reasoning(), gpus)


def test_no_placement_fits_on_a_cluster_without_accelerators():
    with pytest.raises(PlacementError, match="no placement fits on 0 GPUs"):
        auto_place(reasoning(), "16x0")


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.tuples(
            st.dictionaries(st.integers(1, 16), st.floats(0.1, 99), min_size=1),
            st.sampled_from([1, 2, 4]),
        ),
        min_size=1,
    ),
    st.integers(1, 200),
)
def test_a_placement_that_is_found_fits(components, batch):
    """`shoal.plan` accepts it, and no component of a pipeline shares a device."""
    profile = {
        name: {"seconds": points, "gpus_per_process": wide}
        for name, (points, wide) in components.items()
    }
    try:
        found = find_placement(table(profile, batch), 16)
    except PlacementError:
        return
    job = {"num_nodes": 2, "component_placement": found.component_placement}
    made = shoal.plan(job, "2x8")
    assert {c.name for c in made.components} == set(profile)
    if found.form == "pipeline":
        assert made.totals.shared_devices == 0
    assert all(found.seconds <= seconds for seconds in found.alternatives.values())


@pytest.mark.parametrize(
    ("profile", "error"),
    [
        (None, "profile_data: the key is missing"),
        ({}, "profile_data has the keys none"),
        ({"actor_costs": 1, "rollout_cost": 2}, "did you mean 'actor_cost'"),
        ({"actor_cost": 1, "rollout_cost": 2, "batch": 3}, r"profile_data\.batch: no such key"),
        ({"actor_cost": 1, "rollout_cost": 2, "env_costs": 3}, "env_costs: no .* mean 'env_cost'"),
        ({"actor_cost": -1, "rollout_cost": 2}, "actor_cost=-1: expected seconds"),
        ({"batch_size": 1, "components": []}, "expected a mapping from the names"),
        ({"batch_size": 1, "components": {"a": {"seconds": 3}}}, "a.seconds=3: expected a mapping"),
        ({"batch_size": 1, "components": {"a": {"seconds": {2: 0}}}}, "all of them positive"),
    ],
)
def test_profiles_that_are_not_valid(profile, error):
    job = reasoning()
    job["profile_data"] = profile
    with pytest.raises(ClusterConfigError, match=error):
        find_placement(job, 128)


# The plan.


def test_plan_replaces_the_entries_of_the_components():
    made = auto_plan(reasoning(), "16x8:H100")
    assert [component.name for component in made.components] == [
        "rollout", "inference", "actor", "critic", "reward",
    ]  # fmt: skip
    assert [len(component.processes) for component in made.components] == [80, 16, 32, 8, 1]
    assert made.explanation == auto_place(reasoning(), "16x8").explanation
    assert from_json(to_json(made)) == made


@pytest.mark.parametrize("entries", [[{"actor": "0-7"}, {"reward": "0"}], {"reward": "0"}, None])
def test_entries_of_other_components_stay_in_each_form_of_the_section(entries):
    job = reasoning()
    job["cluster"]["component_placement"] = entries
    names = ["rollout", "inference", "actor", *(["reward"] if entries else [])]
    assert list(auto_place(job, "16x8").component_placement) == names


def test_a_section_that_is_no_mapping_is_refused():
    job = reasoning()
    job["cluster"]["component_placement"] = "0-7"
    with pytest.raises(ClusterConfigError, match="component_placement='0-7': expected a mapping"):
        auto_place(job, "16x8")


def test_part_of_a_document_is_not_enough():
    with pytest.raises(ClusterConfigError, match="needs the whole document"):
        auto_plan({"num_nodes": 1}, "1x8")


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(reasoning()))
    return path


def test_command_shows_the_reasons(job_file, tmp_path):
    page = tmp_path / "plan.html"
    arguments = ["plan", str(job_file), "--nodes", "16x8", "--auto"]
    shown = CliRunner().invoke(app, [*arguments, "--html", str(page)])
    assert shown.exit_code == 0, shown.output
    assert "  rollout : 0-79\n" in shown.output
    assert "Form: pipeline; 289.096 s for 512 prompts on 128 GPUs" in shown.output
    assert "<li>rollout : 0-79</li>" in page.read_text()
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert document["explanation"][0] == "Best placement for this task is:"
    assert document["source"] == str(job_file)
    assert "actor : 96-127" in CliRunner().invoke(app, [*arguments, "--markdown"]).output


def test_command_needs_an_inventory(job_file):
    result = CliRunner().invoke(app, ["plan", str(job_file), "--auto"])
    assert result.exit_code == 2
