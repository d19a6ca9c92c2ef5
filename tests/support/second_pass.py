"""Second pass: a test that failed runs once more, alone on the machine, in a process of its own.

As a pytest plugin it notes failed tests in the file that SHOAL_FAILED_TESTS names, one a line, with
the core that they ran on. As a program it runs the noted tests again:

    python tests/support/second_pass.py FAILED FLAKY

If all pass, their names are appended to the file FLAKY and the exit code is 0. If one fails again,
the exit code is 1; and at once if more failed than one busy moment explains, or something failed
that a second run cannot excuse: a module that cannot be imported, or what tests left behind.
"""

import os
import subprocess
import sys
from pathlib import Path

from support.leaks import LEFT_BEHIND

VARIABLE = "SHOAL_FAILED_TESTS"
MOST_FLAKES = 6
NO_FLAKE = "no flake:"


class _Notes:
    def __init__(self, path: Path, core: str) -> None:
        self._path = path
        self._core = core
        self._noted: set[str] = set()

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            leak = report.when == "teardown" and LEFT_BEHIND in str(report.longrepr)
            self._note(f"{NO_FLAKE} {LEFT_BEHIND}" if leak else f"{self._core} {report.nodeid}")

    def pytest_collectreport(self, report) -> None:
        if report.failed:
            self._note(f"{NO_FLAKE} {report.nodeid} cannot be collected")

    def _note(self, line: str) -> None:
        if line not in self._noted:
            self._noted.add(line)
            with self._path.open("a") as file:  # several runs of pytest append to it at once
                file.write(f"{line}\n")


def pytest_configure(config) -> None:
    path = os.environ.get(VARIABLE)
    # With xdist, the controller gets the reports of all workers.
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Notes(Path(path), config.getoption("--backend")))


def run_again(line: str) -> bool:
    """Run a noted test; return whether it passed."""
    core, _, test = line.partition(" ")
    program = [sys.executable, "-m", "pytest", "--backend", core, "-p", "no:cacheprovider", test]
    environment = {**os.environ, "SHOAL_BACKEND": core}
    for name in (VARIABLE, "PYTHONPATH"):  # the tests' processes have neither
        environment.pop(name, None)
    return subprocess.run(program, env=environment, check=False).returncode == 0


def main(failed: Path, flaky: Path) -> int:
    """Run the second pass."""
    lines = sorted(set(failed.read_text().splitlines())) if failed.exists() else []
    if not lines:
        return 0
    _say(f"\n--- second pass: {len(lines)} tests failed", *lines)
    if len(lines) > MOST_FLAKES or any(line.startswith(NO_FLAKE) for line in lines):
        _say(f"these are no flakes, or more than {MOST_FLAKES}: no second pass")
        return 1
    again = [line for line in lines if not run_again(line)]
    failed.unlink()
    if again:
        _say("\n--- second pass: failed twice", *again)
        return 1
    with flaky.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    return 0


def _say(*lines: str) -> None:
    print(*lines, sep="\n  ", flush=True)  # noqa: T201  (a program's output)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
