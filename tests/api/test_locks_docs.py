"""docs/locks.md says what the code does: its program runs, its error is the one that is raised."""

import re

import pytest

from shoal.worker import DeviceLock
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/locks.md")


def test_the_program_runs_and_its_error_is_the_one_of_the_page(capsys):
    (program,) = blocks(TEXT, "python")
    (error,) = blocks(TEXT, "text")
    run(program, "locks_document")
    printed = re.sub(r"for \d+ s$", "for 0 s", capsys.readouterr().out.strip())
    assert printed == error.strip()


def test_the_table_has_every_method():
    named = set(re.findall(r"lock\.(\w+)\(", TEXT.split("## `Worker.device_lock`")[1]))
    assert named >= {name for name in vars(DeviceLock) if not name.startswith("_")}
