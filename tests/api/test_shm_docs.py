"""docs/shm.md matches the code: its programs run, and the names it uses exist."""

import re

import pytest

from shoal import shm
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/shm.md")
PROGRAMS = blocks(TEXT, "python")
STATS = re.search(r"`stats\(\)` says how a session is used: (.*?)\.\n", TEXT, re.DOTALL)


def test_there_are_programs():
    assert len(PROGRAMS) >= 3


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_documentation_runs(program, capsys):
    run(program)
    assert capsys.readouterr().out


def test_the_figures_that_are_named_are_all_there_are():
    with shm.Session.create() as session:
        assert set(re.findall(r"`(\w+)`", STATS[1])) == set(session.stats())
