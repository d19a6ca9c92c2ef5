"""docs/rlinf.md says what the code does: its program runs, and its tables are those of the code."""

import inspect
import re

import pytest

import shoal
from shoal import Channel, WorkerGroup
from shoal.compat.rlinf.listing import as_markdown
from shoal.work import AsyncCollWork, AsyncFuncWork, AsyncRouteWork
from support.documents import blocks, page, run

TEXT = page("docs/rlinf.md")
MARK = "<!-- names: the output of `python -m shoal.compat.rlinf --names` -->\n"
(PROGRAM,) = blocks(TEXT, "python")
(REFUSAL,) = blocks(TEXT, "text")


def test_the_program_runs(clean_imports, capsys):
    run(PROGRAM, "rlinf_document")
    printed = re.findall(r"print\(.*\)  # (.*)", PROGRAM)
    assert capsys.readouterr().out.splitlines()[-2:] == printed


def test_the_tables_are_those_of_the_code():
    _, mark, tables = TEXT.partition(MARK)
    assert mark
    assert tables == as_markdown(), (
        "replace everything after the mark in docs/rlinf.md by the output of "
        "`python -m shoal.compat.rlinf --names`"
    )


def test_the_error_of_a_refused_name_is_the_one_that_is_raised(rlinf_served):
    with pytest.raises(ImportError) as caught:
        run("from rlinf.scheduler.channel.channel_worker import PeekQueue")
    assert f"{caught.value}\n".replace(shoal.__version__, "0.1.0") == REFUSAL


def test_the_page_names_what_exists():
    for word in ("_initialize", "connect", "peek_all", "put_nowait"):
        assert hasattr(Channel, word)
    assert hasattr(WorkerGroup, "from_group_name")
    for work, first in (
        (AsyncFuncWork, "func"),
        (AsyncCollWork, "works"),
        (AsyncRouteWork, "works"),
    ):
        assert next(iter(inspect.signature(work).parameters)) == first


def test_links_to_sections_exist():
    for name, section in re.findall(r"\]\((\w+\.md)?#([\w-]+)\)", TEXT):
        text = page(f"docs/{name}") if name else TEXT
        headings = [
            re.sub(r"[^\w -]", "", h).strip() for h in re.findall(r"^#+ (.*)", text, re.MULTILINE)
        ]
        assert section in [h.lower().replace(" ", "-") for h in headings]
