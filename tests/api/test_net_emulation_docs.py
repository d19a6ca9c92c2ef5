"""docs/net_emulation.md says what the code does: its programs print what it says, its keys exist."""

import dataclasses
import re

import pytest
import yaml

from shoal.config import NetEmulationConfig, load
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/net_emulation.md")
(SECTION,) = blocks(TEXT, "yaml")
PROGRAMS = blocks(TEXT, "python")
OUTPUTS = blocks(TEXT, "text")
SECONDS = re.compile(r"after (\d+\.\d) s")


def test_the_job_takes_the_time_that_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "links.yaml").write_text(SECTION)
    run(PROGRAMS[0], "net_emulation_document")
    found = capsys.readouterr().out
    lines = sorted(SECONDS.sub("", OUTPUTS[0]).splitlines())
    assert sorted(SECONDS.sub("", found).splitlines()) == lines
    (arrived,) = re.findall(r"\[0, 1.*after (\d+\.\d) s", found)
    (put,) = re.findall(r"channel after (\d+\.\d) s", found)
    assert float(arrived) >= 0.2
    assert float(put) >= 0.4


def test_the_manager_computes_what_the_page_says(capsys):
    run(PROGRAMS[1], "net_emulation_document")
    assert capsys.readouterr().out == OUTPUTS[1]


def test_the_section_can_be_read():
    assert len(load(yaml.safe_load(SECTION)).net_emulation.crossdc_pairs) == 4


def test_the_keys_are_all_there_are():
    table = TEXT.split("| key of `cluster.net_emulation`")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == [field.name for field in dataclasses.fields(NetEmulationConfig)]
