"""The hardware part of a launch: a worker's variables, and the command that runs the worker."""

import os
import shlex

import pytest

from shoal import NodeGroupInfo, NodeInfo
from shoal.cluster.allocate import Allocation, _accelerator_env, _interpreter, _laid
from shoal.config import NodeGroupEnvConfig
from shoal.errors import LaunchError, ShoalValueError
from shoal.hardware import ACCELERATOR_HW_TYPE, HardwareInfo, HardwareResource
from shoal.profiling import NsightConfig
from shoal.worker.worker import _set_network_devices


def node(accelerators=2, names=(), egl=(), backends=()):
    infos = [HardwareInfo(ACCELERATOR_HW_TYPE, "NV_GPU:H200")] * accelerators
    resource = HardwareResource(ACCELERATOR_HW_TYPE, infos, list(names), list(egl))
    return NodeInfo(
        [], 0, "id0", "10.0.0.1", 8, "/usr/bin/python3",
        hardware_resources=[resource], profiler_backends=list(backends), hostname="gpu-0",
    )  # fmt: skip


def devices(where, environment=None, **request):
    made = Allocation(object, "g:0", 0, **request)
    return _accelerator_env(where, made, {} if environment is None else environment)


def test_a_placement_decides_which_devices_a_worker_sees():
    env_vars = {"ACCELERATOR_TYPE": "NV_GPU", "VISIBLE_DEVICES": "1,0"}
    env = devices(node(2, ["GPU-a", "GPU-b"], [4, 3]), env_vars=env_vars)
    assert (env["CUDA_VISIBLE_DEVICES"], env["EGL_DEVICE_ID"]) == ("GPU-b,GPU-a", "3")
    assert "LOCAL_ACCELERATOR_RANK" not in env  # the placement decides it


@pytest.mark.parametrize("gpu", [None, -1])
def test_a_worker_without_accelerator_gets_no_variable(gpu):
    assert devices(node(), gpu_id=gpu) == {}
    none = {"ACCELERATOR_TYPE": "NO_ACCEL", "VISIBLE_DEVICES": ""}
    assert devices(node(0), gpu_id=gpu, env_vars=none) == {}


def test_a_worker_that_asks_for_one_accelerator_by_its_rank():
    env = devices(node(2, ["GPU-a", "GPU-b"]), gpu_id=1)
    assert {env[name] for name in ("LOCAL_ACCELERATOR_RANK", "GPU_ID", "VISIBLE_DEVICES")} == {"1"}
    assert (env["CUDA_VISIBLE_DEVICES"], env["ACCELERATOR_MODEL"]) == ("GPU-b", "NV_GPU:H200")


@pytest.mark.parametrize(
    ("where", "gpu", "has"),
    [(node(2), 2, "has 2"), (node(0), 0, "has none"), (node(2), True, "has 2")],
)
def test_a_missing_accelerator_is_refused(where, gpu, has):
    with pytest.raises(ShoalValueError, match=f"accelerator {gpu} does not exist; node 0 {has}"):
        devices(where, gpu_id=gpu)


def test_variables_of_the_worker_win():
    chosen = {"ACCELERATOR_TYPE": "NV_GPU", "VISIBLE_DEVICES": "0"}
    env = devices(node(), {"MUJOCO_GL": "osmesa", "NCCL_CUMEM_ENABLE": "1"}, env_vars=chosen)
    assert "EGL_DEVICE_ID" not in env
    assert env["NCCL_CUMEM_ENABLE"] == "1"


def test_later_layers_win_and_paths_merge():
    laid = _laid({"PATH": "/a", "X": "1", "Y": "1"}, {"PATH": "/b", "X": "2"}, {"X": "3"})
    assert laid == {"PATH": "/b:/a", "X": "3", "Y": "1"}


def interpreter(where, profiling, path=None, name="actor:0"):
    env = [NodeGroupEnvConfig(node_ranks=[0], python_interpreter_path=path)] if path else None
    return _interpreter(where, NodeGroupInfo("g", [where], env_configs=env), name, profiling)


def test_the_interpreter_of_a_group_reaches_the_shell_as_one_word():
    assert interpreter(node(), None) is None
    assert shlex.split(interpreter(node(), None, "/opt/my py/python")) == ["/opt/my py/python"]


def test_a_group_that_is_profiled(tmp_path):
    profiling = NsightConfig(worker_groups=["actor"], output_dir=str(tmp_path))
    where = node(backends=["nsight"])
    for path in (None, "/opt/my py/python"):
        command = shlex.split(interpreter(where, profiling, path))
        assert command[:2] == ["nsys", "profile"]
        assert command[-1] == (path or "/usr/bin/python3")
    assert interpreter(where, profiling, name="rollout:0") is None


def test_a_missing_profiler_is_an_error_that_names_node_and_program():
    profiling = NsightConfig(worker_groups=["all"])
    text = r"actor:0: .*'nsight' is not available on node 0 \(gpu-0\).*'nsys'"
    with pytest.raises(LaunchError, match=text) as caught:
        interpreter(node(), profiling)
    assert isinstance(caught.value, RuntimeError)


@pytest.fixture
def network(monkeypatch):
    """The variables that name network devices, none of them set."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that the test's changes are undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("SHOAL_COMM_NET_DEVICES", "eth1")
    return monkeypatch


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("NO_ACCEL", ["GLOO_SOCKET_IFNAME"]),
        ("NV_GPU", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]),
        ("NPU", ["GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"]),
    ],
)
def test_network_devices_are_set_for_gloo_and_for_the_vendor(kind, names, network):
    _set_network_devices(kind)
    assert sorted(n for n in os.environ if n.endswith("_SOCKET_IFNAME")) == names
    assert {os.environ[name] for name in names} == {"eth1"}


def test_a_network_device_of_the_user_is_kept_with_a_warning(network, caplog):
    network.setenv("NCCL_SOCKET_IFNAME", "ib0")
    _set_network_devices("NV_GPU")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "ib0"
    assert "NCCL_SOCKET_IFNAME=ib0 is kept, although SHOAL_COMM_NET_DEVICES is eth1" in caplog.text
