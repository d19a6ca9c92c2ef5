"""Settings of a launch: shoal's variables on nodes and in the driver, the namespace, proxies."""

import logging
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from shoal import Cluster, ClusterEnvVar, NodeInfo
from shoal.bootstrap.extension import load_user_extension_module
from shoal.bootstrap.host import LaunchSpec
from shoal.cluster import NodeProbe, without_http_proxies
from shoal.cluster.allocate import Allocation, resolve
from shoal.cluster.bringup import check_initialised
from shoal.cluster.env import DEFAULT_SYS_ENV_VAR, settings_for
from shoal.cluster.job import Job, in_free_namespace
from shoal.cluster.proxies import dashboard_host
from shoal.config import load
from shoal.context import current, set_context
from shoal.errors import ClusterError, NamespaceConflictError, NameTakenError, ShoalValueError
from shoal.manager import NodeManager
from shoal.node_probe.report import NodeReport
from shoal.testing.cluster import LocalCluster
from shoal.topology import build_groups


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SHOAL_", "RLINF_"))]:
        if name != "SHOAL_BACKEND":
            monkeypatch.delenv(name)
    monkeypatch.delenv("CLUSTER_NAMESPACE", raising=False)


# --- variables of shoal ---


def test_the_defaults_are_those_of_the_documents():
    assert Cluster.DEFAULT_SYS_ENV_VAR is DEFAULT_SYS_ENV_VAR
    assert {name.value: value for name, value in DEFAULT_SYS_ENV_VAR.items()} == {
        "CATCH_FAILURE": "0",
        "LOG_LEVEL": "INFO",
        "TIMEOUT": "180",
        "NODE_RANK": None,
        "COMM_NET_DEVICES": None,
        "EXT_MODULE": None,
        "NET_EMULATION": "0",
        "PATH_ENV_MERGE_MODE": "append",
        "CODE_WORKING_DIR": "0",
    }
    assert DEFAULT_SYS_ENV_VAR["LOG_LEVEL"] == "INFO"  # a member is its text


@pytest.fixture
def environment():
    """Return the variables of a worker that shoal sets, on a node with some of its own."""

    def of(own, *, node_rank, before=None):
        nodes = [NodeInfo([], rank, f"{rank}", "10.0.0.1", 8) for rank in range(2)]
        nodes[node_rank].default_env_vars = own
        job = Job("shoal", nodes, build_groups(nodes, None), None, "10.0.0.1", 1)
        request = Allocation(cls=object, worker_name="g:0", node_rank=node_rank)
        reports = [] if before is None else [NodeReport("h", "python", {}, before)]
        env = resolve(job, request, reports).env
        return {k: v for k, v in env.items() if k.startswith(("SHOAL_", "RLINF_"))}

    before = current().node_rank
    set_context(node_rank=0)
    yield of
    set_context(node_rank=before)


def test_a_node_without_a_setting_gets_that_of_the_driver(environment, monkeypatch):
    monkeypatch.setenv("RLINF_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("SHOAL_EXT_MODULE", "mine")
    monkeypatch.setenv("SHOAL_NODE_RANK", "0")
    monkeypatch.setenv("SHOAL_CODE_WORKING_DIR", "auto")
    expected = {"RLINF_LOG_LEVEL": "DEBUG", "SHOAL_EXT_MODULE": "mine"}
    assert environment({}, node_rank=1) == expected
    assert environment({}, node_rank=0) == expected


def test_a_setting_of_a_node_stays_by_either_name(environment, monkeypatch):
    own = {"RLINF_COMM_NET_DEVICES": "eth1"}
    monkeypatch.setenv("SHOAL_COMM_NET_DEVICES", "eth0")
    assert environment(own, node_rank=1) == {}
    # Other nodes do not follow a variable that the driver has changed since its node started.
    assert environment(own, node_rank=1, before={}) == {}
    assert environment(own, node_rank=0, before={}) == {"SHOAL_COMM_NET_DEVICES": "eth0"}


def test_nodes_show_no_state_if_the_driver_shows_none(environment, monkeypatch):
    monkeypatch.setenv("SHOAL_STATE", "0")
    assert environment({}, node_rank=1) == {"SHOAL_STATE": "0"}


def test_the_rank_of_the_driver_s_node_is_not_given_to_others(environment, monkeypatch):
    monkeypatch.setenv("SHOAL_NODE_RANK", "0")
    assert environment({}, node_rank=1, before={}) == {}


def test_defaults_are_not_in_the_environment(environment):
    assert environment({}, node_rank=1, before={}) == {}
    assert settings_for({}) == {}


@pytest.mark.usefixtures("environment")
def test_the_merge_mode_is_that_of_the_node():
    nodes = [NodeInfo([], 0, "0", "10.0.0.1", 8)]
    job = Job("shoal", nodes, build_groups(nodes, None), None, "10.0.0.1", 1)
    request = Allocation(object, "g:0", 0, {"PYTHONPATH": "/c:/a"})
    for mode, merged in (("append", "/c:/a:/b"), ("Override", "/c:/a")):
        nodes[0].default_env_vars = {
            "PYTHONPATH": "/a:/b",
            "RLINF_PATH_ENV_MERGE_MODE": mode,
        }
        assert resolve(job, request, []).env["PYTHONPATH"] == merged
        assert Cluster.get_path_env_merge_mode(nodes[0].default_env_vars) == mode.lower()


def test_folders_of_sent_code_are_not_the_node_s_own(run_python):
    unpacked = "/tmp/ray/session_1/runtime_resources/py_modules_files/_ray_pkg_1"
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from shoal.node_probe.report import probe_node\n"
        "report = probe_node('salt', ['PYTHONPATH'])\n"
        "print(report.variables, sorted(report.fingerprints))"
    )
    for path, own in ((f"{unpacked}:/a", {"PYTHONPATH": "/a"}), (unpacked, {})):
        found = run_python("-c", code, env={"PYTHONPATH": path})
        assert found == f"{own} {sorted(own)}\n"


# --- the namespace ---


def launched(jobs=(), meanwhile=()):
    """Return the namespaces in which a launch tried to start managers."""
    tried = []

    def start(namespace):
        tried.append(namespace)
        if namespace in meanwhile:
            raise NameTakenError("taken")

    in_free_namespace(start, jobs, "shoal")
    return tried


def test_a_job_has_the_first_free_namespace():
    assert launched() == ["shoal"]
    assert launched(["shoal", "shoal_1"]) == ["shoal_2"]
    assert launched(["shoal"], ["shoal_1"]) == ["shoal_1", "shoal_2"]


def test_a_job_has_the_namespace_that_its_driver_names(monkeypatch):
    monkeypatch.setenv("CLUSTER_NAMESPACE", "mine")
    assert launched(["shoal"]) == ["mine"]
    for jobs, meanwhile in ((["mine"], []), ([], ["mine"])):
        with pytest.raises(NameTakenError, match="CLUSTER_NAMESPACE='mine': a live job has"):
            launched(jobs, meanwhile)


def test_a_local_cluster_has_the_named_namespace(monkeypatch):
    before = Cluster.NAMESPACE
    monkeypatch.setenv("CLUSTER_NAMESPACE", "mine")
    with LocalCluster(1) as cluster:
        assert (cluster.namespace, Cluster.NAMESPACE) == ("mine", "mine")
        assert NodeManager.get_runtime_env_vars()["CLUSTER_NAMESPACE"] == "mine"
    assert before == Cluster.NAMESPACE


def test_a_ray_of_the_named_namespace_is_accepted():
    check_initialised("mine", "mine", "shoal", ())
    with pytest.raises(NamespaceConflictError, match="namespace 'mine'"):
        check_initialised("mine", "shoal", "shoal", ())
    # The managers are found by their own namespace.
    check_initialised("shoal", "mine", "shoal", ())


# --- proxies ---


def test_the_dashboard_is_reached_without_a_proxy_and_other_exceptions_stay(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "localhost, .corp")
    monkeypatch.delenv("no_proxy", raising=False)
    with without_http_proxies():
        assert os.environ["NO_PROXY"] == "localhost,.corp,127.0.0.1"
        assert os.environ["no_proxy"] == "127.0.0.1"
        with pytest.raises(KeyError), without_http_proxies():
            raise KeyError
        assert os.environ["no_proxy"] == "127.0.0.1"
    assert os.environ["NO_PROXY"] == "localhost, .corp"
    assert "no_proxy" not in os.environ


def test_blocks_in_several_threads_restore_the_variables(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "a")
    entered, leave = threading.Event(), threading.Event()

    def other():
        with without_http_proxies():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with without_http_proxies():
        thread.start()
        assert entered.wait(60)
    assert os.environ["NO_PROXY"] == "a,127.0.0.1"  # the other thread still needs it
    leave.set()
    thread.join(60)
    assert os.environ["NO_PROXY"] == "a"


@pytest.mark.parametrize(
    ("webui", "gcs", "host"),
    [
        ("http://10.0.0.7:8265", "10.0.0.1:6379", "10.0.0.7"),
        ("10.0.0.7:8265", "10.0.0.1:6379", "10.0.0.7"),
        (None, "10.0.0.1:6379", "10.0.0.1"),
        ("", "[fd00::1]:6379", "fd00::1"),
        (None, None, "127.0.0.1"),
    ],
)
def test_the_host_of_the_dashboard(webui, gcs, host):
    assert dashboard_host(SimpleNamespace(webui_url=webui, gcs_address=gcs)) == host


# --- others ---


def test_nodes_cannot_be_probed_without_ray():
    with pytest.raises(ClusterError, match="not connected to Ray"):
        NodeProbe(1)
    with pytest.raises(ShoalValueError, match="contradicts"):
        NodeProbe(3, load({"num_nodes": 2, "component_placement": {}}))


def test_a_process_that_joins_a_job_collects_no_logs_and_says_so(caplog, tmp_path):
    joined = object.__new__(Cluster)
    joined._job = SimpleNamespace(namespace="theirs")
    joined._begin_logs(str(tmp_path))
    assert joined._distributed_log_collector is None
    assert "has no effect here: this process joined the job 'theirs'" in caplog.text


def test_a_local_cluster_refuses_a_log_folder(tmp_path):
    with pytest.raises(ShoalValueError, match="a local cluster has no logs"):
        LocalCluster(1, distributed_log_dir=str(tmp_path))


def test_a_module_without_register_is_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "registers_nothing.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLINF_EXT_MODULE", "registers_nothing")
    with caplog.at_level(logging.WARNING, "shoal"):
        load_user_extension_module()
        load_user_extension_module()
    assert caplog.text.count("RLINF_EXT_MODULE=registers_nothing: the module has no function") == 1


@pytest.mark.parametrize(
    ("name", "rank", "text"), [("g:0", 0, "0"), ("g:0:1", 1, "0_1"), ("plain", 3, "3")]
)
def test_the_rank_in_the_name_of_a_log(name, rank, text):
    spec = LaunchSpec(name, rank, "shoal", 0, {}, "pure", "C", b"")
    assert spec.log_rank == text


def test_members_of_the_table_are_spelled_as_variables():
    names = [Cluster.get_full_env_var_name(var) for var in DEFAULT_SYS_ENV_VAR]
    assert names[2] == "SHOAL_TIMEOUT"
    others = {ClusterEnvVar.ON_FAILURE, ClusterEnvVar.STATE}
    assert set(DEFAULT_SYS_ENV_VAR) == set(ClusterEnvVar) - others
