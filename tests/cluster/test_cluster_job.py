"""`Cluster` in a running job: its nodes, its managers, and `allocate` for single processes."""

import os
import pickle
import socket
import time

import pytest
import ray

from shoal import Cluster, NodeInfo, Worker, WorkerAddress
from shoal.context import set_context
from shoal.errors import ClusterNotFoundError, NameTakenError, ShoalValueError
from shoal.manager import NodeManager, WorkerManager

pytestmark = pytest.mark.ray


class Probe:
    """A plain class: `allocate` needs no base class."""

    def __init__(self, first=None, second=None):
        self.arguments = first, second

    def look(self, *names):
        return self.arguments, {name: os.environ.get(name) for name in names}


@pytest.fixture
def start(cluster):
    started = []

    def allocate(*args, on=cluster, **kwargs):
        actor = on.allocate(Probe, *args, **kwargs)
        started.append((args[0] if args else kwargs["worker_name"], actor))
        return actor

    yield allocate
    for name, actor in started:
        cluster.release(name)
        ray.kill(actor)


def look(actor, *names):
    return ray.get(actor.look.remote(*names), timeout=30)


def test_the_nodes(cluster):
    (node,) = cluster.nodes
    assert isinstance(node, NodeInfo)
    assert (cluster.num_nodes, cluster._num_nodes, cluster._nodes) == (1, 1, [node])
    assert (node.node_rank, node.node_labels) == (0, ["cluster", "node"])
    assert node.ray_id == ray.get_runtime_context().get_node_id()
    assert node.node_ip == cluster.get_node_ip(0) == cluster.get_node_ip(-1) == cluster.master_addr
    assert node.hostname == socket.gethostname()
    assert node.num_cpus > 0
    assert cluster.get_node_info(0) == node


def test_no_variable_leaves_its_node_but_ours_and_paths(cluster):
    names = set(cluster.nodes[0].default_env_vars)
    assert "PATH" in names
    assert {
        n for n in names if not n.startswith(("SHOAL_", "RLINF_"))
    } <= Cluster.PATH_LIKE_ENV_VARS


def test_accelerators_and_groups(cluster):
    assert (cluster.num_accelerators, cluster.accelerator_ranks) == (0, [[]])
    assert cluster.num_gpus_per_node == cluster._num_gpus_per_node == 0
    assert cluster.get_node_group("node").node_ranks == [0]
    assert len(Cluster.get_alive_nodes()) == 1


def test_one_instance_a_process(cluster):
    assert Cluster() is cluster
    assert Cluster(num_nodes=5) is cluster
    assert Cluster._instance is cluster
    assert Cluster.has_initialized()
    assert Cluster._has_initialized
    assert (cluster.namespace, Cluster.NAMESPACE) == ("shoal", "shoal")
    assert pickle.loads(pickle.dumps(cluster)) is cluster


def test_the_managers_answer(cluster):
    manager = NodeManager.get_proxy()
    assert manager.get_nodes() == cluster.nodes
    assert manager.get_master_ip() == cluster.master_addr == cluster._master_ip
    assert manager.get_master_port() == cluster.master_port == cluster._master_port
    assert NodeManager.get_proxy() is manager
    assert ray.get_actor(WorkerManager.MANAGER_NAME, namespace="shoal")
    with pytest.raises(AttributeError, match="no public method 'nothing'"):
        manager.nothing()
    with socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(("", cluster.master_port))


def test_a_pending_call_of_a_manager_blocks_no_other(cluster):
    manager, never = WorkerManager.get_proxy(), WorkerAddress("never")
    waiting = manager.actor.wait_worker_info.remote(never, 1.0)
    assert manager.get_worker_info(never) is None
    assert ray.get(waiting, timeout=20) is None


SEEN = {
    "NODE_ID": "0",
    "CLUSTER_NODE_RANK": "0",
    "WORKER_NAME": "probe:3",
    "CLUSTER_NAMESPACE": "shoal",
    "X": "1",
    "RAY_ACTOR": "1",
}


def test_allocate_starts_a_process_with_its_variables(start):
    actor = start("probe:3", node_id=0, env_vars={"X": "1"}, cls_args=[1], cls_kwargs={"second": 2})
    assert look(actor, *SEEN) == ((1, 2), SEEN)
    assert ray.get_actor("probe:3", namespace="shoal") == actor


def test_allocate_on_the_class(start):
    assert look(start("probe:4", 0, {}, [1], on=Cluster)) == ((1, None), {})


def test_allocate_resolves_references_and_gives_interpreter_variables(start):
    actor = start("late", 0, {"PYTHONHASHSEED": "7"}, [ray.put("value")])
    assert look(actor, "PYTHONHASHSEED") == (("value", None), {"PYTHONHASHSEED": "7"})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"node_id": 1}, "node 1 does not exist; this cluster has nodes 0 to 0"),
        ({"node_id": -1}, "node -1 does not exist"),
        ({"node_id": "0"}, "node '0' does not exist"),
        ({"node_rank": 0, "node_group_label": "robots"}, "known: cluster, node"),
    ],
)
def test_allocate_refuses_what_is_not_there(start, kwargs, message):
    with pytest.raises(ShoalValueError, match=message):
        start("nowhere", **kwargs)


def test_allocate_refuses_a_name_that_lives(start):
    start("living", 0, {})
    with pytest.raises(NameTakenError, match="'living' belongs to a worker that is alive"):
        start("living", 0, {})


class Attached(Worker):
    def cluster(self):
        made = Cluster()
        return made.num_nodes, made.namespace, made.master_addr, Cluster() is made

    def helper(self):
        actor = Cluster().allocate(Probe, "helper", 0, {"X": "1"}, [5])
        return look(actor, "X")


def test_cluster_in_a_worker_joins_the_job(launch, cluster):
    group = launch(Attached)
    assert group.cluster().wait() == [(1, "shoal", cluster.master_addr, True)]
    assert group.helper().wait() == [((5, None), {"X": "1"})]
    assert cluster.num_nodes == 1


@pytest.mark.nightly
def test_a_worker_of_a_job_that_has_ended_starts_no_other(start, cluster):
    class Orphan:
        def join(self):
            os.environ["CLUSTER_NAMESPACE"] = "shoal_7"
            set_context(namespace="shoal_7")
            try:
                Cluster()
            except ClusterNotFoundError as error:
                return str(error), Cluster.has_initialized()

    actor = cluster.allocate(Orphan, "orphan", 0, {})
    message, initialised = ray.get(actor.join.remote(), timeout=30)
    assert "no job runs in the namespace 'shoal_7': it has ended" in message
    assert not initialised
    ray.kill(actor)


def test_a_proxy_gives_its_limit_to_methods_that_wait(cluster):
    address = WorkerAddress("nobody").get_child_address(0)
    start = time.monotonic()
    # The answer of the method itself, not the proxy's error some seconds later.
    assert WorkerManager.get_proxy(timeout=0.3).wait_worker_info(address) is None
    assert WorkerManager.get_proxy(timeout=60).wait_worker_info(address, 0.1) is None
    assert time.monotonic() - start > 0.3
