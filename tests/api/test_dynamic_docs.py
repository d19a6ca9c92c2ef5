"""docs/dynamic_scheduler.md and docs/auto_placement.md match the code: their programs run."""

import re

import pytest

from shoal.dynamic_scheduler import RolloutAction, StatusManager
from shoal.testing import local_cluster
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

SCHEDULER = page("docs/dynamic_scheduler.md")
PLACEMENT = page("docs/auto_placement.md")
JOB, SIZES = blocks(SCHEDULER, "python")
WORKED, TABLE = blocks(PLACEMENT, "python")
(PRINTED,) = blocks(PLACEMENT, "text")
_PRINT = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)


def test_the_job_prints_what_it_says(capsys, monkeypatch):
    monkeypatch.setenv("SHOAL_LOG_LEVEL", "WARNING")  # workers log to stdout
    assert "Cluster(num_nodes=1)" in JOB
    with local_cluster():
        run(JOB)
    assert capsys.readouterr().out.splitlines() == _PRINT.findall(JOB)


@pytest.mark.parametrize("program", [SIZES, TABLE])
def test_a_program_prints_what_it_says(program, capsys):
    run(program)
    assert capsys.readouterr().out.splitlines() == _PRINT.findall(program)


def test_the_worked_example_prints_what_the_page_shows(capsys):
    run(WORKED)
    assert capsys.readouterr().out == PRINTED


def test_all_messages_are_told():
    for action in RolloutAction:
        if action is not RolloutAction.Default:
            assert f"{action.name}`" in SCHEDULER, action


def test_named_keys_are_those_of_the_code():
    keys = re.findall(r"`(\w+\.\w+)`", SCHEDULER.split("## Settings")[1].split("##")[0])
    assert {"cluster.scheduler_timeout", "cluster.use_pre_process_policy"} <= set(keys)
    assert hasattr(StatusManager, "wait_idle")
