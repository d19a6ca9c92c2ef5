"""docs/routing.md matches the code: its programs run and print what their comments say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
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
    exec(compile(program, "routing.md", "exec"), {})
    check(program, capsys.readouterr().out.splitlines())


@pytest.mark.ray
@pytest.mark.process
def test_the_program_with_workers_prints_what_it_says(tmp_path, ray_tmpdir):
    (program,) = WITH_WORKERS
    (tmp_path / "routes.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "routes.py"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    check(program, done.stdout.splitlines())
