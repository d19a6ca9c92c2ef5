"""`SHOAL_CODE_WORKING_DIR`: which packages are sent, and how workers prefer them."""

import os
import sys
from types import SimpleNamespace

import pytest

from shoal.bootstrap.code import prefer_shipped, set_shipped, shipped_roots, without_roots
from shoal.cluster.bringup import check_initialised
from shoal.cluster.code import find_code, named_packages
from shoal.errors import ClusterError, CodeFolderError
from shoal.node_probe import ask


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """No repository contains the script or the current folder."""
    for prefix in ("SHOAL_", "RLINF_"):
        monkeypatch.delenv(prefix + "CODE_WORKING_DIR", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())
    packages, roots = list(named_packages), shipped_roots()
    named_packages.clear()
    yield
    named_packages[:] = packages
    set_shipped(roots)


@pytest.fixture
def repository(tmp_path):
    """A repository with two packages."""
    root = tmp_path / "r"
    for package in ("rlinf", "src/other"):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").touch()
    (root / "scripts").mkdir()
    (root / "pyproject.toml").touch()
    return root


def found(monkeypatch, value, name="RLINF_CODE_WORKING_DIR"):
    monkeypatch.setenv(name, str(value))
    return find_code()


@pytest.mark.parametrize("value", ["", "0", "false", "No", "OFF", " 0 "])
def test_nothing_is_sent_if_it_is_off(monkeypatch, value):
    assert find_code() is None
    assert found(monkeypatch, value) is None


def test_a_repository_sends_its_packages(monkeypatch, repository):
    shipment = found(monkeypatch, repository)
    r = str(repository)
    assert shipment.modules == (f"{r}/rlinf", f"{r}/src/other")
    assert shipment.roots == (r, f"{r}/rlinf", f"{r}/src", f"{r}/src/other")


def test_a_named_package_is_sent_alone(monkeypatch, repository):
    named_packages.append("rlinf")
    expected = ((f"{repository}/rlinf",), (str(repository), f"{repository}/rlinf"))
    assert found(monkeypatch, repository) == expected
    assert found(monkeypatch, repository / "rlinf", "SHOAL_CODE_WORKING_DIR") == expected


def test_auto_finds_the_repository_of_the_script(monkeypatch, repository):
    script = repository / "scripts" / "train.py"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__file__=str(script)))
    assert found(monkeypatch, " auto ").modules[0] == f"{repository}/rlinf"


def test_auto_finds_the_repository_of_a_named_package_first(monkeypatch, repository, tmp_path):
    (tmp_path / "own" / "mine").mkdir(parents=True)
    (tmp_path / "own" / "mine" / "__init__.py").touch()
    (tmp_path / "own" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path / "own")
    assert found(monkeypatch, "auto").modules == (f"{tmp_path}/own/mine",)
    named_packages.append("rlinf")
    monkeypatch.syspath_prepend(str(repository))
    monkeypatch.delitem(sys.modules, "rlinf", raising=False)
    assert found(monkeypatch, "auto").modules == (f"{repository}/rlinf",)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            "1",
            ClusterError,
            "RLINF_CODE_WORKING_DIR='1': must be 'auto', an absolute path, or unset",
        ),
        ("true", RuntimeError, "must be 'auto', an absolute path, or unset/0/off"),
        ("rel/path", RuntimeError, "must be 'auto', an absolute path, or unset/0/off"),
        ("auto", RuntimeError, "could not infer the repo root"),
        ("/no/such/folder", FileNotFoundError, "non-directory path"),
        ("/no/such/folder", CodeFolderError, "RLINF_CODE_WORKING_DIR='/no/such/folder'"),
        ("/proc/self", RuntimeError, "expected a repository root"),
    ],
)
def test_other_values_are_errors(monkeypatch, value, error, message):
    with pytest.raises(error, match=message):
        found(monkeypatch, value)


def test_a_repository_without_packages_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "empty" / "pyproject.toml").touch()
    with pytest.raises(ClusterError, match="expected a repository root"):
        found(monkeypatch, tmp_path / "empty")
    with pytest.raises(ClusterError, match="could not infer"):
        found(monkeypatch, "auto")


def test_workers_look_for_shipped_code_before_that_of_their_node(monkeypatch):
    for folder in ("/site", "/r/rlinf/", "/script", "/r"):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", "/ray/pkg:/r:/r/rlinf:/x")
    prefer_shipped(("/r", "/r/rlinf"))
    assert sys.path[:2] + sys.path[-2:] == ["/script", "/site", "/r", "/r/rlinf/"]
    assert os.environ["PYTHONPATH"] == "/ray/pkg:/x"
    assert shipped_roots() == ("/r", "/r/rlinf")
    monkeypatch.setenv("PYTHONPATH", "/r/:/r/rlinf")
    prefer_shipped(("/r", "/r/rlinf"))
    assert "PYTHONPATH" not in os.environ
    assert without_roots("/a:/r/../r:", ("/r",)) == "/a:"


def test_nodes_are_not_asked_with_folders_whose_code_was_sent(monkeypatch):
    set_shipped(["/r"])
    monkeypatch.setenv("PYTHONPATH", "/r:/x")
    (question,) = ask._questions(1, None)
    assert question.python_path == ("/x",)


def test_code_is_not_sent_by_a_ray_that_runs_already():
    with pytest.raises(ClusterError, match=r"already initialised.*'py_modules': \['/r/rlinf'\]"):
        check_initialised("shoal", "shoal", "shoal", ["/r/rlinf"])
