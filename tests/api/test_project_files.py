"""Files of the project that only services and tools of contributors read."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import shoal

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def load(path: Path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def workflow(name: str) -> dict:
    return load(ROOT / ".github" / "workflows" / name)


def commands(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def pages(nav) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [page for entry in entries for page in pages(entry)]


def test_ci_runs_all_checks_on_every_supported_python():
    job = workflow("ci.yml")["jobs"]["run"]
    assert any(command.startswith(".ci/run ") for command in commands(job))
    pythons = job["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={pythons[0]}"
    assert all(isinstance(python, str) for python in pythons), "3.10 would be read as 3.1"


def test_release_builds_everything_that_its_script_can_build():
    job = workflow("release.yml")["jobs"]["build"]
    script = (ROOT / ".ci" / "release").read_text(encoding="utf-8")
    names = re.search(r"^ALL=\((.*)\)$", script, re.MULTILINE)[1].split()
    assert job["strategy"]["matrix"]["build"] == names
    assert ".ci/release ${{ matrix.build }}" in commands(job)


def test_only_publishing_has_a_permission_to_write():
    jobs = [*workflow("ci.yml")["jobs"].items(), *workflow("release.yml")["jobs"].items()]
    assert {name: job["permissions"] for name, job in jobs if "permissions" in job} == {
        "publish": {"id-token": "write"}
    }
    for name in ("ci.yml", "release.yml"):
        assert workflow(name)["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_issue_form_has_what_such_forms_need(form):
    content = load(form)
    assert {"name", "description", "body"} <= content.keys()
    ids = [field["id"] for field in content["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in content["body"])


def test_pre_commit_hooks_call_tools_of_the_project():
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    hooks = repositories[0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert all(hook["entry"].startswith((".venv/bin/ruff ", "cargo fmt")) for hook in hooks)


def test_site_has_every_page_once():
    listed = pages(load(ROOT / "mkdocs.yml")["nav"])
    assert len(listed) == len(set(listed))
    docs = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    top = {path.name for path in ROOT.glob("*.md")}
    assert set(listed) == docs | top | {"benches/README.md"}


def test_api_page_has_every_public_name():
    text = (ROOT / "docs" / "api" / "shoal.md").read_text(encoding="utf-8")
    names = re.findall(r"^::: shoal\.(\w+)$", text, re.MULTILINE)
    assert sorted(names) == shoal.__all__


def test_changelog_starts_with_the_version():
    cargo = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)(?: - \d{4}-\d\d-\d\d)?$", changelog, re.MULTILINE)
    newest = next(heading for heading in headings if heading != "Unreleased")
    assert newest == cargo["workspace"]["package"]["version"]
