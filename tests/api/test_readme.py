"""The README's code runs unchanged.

A block whose first line is a comment with a file name (`# cluster.yaml`) is written to that file.
Then every Python block runs as a separate program in the folder with these files.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
LIMIT_S = 100

_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"#\s*(?P<name>[\w.-]+\.\w+)\s*\n")


def blocks(text: str) -> dict[str, str]:
    """The code of each block by file name; a block without a name gets one like `block_3.py`."""
    found = {}
    for number, match in enumerate(_BLOCK.finditer(text), 1):
        name = _FILE_NAME.match(match["code"])
        suffix = {"python": "py"}.get(match["language"], match["language"])
        found[name["name"] if name else f"block_{number}.{suffix}"] = match["code"]
    return found


def readme_programs() -> list[str]:
    return [name for name in blocks(README.read_text(encoding="utf-8")) if name.endswith(".py")]


def test_readme_has_a_program():
    assert readme_programs()


@pytest.mark.nightly
@pytest.mark.ray
@pytest.mark.parametrize("program", readme_programs())
def test_readme_program_runs(program, tmp_path):
    for name, code in blocks(README.read_text(encoding="utf-8")).items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, program],
        cwd=tmp_path,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{program} ran for more than {LIMIT_S} s:\n{output}")
    assert process.returncode == 0, output
    assert output, f"{program} prints nothing that would show a reader what it did"


def test_blocks_are_named_by_their_first_line():
    text = "a\n```yaml\n# c.yaml\nx: 1\n```\n\n```python\nprint(1)\n```\n"
    assert blocks(text) == {"c.yaml": "# c.yaml\nx: 1\n", "block_2.py": "print(1)\n"}
