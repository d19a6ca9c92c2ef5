"""`shoal.shm` on either core, in folders of its own, and programs beside the test."""

import importlib
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import shoal
from shoal import _backend

CORE = ("ShmMessage", "ShmParcel", "ShmPort", "ShmQueue", "ShmReservation", "ShmSession", "shm_gc")
DEADLINE_S = 30
MEMORY = Path("/dev/shm")


@pytest.fixture
def shm(backend, monkeypatch):
    """The public module as it is where this backend was chosen."""
    for name in CORE:
        monkeypatch.setattr(_backend, name, getattr(backend, name))
    ours = [name for name in sys.modules if name == "shoal.shm" or name.startswith("shoal.shm.")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("shoal.shm")
    for name in [name for name in sys.modules if name.startswith("shoal.shm")]:
        del sys.modules[name]


@pytest.fixture
def place():
    """A folder for sessions in memory; nothing may be left in it."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir=MEMORY) as folder:
        yield folder
        assert list(Path(folder).iterdir()) == []


@pytest.fixture
def session(shm, place):
    with shm.Session.create(dir=place, max_bytes=64 * 2**20) as session:
        yield session


@pytest.fixture
def channel(shm, place, monkeypatch):
    """The modules of channels as they are where this core was chosen."""

    def names():
        return [name for name in sys.modules if f"{name}.".startswith("shoal.channel.")]

    monkeypatch.setenv("SHOAL_SHM_DIR", place)
    # So that it is put back, as the modules are.
    monkeypatch.setattr(shoal, "channel", importlib.import_module("shoal.channel"))
    for name in names():
        monkeypatch.delitem(sys.modules, name)
    parts = ("calls", "channel", "facts", "host", "lease", "remote", "replicas", "shared", "want")
    yield SimpleNamespace(
        shm=shm, **{part: importlib.import_module(f"shoal.channel.{part}") for part in parts}
    )
    for name in names():
        del sys.modules[name]


@pytest.fixture
def hosts(channel, monkeypatch):
    """Start a channel's host in a thread; it stands for Ray, whose import takes a second."""
    made = importlib.import_module("support.channel_host").Hosts(channel, monkeypatch)
    yield made
    made.stop()


@pytest.fixture
def start(backend):
    """Start a program with the same backend; it prints a line once it is where it shall be."""
    started = []

    def begin(program, *arguments):
        environment = {**os.environ, "SHOAL_BACKEND": backend.__name__.rpartition("._")[2]}
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def line():
    """Read a program's next line, within a deadline."""

    def read(process):
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
        assert ready, "no line in time"
        text = process.stdout.readline().strip()
        assert text, process.stderr.read()
        return text

    return read
