"""Fixtures for unit tests: sessions and channels on either core, and programs beside the test."""

import functools
import importlib.machinery
import select
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from shoal.deadline import Deadline
from shoal.state import hide_process
from support.processes import programs, run_program

DEADLINE_S = 30


@pytest.fixture
def session(shm, place):
    with shm.Session.create(dir=place, max_bytes=64 * 2**20) as session:
        yield session


@pytest.fixture
def cluster():
    """A local cluster of one node without accelerators."""
    with importlib.import_module("shoal.testing").local_cluster() as made:
        yield made


@pytest.fixture
def make_weights_folder(place):
    """Make folders with weights in memory, which are removed at the end."""
    store = importlib.import_module("shoal.weights.store")  # it imports Ray, which takes a second
    folders = []

    def make(keep=2, max_bytes=None):
        folder = Path(place) / f"weights{len(folders)}"
        folder.mkdir()
        folders.append(folder)
        store.Store.create(str(folder), keep, max_bytes)
        return folder

    yield make
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture
def weights_folder(make_weights_folder):
    """A folder with weights."""
    return make_weights_folder()


@pytest.fixture
def snapshot_of(weights_folder):
    """Publish a state, cast to a dtype if one is given, and return its snapshot."""
    layout = importlib.import_module("shoal.weights.layout")
    store = importlib.import_module("shoal.weights.store").Store(str(weights_folder), "the weights")

    def publish(state, dtype=None):
        store.publish(layout.StateLayout(state, dtype), None, Deadline(0))
        return store.latest(1, "a version", Deadline(0))

    return publish


@pytest.fixture
def nodes(place, make_weights_folder, monkeypatch, timing):
    """The folders of weights of two nodes; the second one follows the first."""
    following = importlib.import_module("shoal.weights.following")
    timing("weights", retry_s=0.1, patience_s=0.1, kept_s=0.1)
    made = importlib.import_module("support.weights_nodes").Nodes(place, make_weights_folder)
    monkeypatch.setattr(following, "run_in_thread", made.start)
    yield made
    made.close()


@pytest.fixture
def channel(channel_modules):
    """The modules of channels as they are in a process that chose this core."""
    return channel_modules


@pytest.fixture
def actors(channel, monkeypatch):
    """Start a channel's actor in a thread instead of on Ray, whose import takes a second."""
    made = importlib.import_module("support.channel_actor").Actors(channel, monkeypatch)
    yield made
    made.stop()


@pytest.fixture
def registries():
    """The registries of hardware; what a test registers is forgotten at its end."""
    hardware = importlib.import_module("shoal.hardware")
    known = (
        hardware.Hardware.policy_registry,
        hardware.NodeHardwareConfig.hardware_config_registry,
        hardware.AcceleratorManager.manager_register,
    )
    before = [dict(registry) for registry in known]
    yield
    for registry, kept in zip(known, before, strict=True):
        registry.clear()
        registry.update(kept)


@pytest.fixture
def add_module(monkeypatch):
    """Add a module that can be imported, with some members."""

    def add(name, **members):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)

    return add


@pytest.fixture
def add_version(monkeypatch, tmp_path):
    """Make a package look installed in some version."""

    def add(package, version):
        folder = tmp_path / f"{package}-{version}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
        (folder / "METADATA").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    return add


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def done(request):
    """Call a method with or without `async_op`, and wait for its work."""

    def call(method, *args, **options):
        result = method(*args, async_op=request.param, **options)
        return result.wait(timeout=10) if request.param else result

    return call


@pytest.fixture
def run_python():
    """Run Python with arguments until it ends; return what it printed."""

    def run(*arguments, **options):
        done = run_program(*arguments, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def start(environment):
    """Start a program with the same backend, which prints a line once it is ready."""
    with programs(stderr=subprocess.PIPE, env=environment) as begin:
        yield functools.partial(begin, "-c")


@pytest.fixture
def start_ready():
    """Start a program, wait until it prints that it is ready, and end it with the test."""

    def begin(text, *arguments):
        program = start("-c", text, *arguments)
        assert program.stdout.readline() == "ready\n"
        return program

    with programs() as start:
        yield begin


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """The folder of state pages; this process has no page before the test, and none after it."""
    monkeypatch.setenv("SHOAL_SHM_DIR", str(tmp_path))
    yield tmp_path
    hide_process()


@pytest.fixture
def line():
    """Read a program's next line within a deadline."""

    def read(process):
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
        assert ready, "the program printed no line in time"
        text = process.stdout.readline().strip()
        assert text, process.stderr.read()
        return text

    return read
