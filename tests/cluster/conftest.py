"""Fixtures for tests on Ray: one local cluster with one node, and channels and workers on it."""

import contextlib
from pathlib import Path

import pytest
import ray.cloudpickle

from shoal import Channel, Cluster, NodePlacementStrategy
from shoal.errors import ShoalError
from support import channel_peers, processes

PEERS = 3
HERE = Path(__file__).parent
# Their behaviour over a lane has a twin in shared memory, and one without Ray in tests/channel.
LONG = {
    HERE / f"test_channel_{name}.py"
    for name in ("close", "failures", "leases", "rows", "worker_group")
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what the long modules do over a lane, as other nodes do."""
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if item.path in LONG and parameters.get("transport") == "lane":
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session")
def cluster(ray_tmpdir):
    """The job that the tests share; each test closes the groups that it launches."""
    # Ray's processes, including all workers, have the environment of the first test that runs.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(channel_peers.VARIABLE, raising=False)
        made = Cluster(num_nodes=1)
    with made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def _classes_travel(request):
    """Send the classes of a test module by value, because workers cannot import the module."""
    ray.cloudpickle.register_pickle_by_value(request.module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def launch(cluster):
    """Launch `cls` on node 0 as `ranks` workers and wait for them.

    The groups are closed when the test ends. `wait=False` returns at once; any other keyword goes
    to `WorkerGroup.launch`.
    """
    groups = []

    def start(cls, *args, ranks=1, wait=True, kwargs=None, **options):
        group = cls.create_group(*args, **(kwargs or {}))
        groups.append(group)
        return group.launch(cluster, NodePlacementStrategy([0] * ranks), wait=wait, **options)

    yield start
    for group in groups:
        group._close()


# Channels. Starting an actor takes longer than most tests, so tests share the channels that have the
# same arguments, and each test uses its own keys.


@pytest.fixture(params=["shm", "lane"])
def transport(request, monkeypatch):
    """The transport by which the test and its workers reach channels (except local ones)."""
    if request.param != "local":
        monkeypatch.setenv(channel_peers.VARIABLE, request.param)
    return request.param


@pytest.fixture
def key(request):
    """A key that no other test uses."""
    return request.node.name


@pytest.fixture(scope="session")
def _hosts(cluster):
    made = {}
    yield made
    for channel in made.values():
        with contextlib.suppress(ShoalError):
            channel.delete()


@pytest.fixture
def channel(request, transport):
    """Return a channel: one shared with other tests, or a `private` one, deleted at the end."""
    own = []

    def make(maxsize=0, *, private=False, **options):
        if transport == "local":
            return Channel.create("local", maxsize, local=True, **options)
        if private:
            request.getfixturevalue("cluster")
            name = options.pop("name", f"{request.node.name}-{len(own)}")
            own.append(Channel.create(name, maxsize, **options))
            return own[-1]
        hosts = request.getfixturevalue("_hosts")
        config = (maxsize, *sorted(options.items()))
        if config not in hosts:
            hosts[config] = Channel.create(f"tests-{len(hosts)}", maxsize, **options)
        return Channel.connect(hosts[config].name)

    yield make
    for one in own:
        with contextlib.suppress(ShoalError):
            one.delete()


@pytest.fixture(scope="session")
def _channels_travel():
    for module in (channel_peers, processes):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (channel_peers, processes):
        ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="session")
def _peers(cluster, _channels_travel):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(channel_peers.VARIABLE, raising=False)
        group = channel_peers.Peer.create_group()
        group.launch(cluster, NodePlacementStrategy([0] * PEERS), "channel-peers", wait=True)
    yield group
    group._close()


@pytest.fixture
def peers(_peers, transport):
    """Workers that run functions on channels for the test."""
    return channel_peers.Peers(_peers, transport)


@pytest.fixture
def victims(cluster, transport, _channels_travel):
    """Processes that a test kills."""
    made = channel_peers.Victims(transport)
    yield made
    made.kill_all()
