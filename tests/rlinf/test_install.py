"""Imports of `rlinf.scheduler` once shoal serves it: the modules they give, errors and warnings."""

import importlib
import importlib.util
import pickle
import sys
from types import ModuleType

import pytest

import shoal
from shoal.cluster.allocate import hooks
from shoal.cluster.code import named_packages
from shoal.compat.rlinf import install


def run(source: str) -> dict[str, object]:
    scope: dict[str, object] = {}
    exec(source, scope)  # a `from` import in a test would belong to the test's module
    return scope


def test_name_is_the_same_object_by_every_path(rlinf_served):
    scope = run(
        "import rlinf, rlinf.scheduler as short\n"
        "from rlinf import scheduler\n"
        "from rlinf.scheduler import WorkerAddress as a\n"
        "from rlinf.scheduler.manager.worker_manager import WorkerAddress as b\n"
        "c = rlinf.scheduler.worker.WorkerAddress\n"
    )
    assert scope["a"] is scope["b"] is scope["c"] is shoal.WorkerAddress
    assert scope["short"] is scope["scheduler"]


def test_star_import_gives_the_names_that_exist(rlinf_served):
    scope = run("from rlinf.scheduler.placement import *")
    assert scope["NodePlacementStrategy"] is shoal.NodePlacementStrategy
    assert scope["Placement"] is shoal.Placement


def test_install_twice_changes_nothing(clean_imports):
    install()
    finders, registered = list(sys.meta_path), list(hooks)
    install()
    assert sys.meta_path == finders
    assert hooks == registered
    assert hooks.count("shoal.compat.rlinf:install") == 1
    assert named_packages.count("rlinf") == 1  # `SHOAL_CODE_WORKING_DIR` sends this package


def test_hook_for_workers_names_the_function(rlinf_served):
    module, _, function = hooks[-1].partition(":")
    assert getattr(importlib.import_module(module), function) is install


def test_install_after_another_rlinf_is_refused(clean_imports, monkeypatch):
    other = ModuleType("rlinf.scheduler")
    other.__file__ = "/somewhere/rlinf/scheduler/__init__.py"
    monkeypatch.setitem(sys.modules, "rlinf.scheduler", other)
    finders = list(sys.meta_path)
    with pytest.raises(ImportError, match=r"/somewhere/rlinf.*before anything imports it"):
        install()
    assert sys.meta_path == finders
    assert "shoal.compat.rlinf:install" not in hooks


@pytest.fixture
def rlinf_folder(tmp_path):
    """The folder of an RLinf that is not on the path yet."""
    for folder in ("rlinf", "rlinf/scheduler", "rlinf/utils"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(f"origin = {folder!r}\n")
    (tmp_path / "rlinf/utils/own.py").write_text("from rlinf.scheduler import WorkerAddress\n")
    return tmp_path


@pytest.fixture
def installed_rlinf(clean_imports, monkeypatch, rlinf_folder):
    monkeypatch.syspath_prepend(str(rlinf_folder))
    install()


def test_rest_of_an_installed_rlinf_stays_its_own(installed_rlinf):
    scope = run("import rlinf\nfrom rlinf.utils.own import WorkerAddress")
    assert scope["rlinf"].origin == "rlinf"
    assert scope["WorkerAddress"] is shoal.WorkerAddress
    assert not hasattr(sys.modules["rlinf.scheduler"], "origin")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "from rlinf.scheduler.channel.channel_worker import PeekQueue",
            r"has no 'PeekQueue': .* use Channel\.peek_all\(key\)",
        ),
        ("import rlinf.scheduler.channel.channel_worker as m\nm.PeekQueue", "use Channel.peek_all"),
        (
            "from rlinf.scheduler.hardware.robots.two_arms import FrankaConfig",
            r"has no 'two_arms'; import what it has from rlinf\.scheduler\.hardware\.robots: .*Fran",
        ),
        ("from rlinf.scheduler import Workr", "did you mean 'Worker'"),
        (
            "from rlinf.scheduler.channel import ClusterConfig",
            "import it from rlinf.scheduler$",
        ),
        (
            "from rlinf.scheduler import Placement",
            "import it from rlinf.scheduler.placement$",
        ),
        (
            "from rlinf.scheduler.placement import StridedPlacementStrategy",
            r"use PackedPlacementStrategy\(\.\.\., stride=n\)",
        ),
        ("import rlinf.scheduler.wroker", "rlinf.scheduler, as served by shoal .*'wroker'"),
    ],
)
def test_missing_name_is_explained(rlinf_served, source, words):
    with pytest.raises((ImportError, AttributeError), match=words):
        run(source)


@pytest.mark.parametrize(
    "source",
    [
        "import rlinf.missing",
        "import rlinf.utils.missing",
        "from rlinf.missing import X",
        "import rlinf.schedule",
    ],
)
def test_module_that_an_installed_rlinf_lacks_is_not_blamed_on_the_installation(
    installed_rlinf, source
):
    with pytest.raises(ModuleNotFoundError) as caught:
        run(source)
    name = source.split()[1]
    assert str(caught.value) == f"No module named {name!r}"
    assert caught.value.name == name


def test_name_that_an_installed_rlinf_lacks_is_reported_as_by_python(installed_rlinf):
    with pytest.raises(ImportError, match=r"cannot import name 'missing' from 'rlinf\.utils'"):
        run("from rlinf.utils import missing")


def test_programs_can_ask_an_installed_rlinf_for_optional_modules(installed_rlinf):
    assert importlib.util.find_spec("rlinf.missing") is None
    assert importlib.util.find_spec("rlinf.utils") is not None


def test_rlinf_that_comes_to_the_path_too_late_is_named(rlinf_served, monkeypatch, rlinf_folder):
    run("import rlinf.scheduler")
    monkeypatch.syspath_prepend(str(rlinf_folder))
    with pytest.raises(ModuleNotFoundError) as caught:
        run("import rlinf.utils")
    assert f"RLinf ({rlinf_folder}/rlinf/__init__.py) was not on sys.path" in str(caught.value)
    assert "not installed" not in str(caught.value)


@pytest.mark.parametrize("source", ["import rlinf.schedular", "from rlinf.schedulers import X"])
def test_misspelled_scheduler_is_not_blamed_on_the_installation(rlinf_served, source):
    with pytest.raises(ModuleNotFoundError, match=r"; did you mean 'rlinf\.scheduler'\?$"):
        run(source)


@pytest.mark.parametrize(
    "source", ["import rlinf.utils", "from rlinf.data import X", "import rlinf.workers"]
)
def test_rest_of_an_rlinf_that_is_not_installed_is_explained(rlinf_served, source):
    with pytest.raises(ModuleNotFoundError, match=r"rlinf\.scheduler only.*not installed"):
        run(source)


def test_missing_attribute_is_quiet_for_hasattr(rlinf_served):
    module = importlib.import_module("rlinf.scheduler.channel.channel_worker")
    assert not hasattr(module, "PeekQueue")
    assert not hasattr(module, "__wrapped__")


def test_instances_pickle_under_the_name_that_shoal_gives_them(rlinf_served):
    address = run("from rlinf.scheduler import WorkerAddress as A\na = A('g', [1, 2])")["a"]
    data = pickle.dumps(address)
    assert b"rlinf" not in data
    assert pickle.loads(data) == address


def test_other_imports_are_left_alone(rlinf_served):
    assert importlib.util.find_spec("rlinfer") is None
    assert importlib.util.find_spec("json").origin.endswith("__init__.py")
