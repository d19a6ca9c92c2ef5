"""docs/plan.md matches the code: its inventories are valid, and it names every field of a plan."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from shoal import planner
from shoal.cli.plan import plan_command
from shoal.planner.diff import Change
from shoal.planner.environment import AT_LAUNCH
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/plan.md")
PROGRAM = blocks(TEXT, "python")[-1]


def test_the_long_inventory_is_read():
    inventory = planner.read_inventory(yaml.safe_load(blocks(TEXT, "yaml")[-1]), ["Franka"])
    assert [n.num_accelerators for n in inventory.nodes] == [8] * 16 + [0] * 4
    assert [n.hostname for n in inventory.nodes[16:]] == ["arm-0", "arm-1", "", ""]


@pytest.mark.parametrize("text", re.findall(r"`(\d+x?\d*[:/][^`]+)`", TEXT))
def test_the_short_inventories_are_read(text):
    assert planner.read_inventory(text, ["Franka"]).nodes


def test_the_program_of_the_documentation_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("cluster: {num_nodes: 18, component_placement: {actor: 0-127}}")
    run(PROGRAM)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "actor 1 0 (1,) ('1',)"
    assert len(lines) == 128 + 1


@pytest.mark.parametrize(
    "kind",
    [
        planner.PlannedComponent,
        planner.PlannedDevice,
        planner.PlannedNode,
        planner.PlannedProcess,
        planner.Totals,
        Change,
    ],
)
def test_every_field_of_the_json_is_told(kind):
    for field in dataclasses.fields(kind):
        assert f"`{field.name}`" in TEXT, f"{kind.__name__}.{field.name}"


def test_options_and_limits_are_told():
    for name in ("html", "diff", "live", "inventory", "nodes"):
        assert f"--{name}" in TEXT
        assert name in plan_command.__annotations__
    for name in AT_LAUNCH:
        assert f"`{name}`" in TEXT
