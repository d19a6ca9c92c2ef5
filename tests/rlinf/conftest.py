"""Fixture that serves `rlinf.scheduler` from shoal for one test and undoes it afterwards."""

import sys

import pytest

from shoal.cluster.allocate import hooks
from shoal.cluster.code import named_packages
from shoal.cluster.stop import stop_by_default
from shoal.compat.rlinf import install


def _imported() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "rlinf"]


@pytest.fixture
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before, stops, packages = list(hooks), list(stop_by_default), list(named_packages)
    assert _imported() == []
    yield
    hooks[:] = before
    stop_by_default[:] = stops
    named_packages[:] = packages
    for name in _imported():
        del sys.modules[name]


@pytest.fixture
def rlinf_served(clean_imports):
    install()
