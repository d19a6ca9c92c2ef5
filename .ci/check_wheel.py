"""Checks that a wheel holds the files that users and type checkers need, and no other files."""

import sys
import zipfile
from pathlib import Path

NEEDED = (
    "shoal/__init__.py", "shoal/_rust.abi3.so", "shoal/_rust.pyi", "shoal/py.typed",
    "shoal/planner/page.css", "shoal/planner/page.js",
)  # fmt: skip
NEEDED_ENDS = ("licenses/LICENSE", "/METADATA")


def problems(names: list[str]) -> list[str]:
    """Return the missing and the superfluous files of a wheel with these files."""
    found = [f"{name} is missing" for name in NEEDED if name not in names]
    found += [
        f"no file ends in {end}"
        for end in NEEDED_ENDS
        if not any(name.endswith(end) for name in names)
    ]
    found += [
        f"{name} does not belong there"
        for name in names
        if not name.startswith(("shoal/", "shoal-", "shoal.libs/")) or "__pycache__" in name
    ]
    return found


def main() -> int:
    """Check the wheel that the command line names."""
    wheel = Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as archive:
        wrong = problems(archive.namelist())
    if "-abi3-" not in wheel.name:
        wrong.append("it is not built for every Python from 3.11 on (abi3)")
    for line in wrong:
        print(f"{wheel.name}: {line}", file=sys.stderr)  # noqa: T201  (the output of a program)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
