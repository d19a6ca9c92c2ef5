"""What the machine allows, from the Rust example `limits`: the floors for a queue in Python.

The example measures as `crew.py` does: two processes on the same two cores, in rounds between
those of the contenders.
"""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["Limits", "build"]

ROOT = Path(__file__).parents[1]
DEADLINE = 600


class Limits:
    """Runs the example.

    Args:
        program: Where it was built.
        cores: The cores of the two processes.
    """

    def __init__(self, program: Path, cores: tuple[int, int]) -> None:
        self._program = program
        self._cores = [str(core) for core in cores]

    def samples(self, what: str, count: int, size: int = 0) -> list[int]:
        """Return nanoseconds; `what` and its size are the example's."""
        command = [str(self._program), what, str(count), str(size), *self._cores]
        made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE)
        return [int(line) for line in made.stdout.split()]


@cache
def build() -> Path | None:
    """Build the example; None where there is no cargo."""
    if shutil.which("cargo") is None:
        return None
    command = [
        "cargo",
        "build",
        "--release",
        "--locked",
        "--message-format=json-render-diagnostics",
    ]
    command += ["--package", "shoal-core", "--example", "limits"]
    made = subprocess.run(
        command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=DEADLINE
    )
    built = [json.loads(line).get("executable") for line in made.stdout.splitlines()]
    return Path(next(path for path in built if path is not None))
