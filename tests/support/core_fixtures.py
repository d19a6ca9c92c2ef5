"""Fixtures of `shoal.shm` and of the channel modules, as in a process that chose one core."""

import importlib
import importlib.util
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import shoal
from shoal import _backend

CORE = [
    name
    for name in _backend.load("rust").__all__
    if name.lower().startswith(("shm", "channel", "lane"))
]
MEMORY = Path("/dev/shm")


@pytest.fixture
def shm(backend, monkeypatch):
    """The public module as it is in a process that chose this backend."""
    for name in CORE:
        monkeypatch.setattr(_backend, name, getattr(backend, name))
    ours = [name for name in sys.modules if name == "shoal.shm" or name.startswith("shoal.shm.")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("shoal.shm")
    for name in [name for name in sys.modules if name.startswith("shoal.shm")]:
        del sys.modules[name]


@pytest.fixture
def environment(backend):
    """The environment of a program that uses the same core."""
    return {**os.environ, "SHOAL_BACKEND": backend.__name__.rpartition("._")[2]}


@pytest.fixture
def timing(monkeypatch):
    """Change seconds of a layer for the test: `timing("channel", tick_s=0.01)`."""

    def change(layer, **seconds):
        name = "shoal.deadline" if layer == "deadline" else f"shoal.{layer}.timing"
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "TIMING", replace(module.TIMING, **seconds))

    return change


@pytest.fixture
def place():
    """A folder for sessions in memory, which must be empty at the end."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir=MEMORY) as folder:
        yield folder
        assert list(Path(folder).iterdir()) == []


class Modules:
    """The modules of the folders `channel` and `queues` by their names, and that of memory."""

    def __init__(self, shm):
        self.shm = shm

    def __getattr__(self, name):
        for package in ("channel", "queues"):
            if importlib.util.find_spec(f"shoal.{package}.{name}"):
                return importlib.import_module(f"shoal.{package}.{name}")
        raise AttributeError(name)


@pytest.fixture
def channel_modules(shm, place, monkeypatch):
    """The modules of channels as they are in a process that chose this core."""

    def names():
        prefixes = ("shoal.channel.", "shoal.queues.")
        return [name for name in sys.modules if f"{name}.".startswith(prefixes)]

    monkeypatch.setenv("SHOAL_SHM_DIR", place)
    for package in ("channel", "queues"):  # restores the attributes at the end, like the modules
        monkeypatch.setattr(shoal, package, importlib.import_module(f"shoal.{package}"))
    for name in names():
        monkeypatch.delitem(sys.modules, name)
    yield Modules(shm)
    for name in names():
        del sys.modules[name]
