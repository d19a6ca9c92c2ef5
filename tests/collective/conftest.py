"""Fixtures for messages between workers without Ray: crews of processes, on either core."""

import os
from pathlib import Path

import pytest
from ray import cloudpickle

from support.collective_crew import Crew, Nursery, transports_to

TRANSPORTS = ("shm", "torch")
HERE = Path(__file__).parent
LONG = {HERE / f"test_{name}.py" for name in ("broadcast", "deaths", "order")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the variants of the long modules over gloo, and with `async_op`: each has a twin."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        variant = parameters.get("transport") == "torch" or parameters.get("async_op")
        if item.path in LONG and variant:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="module", autouse=True)
def _functions_travel(request):
    """Send the functions of a test by value: workers cannot import the module."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session")
def nursery(backend):
    with Nursery(backend.__name__.rpartition("._")[2]) as made:
        yield made


@pytest.fixture(scope="module", params=TRANSPORTS)
def transport(request):
    return request.param


@pytest.fixture(scope="session")
def folder(tmp_path_factory, request):
    """A folder in memory for sessions, which must be empty at the end."""
    # Its name differs from those of sessions, which are searched before this folder is removed.
    made = Path(f"/dev/shm/p2p-{tmp_path_factory.getbasetemp().name}-{os.getpid()}")
    made.mkdir()
    yield made
    left = list(made.rglob("*"))
    made.rmdir()
    assert not left


@pytest.fixture
def crew(nursery, folder):
    """A crew for one test, on shared memory."""
    with Crew(nursery, SHOAL_SHM_DIR=str(folder)) as made:
        yield made
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def pair(nursery, transport, tmp_path_factory):
    """Two workers, `a:0` and `b:0`, shared by all tests of a module, over one transport."""
    environment = {} if transport == "shm" else {"SHOAL_TRANSPORT": transport}
    with Crew(nursery, **environment) as made:
        a, b = made.member("a:0"), made.member("b:0")
        objects = "shm" if transport == "shm" else "lane"
        assert b.run(transports_to, "a") == (objects, transport)
        yield a, b
