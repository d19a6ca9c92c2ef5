"""Outputs of a plan: golden files, a round trip through JSON, and hostile names.

After an intended change, rewrite a golden file with the command that `COMMANDS` lists for it.
"""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli.app import app
from shoal.errors import ShoalValueError
from shoal.planner import PlannedComponent, PlannedProcess, plan
from shoal.planner.diff import diff_headline, diff_plans
from shoal.planner.grouping import blocks_of, variables_of
from shoal.planner.markdown import escape, render_markdown
from shoal.planner.plan_json import from_json, to_json

GOLDEN = Path(__file__).parents[1] / "golden" / "plan"

SHARED = ["shared.yaml", "--inventory", "rack.yaml"]
DIFF = [*SHARED, "--diff", "moved.yaml"]
EIGHTEEN = ["../../vectors/examples/eighteen_nodes.yaml", "--nodes", "16x8:H100/64cpu,2x0/8cpu"]
COMMANDS = {
    "shared.txt": SHARED,
    "shared.md": [*SHARED, "--markdown"],
    "shared.json": [*SHARED, "--json"],
    "eighteen_nodes.txt": EIGHTEEN,
    "eighteen_nodes.md": [*EIGHTEEN, "--markdown"],
    "diff.txt": DIFF,
    "diff.md": [*DIFF, "--markdown"],
    "diff.json": [*DIFF, "--json"],
}
HOSTILE = "</script><img src=x onerror=alert(1)>|`*_[b]red[/b]\x1b[31m\u202e\n# h"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_output_equals_the_golden_file(name, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    monkeypatch.delenv("COLUMNS", raising=False)
    result = CliRunner().invoke(app, ["plan", *COMMANDS[name]])
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (GOLDEN / name).read_text(encoding="utf-8")


def test_every_golden_file_is_compared():
    outputs = {path.name for path in GOLDEN.iterdir() if path.suffix != ".yaml"}
    assert outputs == set(COMMANDS)


@pytest.fixture
def shared(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    return plan("shared.yaml", "rack.yaml")


def test_json_restores_the_plan_and_equal_plans_do_not_differ(shared):
    assert from_json(to_json(shared)) == shared
    assert diff_plans(shared, shared) == []


def hostile_plan():
    envs = [{"node_ranks": 0, "env_vars": [{HOSTILE.replace("=", ""): HOSTILE}]}]
    groups = [{"label": "g", "node_ranks": 0, "env_configs": envs}]
    placement = {HOSTILE: {"node_group": "g", "placement": "0-1"}, "judge": "1"}
    job = {"num_nodes": 1, "component_placement": placement, "node_groups": groups}
    nodes = [{"accelerators": 2, "model": HOSTILE, "hostnames": [HOSTILE]}]
    return plan(job, {"nodes": nodes})


def test_hostile_names_come_back_from_json():
    made = hostile_plan()
    assert made.components[0].name == HOSTILE
    assert from_json(to_json(made)) == made


def test_hostile_names_do_not_leave_their_cell_in_markdown():
    text = render_markdown(hostile_plan())
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<img" not in text.replace("\\<img", "")
    for table in text.split("### ")[1:]:
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1, table
    assert not [line for line in text.splitlines() if line.startswith("# h")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("rank_0", "rank_0"), ("_x_", r"\_x\_"), ("a|b", r"a\|b"), ("a\nb", "a b"), ("é", "é")],
)
def test_markdown_escapes_characters_with_a_meaning(text, expected):
    assert escape(text) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.update(kind="other"), "expected kind 'shoal.plan', not 'other'"),
        (lambda d: d.update(schema=2), "has schema 2, and this version of shoal reads 1"),
        (lambda d: d.pop("nodes"), "plan.nodes: Field required"),
        (lambda d: d.update(nodes=3), "plan.nodes: Input should be a valid array, not 3"),
        (lambda d: d["nodes"].append(7), "plan.nodes[3]: Input should be an object, not 7"),
        (
            lambda d: d["components"][1]["processes"][0].update(rank="x"),
            "plan.components[1].processes[0].rank: Input should be a valid integer, not 'x'",
        ),
        (
            lambda d: d["nodes"][0]["devices"][2].update(users=[["a", "b"]]),
            "plan.nodes[0].devices[2].users[0][1]: Input should be a valid integer, not 'b'",
        ),
        (
            lambda d: d["nodes"][0].update(processes={"actor": "4"}),
            "plan.nodes[0].processes.actor: Input should be a valid integer, not '4'",
        ),
    ],
)
def test_an_invalid_part_of_a_plan_is_named(shared, change, expected):
    document = json.loads(to_json(shared))
    change(document)
    with pytest.raises(ShoalValueError) as caught:
        from_json(json.dumps(document))
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "{", "null", "7", "[" * 100_000, "1" * 5000, b"\xff", 7]
)
def test_other_json_is_refused(text):
    with pytest.raises(ShoalValueError, match="this is not a plan"):
        from_json(text)


def hardware_of(placement, inventory="2x8", num_nodes=2):
    job = {"num_nodes": num_nodes, "component_placement": {"a": placement}}
    (component,) = plan(job, inventory).components
    return [(b.ranks, b.nodes, b.per_node, b.hardware) for b in blocks_of(component)]


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("0-15", [("0-15", (0, 1), 8, "0-7, 1 each")]),
        ("0-15:0-7", [("0-7", (0, 1), 4, "0-7, 2 each")]),
        ("0-15:0-1", [("0-1", (0, 1), 1, "0-7")]),
        ("0-15:0-31", [("0-31", (0, 1), 16, "0-7, 2 processes on each")]),
        ("3", [("0", (0, 0), 1, "3")]),
        ("3:0-1", [("0-1", (0, 0), 2, "3, 2 processes on each")]),
        ("0-3:0-3,4-7:4-5", [("0-5", (0, 0), 6, "0-3, 1 each; 4-7, 2 each")]),
        ("0:0-1,1:2", [("0-2", (0, 0), 3, "0, 2 processes on each; 1")]),
        ("0-3:0-7,4-7:8", [("0-8", (0, 0), 9, "0-3, 2 processes on each; 4-7")]),
        ("0-3:0-1,4-5:2-5", [("0-5", (0, 0), 6, "0-3, 2 each; 4-5, 2 processes on each")]),
        ("0-3,12-15", [("0-3", (0, 0), 4, "0-3, 1 each"), ("4-7", (1, 1), 4, "4-7, 1 each")]),
    ],
)
def test_processes_with_the_same_placement_are_one_block(placement, expected):
    assert hardware_of(placement) == expected


def test_long_lists_of_hardware_are_cut():
    strided = tuple(
        PlannedProcess(rank, 0, "g", "Accelerator", ranks)
        for rank, ranks in enumerate([(0, 2), (1, 3), (4, 6), (5, 7), (8, 10)])
    )
    (block,) = blocks_of(PlannedComponent("a", ("a",), ("g",), strided))
    assert block.hardware == "0, 2 | 1, 3 | 4, 6 | 5, 7 | …"
    ((*_, hardware),) = hardware_of("0,1:1-2,2:3,3:4-5,4:6", "1x8", 1)
    assert hardware == "0; 1, 2 processes on each; 2; 3, 2 processes on each; …"


def test_whole_components_appear_and_disappear():
    one = plan({"num_nodes": 1, "component_placement": {"a": "0-3"}}, "1x4")
    two = plan({"num_nodes": 1, "component_placement": {"b": "0-3"}}, "1x4")
    changes = [(c.component, c.what, c.ranks, c.before, c.after) for c in diff_plans(one, two)]
    assert changes == [
        ("a", "disappears", "0-3", "node 0: 0-3, 1 each", ""),
        ("b", "appears", "0-3", "", "node 0: 0-3, 1 each"),
    ]


def test_the_text_of_a_large_plan_is_short():
    """The plan's nodes have nothing in common, so that their lines cannot be merged."""
    scattered = ",".join(f"{8 * node + node % 7}" for node in range(1024))
    job = {"num_nodes": 1024, "component_placement": {"a": scattered}}
    text = render_markdown(plan(job, "1024x8"))
    assert "and 1,012 processes more" in text
    assert len(text.splitlines()) < 120
    assert max(map(len, text.splitlines())) < 400


def test_an_unknown_model_is_left_out():
    text = render_markdown(plan({"num_nodes": 1, "component_placement": {"a": "0"}}, "1x8"))
    assert "8 NV_GPU |" in text
    assert "UNKNOWN" not in text


def test_a_long_list_of_warnings_is_cut_and_counted():
    job = {"num_nodes": 1, "component_placement": {f"{c}{i}": i for i in range(30) for c in "ab"}}
    made = plan(job, "1x30")
    assert len(made.warnings) == 30
    assert "- and 6 more warnings; --json lists all\n" in render_markdown(made)


def test_a_difference_names_both_inventories():
    job = {"num_nodes": 1, "component_placement": {"a": "0-3"}}
    one, two = plan(job, "1x4"), plan(job, "1x8")
    assert diff_headline(one, one) == "the configuration → the configuration on 1x4"
    assert diff_headline(one, two) == "the configuration on 1x4 → the configuration on 1x8"


@pytest.mark.parametrize("columns", [30, 60])
def test_a_narrow_terminal_gets_paragraphs(columns, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    monkeypatch.setenv("COLUMNS", str(columns))
    text = CliRunner().invoke(app, ["plan", *SHARED]).stdout
    assert max(map(len, text.splitlines())) <= columns
    flat = " ".join(text.split())
    assert "component rollout: group train · ranks 0-1 · nodes 0 · a node 2" in flat
    assert "component rollout: group train · ranks 2-8 · nodes 1 · a node 7" in flat
    assert "nodes 2: name desk · CPUs 8 · hardware none" in flat


def test_configured_variables_that_launch_uses_are_shown_in_shell_syntax():
    variables = {"A": "a b", "B": "", "NCCL_CUMEM_ENABLE": "1", "MASTER_PORT": "7", "RANK": "7"}
    envs = [{"node_ranks": 0, "env_vars": [{name: value} for name, value in variables.items()]}]
    groups = [{"label": "g", "node_ranks": 0, "env_configs": envs}]
    placement = {"a": {"node_group": "g", "placement": "0"}}
    job = {"num_nodes": 1, "component_placement": placement, "node_groups": groups}
    (component,) = plan(job, "1x1").components
    (block,) = blocks_of(component)
    assert variables_of(component, block) == {
        "A": "'a b'",
        "B": "''",
        "NCCL_CUMEM_ENABLE": "1",
        "CUDA_VISIBLE_DEVICES": "0",
    }
