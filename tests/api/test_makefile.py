"""The Makefile: its help is complete, and it only redoes steps whose inputs have changed.

Its tools are replaced by programs that record how they were called.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

MAKEFILE = Path(__file__).parents[2] / "Makefile"

_UV = """#!/bin/sh
echo "uv $*" >> "{log}"
if [ "$1" = venv ]; then
  mkdir -p .venv/bin
  printf '#!/bin/sh\\necho "maturin $*" >> "{log}"\\ntouch python/shoal/_rust.abi3.so\\n' > .venv/bin/maturin
  printf '#!/bin/sh\\necho "pytest $SHOAL_BACKEND $*" >> "{log}"\\n' > .venv/bin/pytest
  printf '#!/bin/sh\\necho "mkdocs $*" >> "{log}"\\n' > .venv/bin/mkdocs
  chmod +x .venv/bin/*
  touch .venv/pyvenv.cfg
fi
"""
_CARGO = '#!/bin/sh\necho "cargo $*" >> "{log}"\n'


class Project:
    """A copy of the Makefile in its own folder, with tools that only record their calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        tools = folder / "tools"
        for name in ("tools", "python/shoal", "rust/core/src"):
            (folder / name).mkdir(parents=True)
        for name in (
            "pyproject.toml",
            "requirements.lock",
            "Cargo.toml",
            "Cargo.lock",
            "rust/core/src/lib.rs",
        ):
            (folder / name).touch()
        shutil.copy(MAKEFILE, folder)
        for name, text in {"uv": _UV, "cargo": _CARGO}.items():
            (tools / name).write_text(text.format(log=self.log))
            (tools / name).chmod(0o755)
        self._path = f"{tools}:{os.environ['PATH']}"

    def make(self, *goals: str, backend: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run make as a user does, independent of a make that runs the tests."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        inherited.pop("SHOAL_BACKEND", None)
        environment = {**inherited, "PATH": self._path}
        if backend is not None:
            environment["SHOAL_BACKEND"] = backend
        return subprocess.run(
            ["make", *goals],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self, *goals: str, backend: str | None = None) -> list[str]:
        """Make the goals; return the tool calls since the previous `make`."""
        self.log.write_text("")
        result = self.make(*goals, backend=backend)
        assert result.returncode == 0, result.stderr
        return self.log.read_text().splitlines()

    def touch(self, name: str) -> None:
        """Change a file, with a newer timestamp than everything made so far."""
        newest = max(p.stat().st_mtime for p in self.folder.rglob("*"))
        os.utime(self.folder / name, (newest + 1, newest + 1))


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_help_is_the_default_and_lists_every_target(project):
    text = MAKEFILE.read_text(encoding="utf-8")
    targets = set(re.findall(r"^\.PHONY: (\S+)$", text, re.MULTILINE))
    result = project.make()
    assert result.returncode == 0
    assert set(re.findall(r"^  make (\S+) +\w", result.stdout, re.MULTILINE)) == targets
    assert {"help", "demo", "test", "lint", "bench", "wheel", "clean"} <= targets


def test_setup_makes_environment_then_dependencies_then_extension(project):
    calls = project.calls("setup")
    assert [" ".join(call.split()[:3]) for call in calls] == [
        "uv venv --quiet",
        "uv pip install",
        "maturin develop --profile",
    ]


def test_second_setup_does_nothing(project):
    project.calls("setup")
    assert project.calls("setup") == []


def test_site_installs_its_dependencies_once_and_builds_no_extension(project):
    calls = project.calls("site")
    assert [call.split()[0] for call in calls] == ["uv", "uv", "mkdocs"]
    assert calls[1].endswith("--extra docs")
    assert [call.split()[0] for call in project.calls("site")] == ["mkdocs"]


@pytest.mark.parametrize(
    ("changed", "tools"),
    [
        ("rust/core/src/lib.rs", ["maturin"]),
        ("Cargo.lock", ["maturin"]),
        ("pyproject.toml", ["uv", "maturin"]),
        ("requirements.lock", ["uv", "maturin"]),
    ],
)
def test_change_repeats_what_depends_on_it(project, changed, tools):
    project.calls("setup")
    project.touch(changed)
    assert [call.split()[0] for call in project.calls("setup")] == tools


@pytest.mark.parametrize(
    ("lost", "tools"),
    [
        ("python/shoal/_rust.abi3.so", ["maturin"]),
        (".venv/pyvenv.cfg", ["uv", "uv", "maturin"]),
    ],
)
def test_setup_makes_a_missing_file_again(project, lost, tools):
    project.calls("setup")
    (project.folder / lost).unlink()
    assert [call.split()[0] for call in project.calls("setup")] == tools


def legs(calls: list[str]) -> list[str]:
    """The runs of pytest, without the options that only say how they run."""
    return sorted(call.split(" --num")[0] for call in calls if call.startswith("pytest"))


def test_the_tests_run_on_the_default_core_and_the_vectors_on_both(project):
    calls = project.calls("test")
    gate = "not nightly and not timed"
    assert legs(calls) == [
        f"pytest pure tests --backend pure -m vectors and {gate}",
        f"pytest rust tests --backend rust -m not ray and {gate}",
        f"pytest rust tests --backend rust -m ray and {gate}",
    ]
    compiled = [number for number, call in enumerate(calls) if call.startswith("cargo")]
    tested = [number for number, call in enumerate(calls) if call.startswith("pytest")]
    assert max(compiled) < min(tested)


def test_the_nightly_tests_and_the_gate_leave_nothing_out_between_them(project):
    assert legs(project.calls("test-nightly")) == [
        "pytest rust tests --backend rust -m not ray and nightly and not timed",
        "pytest rust tests --backend rust -m ray and nightly and not timed",
    ]
    assert legs(project.calls("test-timed")) == [
        "pytest rust tests --backend rust -m not ray and timed",
        "pytest rust tests --backend rust -m ray and timed",
    ]
    other, on_ray = legs(project.calls("test-pure"))
    assert on_ray.startswith("pytest pure tests/cluster/test_channel_")
    assert other.startswith("pytest pure tests --backend pure -m core and not ray and not vectors")


def test_benchmarks_run_on_the_build_that_users_get(project):
    project.calls("setup")
    assert [call for call in project.calls("bench") if "maturin" in call] == [
        "maturin develop --profile release --locked --uv"
    ]
    assert [call for call in project.calls("setup") if "maturin" in call] == [
        "maturin develop --profile develop --locked --uv"
    ]


def test_arguments_have_to_select_something(project):
    calls = [call for call in project.calls("test", "ARGS=-k x") if call.startswith("pytest")]
    assert calls[0] == "pytest rust tests --backend rust --collect-only --quiet -k x"
    assert all(call.endswith("-k x") for call in calls)
    assert len(calls) == 4


@pytest.mark.parametrize(("chosen", "rust_tests"), [("rust", True), ("pure", False)])
def test_chosen_backend_restricts_the_tests(project, chosen, rust_tests):
    calls = project.calls("test", backend=chosen)
    found = legs(calls)
    assert len(found) == 2
    assert all(leg.startswith(f"pytest {chosen} tests --backend {chosen}") for leg in found)
    assert any("nextest run" in call for call in calls) is rust_tests


def test_unknown_backend_is_an_error_that_names_the_choices(project):
    result = project.make("test", backend="rusty")
    assert result.returncode == 2
    assert "SHOAL_BACKEND=rusty" in result.stderr
    assert "rust, pure or auto" in result.stderr
