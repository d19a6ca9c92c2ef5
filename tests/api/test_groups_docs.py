"""docs/groups.md matches the code: its programs run and print what their comments say."""

import logging
import re

import pytest

from shoal.cluster.stop import EXIT_CODE
from support.documents import blocks, page, run
from support.processes import until

pytestmark = pytest.mark.nightly

TEXT = page("docs/groups.md")
PROGRAMS = blocks(TEXT, "python")
LINE, WAIT, LAST = blocks(TEXT, "text")
_PRINT = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_prints_what_it_says(program, capsys):
    run(program, "groups_document")
    promised = _PRINT.findall(program)
    assert promised
    assert capsys.readouterr().out.splitlines() == promised


def test_the_log_line_is_the_one_that_is_shown(caplog):
    program = PROGRAMS[0].replace("print(actor", "until(lambda: caplog.records)\n    print(actor")
    with caplog.at_level(logging.ERROR, "shoal"):
        scope = {"__name__": "failures", "until": until, "caplog": caplog}
        exec(compile(program, "failures.py", "exec"), scope)
    first, second, *_ = caplog.records[0].getMessage().splitlines()
    assert f"{first}\n{second}\n" == LINE.rsplit("  ...", 1)[0]
    assert WAIT.rstrip().endswith(f"failed before, and not waited for: {first}")
    assert f"shoal: the job was stopped: {first}\n" == LAST


def test_the_exit_code_is_the_one_that_is_told():
    assert f"exit code {EXIT_CODE}" in TEXT
