"""docs/routing.md matches the code: its programs run and print what their comments say."""

import re

import pytest

from shoal.testing import local_cluster
from support.documents import blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/routing.md")
PROGRAMS = blocks(TEXT, "python")
WITH_WORKERS = [program for program in PROGRAMS if program.startswith("# routes.py")]
PLAIN = [program for program in PROGRAMS if program not in WITH_WORKERS]
_PRINT = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)


def check(program, printed):
    """Compare each printed line with the comment of its `print`, without an explanation in it."""
    promised = _PRINT.findall(program)
    assert len(promised) == len(printed) > 0
    for comment, line in zip(promised, printed, strict=True):
        if comment.startswith("... "):
            assert line.endswith(comment.removeprefix("... "))
        else:
            assert comment == line or comment.startswith(f"{line}: ")


def test_there_are_programs():
    assert len(WITH_WORKERS) == 1
    assert len(PLAIN) >= 4


@pytest.mark.parametrize("program", PLAIN, ids=range(len(PLAIN)))
def test_a_program_of_the_documentation_prints_what_it_says(program, capsys):
    run(program)
    check(program, capsys.readouterr().out.splitlines())


def test_the_program_with_workers_prints_what_it_says(capsys):
    (program,) = WITH_WORKERS
    assert "Cluster(num_nodes=1)" in program
    with local_cluster():
        run(program)
    check(program, capsys.readouterr().out.splitlines())
