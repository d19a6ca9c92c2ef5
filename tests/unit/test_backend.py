"""The choice of the core by SHOAL_BACKEND: shoal never falls back to another one silently."""

import sys

import pytest

from shoal import _backend
from support.processes import run_program


def run(script, backend=None, *options, hide_extension=False):
    """Run a script with a backend; optionally hide the extension as if it were not installed."""
    hide = (
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'shoal._rust':\n"
        "            raise ModuleNotFoundError(\"No module named 'shoal._rust'\", name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    env = {} if backend is None else {"SHOAL_BACKEND": backend}
    path = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    script = (hide if hide_extension else "") + script
    return run_program(*options, "-c", script, env={**path, **env})


SHOW = "import shoal; print(shoal.backend(), shoal.WorkerAddress.__module__)"


def test_the_pure_core_is_chosen_by_name():
    assert run(SHOW, "pure").stdout.split()[0] == "pure"


def test_an_unknown_name_is_an_error_that_lists_the_choices():
    done = run(SHOW, "fast")
    assert done.returncode == 1
    assert "SHOAL_BACKEND='fast' is not a backend; expected one of rust, pure, auto" in done.stderr


def test_auto_falls_back_with_one_warning():
    done = run(SHOW, "auto", hide_extension=True)
    assert done.stdout.split()[0] == "pure", done.stderr
    assert done.stderr.count("RuntimeWarning: the extension shoal._rust is not installed") == 1


def test_a_missing_extension_is_an_error_if_rust_was_chosen():
    done = run(SHOW, "rust", hide_extension=True)
    assert done.returncode == 1
    assert "ImportError: SHOAL_BACKEND=rust, but the extension shoal._rust is not" in done.stderr


def test_importing_shoal_chooses_no_core():
    assert run("import shoal", "fast").returncode == 0


def test_an_extension_of_another_version_is_an_error(add_version):
    add_version("shoal", "0.0.0")
    with pytest.raises(ImportError, match=r"version .*, the package shoal has version 0\.0\.0"):
        _backend.load("rust")


@pytest.mark.nightly
def test_optimisation_does_not_remove_checks():
    script = (
        "from shoal.ports import hold_port\n"
        "from shoal import WorkerAddress, Cluster\n"
        "for wrong in (lambda: hold_port(1), lambda: WorkerAddress(''), lambda: Cluster(-1)):\n"
        "    try:\n"
        "        wrong()\n"
        "    except AssertionError as error:\n"
        "        print(type(error).__name__, repr(str(error)))\n"
    )
    plain, optimised = run(script), run(f"assert False, 'not stripped'\n{script}", None, "-O")
    assert len(plain.stdout.splitlines()) == 3, plain.stderr
    assert optimised.stdout == plain.stdout, optimised.stderr
