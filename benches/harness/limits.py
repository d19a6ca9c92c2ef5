"""The machine's limits, from the Rust example `limits`: lower bounds for a queue in Python.

The example measures like the processes of `processes.py`: with two processes on the same two cores.
"""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["build", "samples"]

ROOT = Path(__file__).parents[2]
# Seconds before a build or a measurement is given up.
DEADLINE = 600
BUILD = "cargo build --release --locked --message-format=json-render-diagnostics"


def samples(program: Path, mode: str, count: int, size: int, on: tuple[int, int]) -> list[int]:
    """Return `count` samples, in nanoseconds, of a mode of the example.

    Args:
        program: The example.
        mode: The mode.
        count: Number of samples.
        size: Size of a message in bytes.
        on: The two cores.
    """
    command = [str(program), mode, *map(str, (count, size, *on))]
    made = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE)
    return [int(line) for line in made.stdout.split()]


@cache
def build() -> Path | None:
    """Build the example; return None if there is no cargo."""
    if shutil.which("cargo") is None:
        return None
    command = [*BUILD.split(), "--package", "shoal-shm", "--example", "limits"]
    made = subprocess.run(
        command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=DEADLINE
    )
    built = [json.loads(line).get("executable") for line in made.stdout.splitlines()]
    return Path(next(path for path in built if path is not None))
