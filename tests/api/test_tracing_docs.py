"""docs/tracing.md says what the code does: its program prints what it says, its keys exist."""

import dataclasses
import json
import re

import pytest
import yaml

from shoal.config import TracerConfig, load
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/tracing.md")
(PROGRAM,) = blocks(TEXT, "python")
(OUTPUT,) = blocks(TEXT, "text")
(SECTION,) = blocks(TEXT, "yaml")


def test_the_program_prints_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(PROGRAM, "tracing_document")
    assert capsys.readouterr().out == OUTPUT
    assert json.loads((tmp_path / "trace_events.json").read_text())["traceEvents"]


def test_the_section_can_be_read():
    assert load(yaml.safe_load(SECTION)).tracer.enable


def test_the_keys_are_all_there_are():
    table = TEXT.split("| key of `cluster.tracer`")[1].split("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert named == [field.name for field in dataclasses.fields(TracerConfig)]
