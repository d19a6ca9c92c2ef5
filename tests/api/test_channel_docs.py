"""docs/channels.md matches the code: its programs run, and the names it uses exist."""

import dataclasses
import re

import pytest

from shoal import errors
from shoal.channel import ChannelStats
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/channels.md")
PROGRAMS = blocks(TEXT, "python")
STATS = re.search(r"returns a `ChannelStats`: (.*?)\.\s+`peek", TEXT, re.DOTALL)


def test_there_are_programs():
    assert len(PROGRAMS) >= 5


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_documentation_runs(program, capsys):
    run(program)
    assert capsys.readouterr().out


def test_the_figures_that_are_named_are_all_there_are():
    named = set(re.findall(r"`(\w+)`", STATS[1]))
    assert named == {field.name for field in dataclasses.fields(ChannelStats)}


def test_the_errors_that_are_named_are_there():
    table = TEXT.split("## Errors")[1].split("##")[0]
    for name in re.findall(r"`(\w+(?:Error|Full|Empty|Closed))`", table):
        assert issubclass(getattr(errors, name), errors.ShoalError)
