"""One cluster for all tests here: a local Ray with one node, started once."""

import pytest
import ray.cloudpickle

from shoal import Cluster, NodePlacementStrategy


@pytest.fixture(scope="session")
def cluster(ray_tmpdir):
    """The job that the tests share; each test closes the groups that it launches."""
    with Cluster(num_nodes=1) as made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def _classes_travel(request):
    """Let workers have the classes of a test module, which they could not import."""
    ray.cloudpickle.register_pickle_by_value(request.module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture
def launch(cluster):
    """Launch `cls` on node 0 as `ranks` workers and wait for them; the test's end closes them.

    `wait=False` returns at once; any other keyword goes to `WorkerGroup.launch`.
    """
    groups = []

    def start(cls, *args, ranks=1, wait=True, kwargs=None, **options):
        group = cls.create_group(*args, **(kwargs or {}))
        groups.append(group)
        return group.launch(cluster, NodePlacementStrategy([0] * ranks), wait=wait, **options)

    yield start
    for group in groups:
        group._close()
