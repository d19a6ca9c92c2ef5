"""Accelerators of all vendors, with fakes of the vendors' libraries."""

import contextlib
import os
import sys
import threading
import types
from pathlib import Path

import pytest

from shoal import CollectiveGroupOptions
from shoal.errors import ShoalValueError
from shoal.hardware import (
    Accelerator,
    AcceleratorManager,
    AcceleratorType,
    AcceleratorUtil,
    HardwareInfo,
    visibility_env,
)
from shoal.hardware.accelerators import complete_environment, nvidia

VISIBLE = {
    "NV_GPU": "CUDA_VISIBLE_DEVICES",
    "AMD_GPU": "HIP_VISIBLE_DEVICES",
    "INTEL_GPU": "ONEAPI_DEVICE_SELECTOR",
    "NPU": "ASCEND_RT_VISIBLE_DEVICES",
    "MUSA_GPU": "MUSA_VISIBLE_DEVICES",
    "KUNLUN_XPU": "CUDA_VISIBLE_DEVICES",
}
VENDORS = list(VISIBLE)
# The class that is imported for each vendor's library.
RAY_CLASSES = {
    "AMD_GPU": "AMDGPUAcceleratorManager",
    "INTEL_GPU": "IntelGPUAcceleratorManager",
    "NPU": "NPUAcceleratorManager",
}


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNVML(types.ModuleType):
    """Fake NVML: `names` of the GPUs, `parts` of divided GPUs, or the error of its start."""

    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVMLError = NVMLError

    def __init__(self):
        super().__init__("pynvml")
        self.names, self.parts, self.error, self.running = [], {}, None, 0
        self.nvmlInit = self.start
        self.nvmlShutdown = self.stop
        self.nvmlDeviceGetCount = lambda: len(self.names)
        self.nvmlDeviceGetHandleByIndex = lambda index: (index, None)
        self.nvmlDeviceGetName = self.name_of
        self.nvmlDeviceGetUUID = self.uuid_of
        self.nvmlDeviceGetMigMode = self.mig_mode
        self.nvmlDeviceGetMaxMigDeviceCount = lambda _: 7
        self.nvmlDeviceGetMigDeviceHandleByIndex = self.part_of

    def start(self):
        if self.error is not None:
            raise NVMLError(self.error)
        self.running += 1

    def stop(self):
        self.running -= 1

    def name_of(self, handle):
        index, part = handle
        return self.names[index] + ("" if part is None else " MIG 3g.40gb")

    def uuid_of(self, handle):
        index, part = handle
        return f"GPU-{index}" if part is None else f"MIG-{index}-{part}".encode()

    def mig_mode(self, handle):
        if handle[0] not in self.parts:
            raise NVMLError(3)
        return 1, 1

    def part_of(self, handle, number):
        if number >= self.parts[handle[0]]:
            raise NVMLError(6)
        return handle[0], number


@pytest.fixture
def vendors(monkeypatch, tmp_path, add_module):
    """Fakes of all vendors' libraries, none with a device; `vendors("NPU", 2, "X")` gives some.

    The number may be a function, which the library calls.
    """
    for name in [*VISIBLE.values(), "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "NVIDIA_VISIBLE_DEVICES"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("shoal.hardware.accelerators.accelerator.egl_ids", lambda *_: [])
    driver = tmp_path / "driver"
    monkeypatch.setattr(nvidia, "_DRIVER", driver)
    monkeypatch.syspath_prepend(str(tmp_path))
    # For torch_xmlir, which runs in a separate process.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    counts = dict.fromkeys(VENDORS, 0)
    models = dict.fromkeys(VENDORS, "")
    errors: dict[str, Exception] = {}

    def answer(kind):
        if kind in errors:
            raise errors[kind]
        count = counts[kind]
        return count() if callable(count) else count

    def ray_class(kind):
        return types.SimpleNamespace(
            get_current_node_num_accelerators=lambda: answer(kind),
            get_current_node_accelerator_type=lambda: models[kind] or None,
        )

    add_module(
        "ray._private.accelerators",
        **{name: ray_class(kind) for kind, name in RAY_CLASSES.items()},
    )
    add_module(
        "pymtml",
        mtmlLibraryInit=lambda: None,
        mtmlLibraryShutDown=lambda: None,
        mtmlLibraryCountDevice=lambda: answer("MUSA_GPU"),
        mtmlLibraryInitDeviceByIndex=lambda index: index,
        mtmlDeviceGetName=lambda handle: models["MUSA_GPU"].encode(),
    )
    nvml = FakeNVML()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)

    def give(kind, count, model="M1", error=None):
        counts[kind], models[kind] = count, model
        if error is not None:
            errors[kind] = error
        if kind == "NV_GPU":
            driver.mkdir(exist_ok=True)
            (driver / "version").touch()
            nvml.names = [f"NVIDIA {model}"] * count
            nvml.error = None if error is None else 999
        if kind == "KUNLUN_XPU":
            (tmp_path / "torch_xmlir.py").write_text(f"raise {error!r}\n" if error else "")
            (tmp_path / "torch.py").write_text(
                "class cuda:\n"
                f"    device_count = staticmethod(lambda: {count})\n"
                f"    get_device_name = staticmethod(lambda i: {model!r})\n"
            )
        return nvml

    return give


@pytest.mark.parametrize("kind", VENDORS)
def test_a_node_has_the_devices_that_the_library_of_the_vendor_reports(kind, vendors):
    vendors(kind, 4, "M1")
    found = Accelerator.enumerate(0)
    assert (found.type, found.count, found.device_names) == ("Accelerator", 4, [])
    assert found.infos == [HardwareInfo("Accelerator", f"{kind}:M1")] * 4
    assert "torch_xmlir" not in sys.modules


@pytest.mark.parametrize("kind", VENDORS)
def test_the_variable_of_the_node_selects_devices(kind, vendors, monkeypatch):
    # Of four devices, a library that obeys the variable reports two.
    obeyed = AcceleratorManager.manager_register[AcceleratorType(kind)].RESTRICTIONS.obeyed
    vendors(kind, 2 if obeyed else 4)
    monkeypatch.setenv(VISIBLE[kind], "2,3")
    assert Accelerator.enumerate(0).device_names == ["2", "3"]


def test_a_node_without_devices(vendors):
    assert Accelerator.enumerate(0) is None


@pytest.mark.parametrize("kind", VENDORS)
def test_a_library_that_fails_has_no_devices_and_is_named(kind, vendors, caplog):
    vendors(kind, 4, error=RuntimeError("broken"))
    assert Accelerator.enumerate(0) is None
    assert f"no {kind} devices are used here" in caplog.text


def test_a_library_that_hangs_has_a_deadline(vendors, timing, caplog):
    timing("hardware", ask_s=0.2)
    answer = threading.Event()
    vendors("NPU", answer.wait)
    assert Accelerator.enumerate(0) is None
    answer.set()
    assert "the library of NPU devices did not answer within 0.2 s" in caplog.text


def test_the_first_vendor_with_devices_is_used(vendors):
    order = ["AMD_GPU", "NPU", "INTEL_GPU", "KUNLUN_XPU", "MUSA_GPU", "NV_GPU"]
    assert [kind.value for kind in AcceleratorManager.manager_register] == order
    for kind in reversed(order):
        vendors(kind, 1)
        assert Accelerator.enumerate(0).infos[0].model.partition(":")[0] == kind


def test_an_incomplete_vendor_is_refused(registries):
    class Acme(AcceleratorManager):
        CCL_BACKEND, CCL_IFNAME = "accl", "ACCL_IFNAME"

    lacks = (
        r"Acme lacks RESTRICTIONS \(or get_accelerator_env_var\(\)\), "
        r"TORCH_DEVICE \(or get_device_type\(\)\), ask \(or get_num_devices\(\)\)$"
    )
    with pytest.raises(ShoalValueError, match=lacks):
        AcceleratorManager.register_manager("ACME")(Acme)
    with pytest.raises(ShoalValueError, match=r"object .* derive it from AcceleratorManager"):
        AcceleratorManager.register_manager("ACME")(object)
    for name in (3, "", "A B", "A:B", "NO_ACCEL"):
        with pytest.raises(ShoalValueError, match=f"{name!r} is not a name for an accelerator"):
            AcceleratorManager.register_manager(name)
    assert "ACME" not in AcceleratorManager.manager_register
    with pytest.raises(ShoalValueError, match="NPU is registered already, by AscendNPUManager"):
        AcceleratorManager.register_manager(AcceleratorType.NPU)(object)


def test_a_class_with_attributes_answers_by_the_names_of_static_methods(vendors, monkeypatch):
    vendors("NV_GPU", 2, "H100")
    manager = AcceleratorManager.manager_register[AcceleratorType.NV_GPU]
    assert (manager.get_num_devices(), manager.get_accelerator_model()) == (2, "H100")
    assert manager.get_accelerator_type() == AcceleratorType.NV_GPU
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert (manager.get_num_devices(), manager.get_visible_devices()) == (1, [1])


# --- NVIDIA ---


def test_parts_of_gpus_are_devices(vendors):
    nvml = vendors("NV_GPU", 2, "H100")
    nvml.parts = {0: 2}
    found = Accelerator.enumerate(0)
    assert found.device_names == ["MIG-0-0", "MIG-0-1", "GPU-1"]
    assert found.infos[0].model == "NV_GPU:H100 MIG 3g.40gb"
    assert nvml.running == 0


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-16GB"),
        ("NVIDIA", "UNKNOWN"),
    ],
)
def test_names_of_gpus_are_shortened(name, model):
    assert nvidia._short(name) == model


def test_without_nvmls_library_the_kernel_is_asked(vendors, monkeypatch):
    nvml = vendors("NV_GPU", 1)
    nvml.error = nvml.NVML_ERROR_LIBRARY_NOT_FOUND
    for bus in ("0000:1a:00.0", "0000:0b:00.0"):
        folder = nvidia._DRIVER / "gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t NVIDIA A100\nGPU UUID: \t GPU-{bus[5:7]}\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1a")
    found = Accelerator.enumerate(0)
    assert (found.infos[0].model, found.device_names) == ("NV_GPU:A100", ["GPU-1a"])


def test_a_failing_nvml_without_a_driver_is_not_logged(vendors, caplog):
    sys.modules["pynvml"].error = 9
    assert Accelerator.enumerate(0) is None
    assert caplog.text == ""


# --- AMD, Intel ---


def test_rocm_numbers_the_devices_that_it_shows_from_0(vendors, monkeypatch):
    vendors("AMD_GPU", 8)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "4,5,6")
    found = Accelerator.enumerate(0)
    assert (found.count, found.device_names) == (3, [])
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,2")
    assert Accelerator.enumerate(0).device_names == ["1", "2"]


@pytest.mark.parametrize("selector", ["level_zero:gpu", "*:*", "level_zero:*"])
def test_a_selector_of_all_devices_selects_all(selector, vendors, monkeypatch):
    vendors("INTEL_GPU", 2)
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", selector)
    assert Accelerator.enumerate(0).device_names == []
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "level_zero:2,3")
    assert Accelerator.enumerate(0).device_names == ["2", "3"]


# --- what a worker sees ---

NOT_SET_BY_RAY = {
    "NV_GPU": ["CUDA"],
    "AMD_GPU": ["ROCR", "HIP"],
    "INTEL_GPU": [],
    "NPU": ["ASCEND_RT"],
    "MUSA_GPU": ["MUSA"],
    "KUNLUN_XPU": ["CUDA"],
}
NVIDIAS_OWN = {"MUJOCO_EGL_DEVICE_ID": "1", "EGL_DEVICE_ID": "1", "NCCL_CUMEM_ENABLE": "0"}


@pytest.mark.parametrize("kind", VENDORS)
def test_variables_of_each_vendor(kind, monkeypatch):
    stop_ray = {
        f"RAY_EXPERIMENTAL_NOSET_{name}_VISIBLE_DEVICES": "1" for name in NOT_SET_BY_RAY[kind]
    }
    if kind == "INTEL_GPU":
        stop_ray = {"RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR": "1"}
    monkeypatch.setenv("MUJOCO_GL", "egl")
    expected = {VISIBLE[kind]: "1,3"} | stop_ray | (NVIDIAS_OWN if kind == "NV_GPU" else {})
    assert visibility_env(kind, ["1", "3"]) == expected
    assert AcceleratorUtil.get_accelerator_env_var(AcceleratorType(kind), ["1", "3"]) == expected
    vendor = AcceleratorManager.manager_register[AcceleratorType(kind)]
    assert vendor.get_accelerator_env_var(["1", 3]) == expected
    with pytest.raises(ShoalValueError, match="one"):
        vendor.get_accelerator_env_var(["one"])
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    without_egl = {name: expected[name] for name in expected if "EGL" not in name}
    assert vendor.get_accelerator_env_var(["1", 3]) == without_egl


@pytest.mark.parametrize("kind", VENDORS)
def test_variables_have_the_names_that_the_node_uses(kind):
    names = ["GPU-a", "GPU-b", "7"]
    assert visibility_env(kind, ["1", "2"], names)[VISIBLE[kind]] == "GPU-b,7"
    assert visibility_env(kind, [], names)[VISIBLE[kind]] == ""
    with pytest.raises(ShoalValueError, match=r"device 3 does not exist; the node has GPU-a, GPU-"):
        visibility_env(kind, ["3"], names)


@pytest.mark.parametrize("kind", VENDORS)
def test_devices_may_be_named_by_their_unique_names(kind):
    # A process reads such names from its own variable and may pass them on.
    assert visibility_env(kind, ["GPU-b"])[VISIBLE[kind]] == "GPU-b"
    names = ["GPU-a", "GPU-b"]
    env = visibility_env(kind, ["GPU-b", 0], names, egl_ids=[7, 8])
    assert env[VISIBLE[kind]] == "GPU-b,GPU-a"
    assert env.get("EGL_DEVICE_ID") == ("8" if kind == "NV_GPU" else None)
    with pytest.raises(ShoalValueError, match=r"device GPU-c does not exist; the node has GPU-a"):
        visibility_env(kind, ["GPU-c"], names)


@pytest.mark.parametrize("name", ["x", "-1", "", "1.5", None, True, 1.5, -1])
@pytest.mark.parametrize("names", [[], ["GPU-a", "GPU-b"]])
def test_an_invalid_device_is_refused(name, names):
    with pytest.raises(ShoalValueError, match=r"^NV_GPU device .*(is not a device|not exist)"):
        visibility_env("NV_GPU", [name], names)


def test_a_text_of_devices_and_an_unknown_type_are_refused():
    with pytest.raises(ShoalValueError, match=r"expected a list of hardware ranks, not '0,1'"):
        visibility_env("NV_GPU", "0,1")
    with pytest.raises(ShoalValueError, match=r"no accelerator type 'NV_GPUS'.*mean 'NV_GPU'"):
        visibility_env("NV_GPUS", ["0"])


def test_without_accelerators_there_are_no_variables():
    assert visibility_env("NO_ACCEL", []) == {}
    assert AcceleratorUtil.get_accelerator_env_var("NO_ACCEL", []) == {}
    assert "EGL_DEVICE_ID" not in visibility_env("NV_GPU", [])


@pytest.mark.parametrize(
    ("names", "ids", "egl"),
    [
        ([], [3, 2, 1, 0], "1"),
        ([], [], "2"),
        ([], [3, 2, -1, 0], "2"),
        (["4", "5", "6", "7"], [], "6"),
        (["GPU-a", "GPU-b", "GPU-c", "GPU-d"], [], "2"),
        (["GPU-a", "GPU-b", "GPU-c", "GPU-d"], [0, 1, 5, 6], "5"),
    ],
)
def test_rendering_happens_on_the_workers_first_gpu(names, ids, egl):
    env = visibility_env("NV_GPU", ["2", "3"], names, egl_ids=ids)
    assert (env["MUJOCO_EGL_DEVICE_ID"], env["EGL_DEVICE_ID"]) == (egl, egl)


@pytest.mark.parametrize("way", ["osmesa", "glx", "GLX"])
def test_rendering_without_egl_needs_no_device(way):
    env = visibility_env("NV_GPU", ["0"], environment={"MUJOCO_GL": way})
    assert not {"MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID"} & set(env)
    assert "EGL_DEVICE_ID" in visibility_env("NV_GPU", ["0"], environment={"MUJOCO_GL": "egl"})


def test_a_users_value_for_the_allocator_of_nccl_is_kept(caplog):
    for _ in range(2):
        env = visibility_env("NV_GPU", ["0"], environment={"NCCL_CUMEM_ENABLE": "mine"})
        assert env["NCCL_CUMEM_ENABLE"] == "mine"
    assert caplog.text.count("NCCL_CUMEM_ENABLE=mine is kept") == 1  # it is logged once per process


@pytest.mark.parametrize(
    ("version", "expected"), [("2.7.1+cu128", "1"), ("2.8.0", None), ("2.15.0", None)]
)
def test_older_versions_of_torch_keep_references(version, expected, monkeypatch, add_version):
    add_version("torch", version)
    monkeypatch.setenv("ACCELERATOR_TYPE", "NV_GPU")
    monkeypatch.setenv("TORCH_NCCL_AVOID_RECORD_STREAMS", "")  # so that the test's end restores it
    monkeypatch.delenv("TORCH_NCCL_AVOID_RECORD_STREAMS")
    complete_environment()
    assert os.environ.get("TORCH_NCCL_AVOID_RECORD_STREAMS") == expected


# --- the rest of AcceleratorUtil ---


@pytest.mark.parametrize(
    ("kind", "ccl", "ifname", "device"),
    [
        ("NV_GPU", "nccl", "NCCL_SOCKET_IFNAME", "cuda"),
        ("AMD_GPU", "nccl", "NCCL_SOCKET_IFNAME", "cuda"),
        ("INTEL_GPU", "ccl", "CCL_MNIC_NAME", "xpu"),
        ("NPU", "hccl", "HCCL_SOCKET_IFNAME", "npu"),
        ("MUSA_GPU", "mccl", "MCCL_SOCKET_IFNAME", "musa"),
        ("KUNLUN_XPU", "bkcl", "BKCL_SOCKET_IFNAME", "cuda"),
        ("NO_ACCEL", None, "GLOO_SOCKET_IFNAME", None),
    ],
)
def test_names_that_frameworks_use(kind, ccl, ifname, device):
    assert AcceleratorUtil.get_ccl_backend(kind) == ccl
    assert AcceleratorUtil.get_ccl_socket_ifname_env_var(kind) == ifname
    assert AcceleratorUtil.get_device_type(kind) == device


@pytest.mark.parametrize("kind", VENDORS)
def test_the_module_of_torch_needs_the_package_of_the_vendor(kind, monkeypatch, add_module):
    vendor = AcceleratorManager.manager_register[AcceleratorType(kind)]
    platform = types.SimpleNamespace()
    add_module("torch", **{vendor.TORCH_DEVICE: platform})
    if vendor.TORCH_EXTENSION:
        monkeypatch.delitem(sys.modules, vendor.TORCH_EXTENSION, raising=False)
        with pytest.raises(ImportError, match=vendor.TORCH_EXTENSION):
            AcceleratorUtil.get_torch_platform(kind)
        add_module(vendor.TORCH_EXTENSION)
    assert AcceleratorUtil.get_torch_platform(kind) is vendor.get_torch_platform() is platform
    platform.ipc_collect()  # exists, without effect
    assert AcceleratorUtil.get_torch_platform("NO_ACCEL") is None


def test_the_variables_of_rendering_have_a_name():
    env = visibility_env("NV_GPU", ["3"])
    assert [env[name] for name in nvidia.EGL_DEVICE_ID_ENV_VARS] == ["3", "3"]


def test_the_options_of_nccl(add_module):
    made = types.SimpleNamespace(config=types.SimpleNamespace())
    nccl = types.SimpleNamespace(Options=lambda **given: vars(made).update(given) or made)
    add_module("torch.distributed", ProcessGroupNCCL=nccl)
    options = CollectiveGroupOptions(
        accel_cluster_size=2, accel_max_ctas=16, accel_min_ctas=4, is_high_priority_stream=True
    )
    assert AcceleratorUtil.get_accel_pg_options("NV_GPU", options) is made
    assert made.is_high_priority_stream
    assert vars(made.config) == {"cga_cluster_size": 2, "max_ctas": 16, "min_ctas": 4}


@pytest.mark.parametrize("kind", [*VENDORS, "NO_ACCEL"])
def test_defaults_need_no_options(kind):
    assert AcceleratorUtil.get_accel_pg_options(kind, None) is None
    assert AcceleratorUtil.get_accel_pg_options(kind, CollectiveGroupOptions()) is None


@pytest.mark.parametrize("kind", VENDORS)
def test_the_visible_devices_are_read_back(kind, monkeypatch):
    monkeypatch.setenv(VISIBLE[kind], "0,2")
    assert AcceleratorUtil.get_visible_devices(kind) == [0, 2]
    monkeypatch.setenv(VISIBLE[kind], "GPU-a,MIG-b")
    if kind != "INTEL_GPU":
        assert AcceleratorUtil.get_visible_devices(kind) == ["GPU-a", "MIG-b"]
    monkeypatch.setenv(VISIBLE[kind], "0,one")
    with pytest.raises(ShoalValueError, match="'one' is not a device; expected numbers or unique"):
        AcceleratorUtil.get_visible_devices(kind)
    monkeypatch.delenv(VISIBLE[kind])
    assert AcceleratorUtil.get_visible_devices(kind) == []


def test_the_type_of_a_model():
    assert Accelerator.get_accelerator_type_from_model("NPU:Ascend910B") is AcceleratorType.NPU
    for wrong in ("NPU", "NPU:a:b", "GPU:x"):
        with pytest.raises(AssertionError, match="expected one like NV_GPU:H200"):
            Accelerator.get_accelerator_type_from_model(wrong)


@pytest.mark.parametrize("kind", ["NV_GPU", "AMD_GPU"])
def test_ranges_are_marked_while_the_profiler_records(kind, add_module, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "nvtx", None)  # it is not installed
    calls = []
    nvtx = types.SimpleNamespace(range_push=calls.append, range_pop=lambda: calls.append("pop"))
    actions = {name: lambda name=name: calls.append(name) for name in ("start", "stop")}
    profiler = types.SimpleNamespace(**actions)
    add_module("torch.cuda", profiler=profiler, nvtx=nvtx)
    with AcceleratorUtil.profiling_range(kind, "before"):
        pass
    vendor = AcceleratorManager.manager_register[AcceleratorType(kind)]
    active = [vendor.is_profiling_active()]
    AcceleratorUtil.stop_profiling(kind)  # it does not record
    with caplog.at_level("INFO", "shoal"):
        AcceleratorUtil.start_profiling(kind, 3)
    assert "profiling: step 3" in caplog.text
    AcceleratorUtil.start_profiling(kind, 4)  # it records already
    active.append(vendor.is_profiling_active())
    with pytest.raises(KeyError), AcceleratorUtil.profiling_range(kind, "step"):
        raise KeyError
    AcceleratorUtil.stop_profiling(kind)
    assert [*active, vendor.is_profiling_active()] == [False, True, False]
    assert calls == ["start", "step", "pop", "stop"]


def test_ranges_have_colours_and_domains_where_nvtx_is_installed(add_module):
    begun = []

    @contextlib.contextmanager
    def annotate(label, **options):
        begun.append((label, options))
        yield

    actions = {name: lambda: None for name in ("start", "stop")}
    add_module("torch.cuda", profiler=types.SimpleNamespace(**actions))
    add_module("nvtx", annotate=annotate)
    AcceleratorUtil.start_profiling("NV_GPU")
    with AcceleratorUtil.profiling_range("NV_GPU", "step", "red", "shoal"):
        pass
    AcceleratorUtil.stop_profiling("NV_GPU")
    assert begun == [("step", {"color": "red", "domain": "shoal"})]


@pytest.mark.parametrize("kind", ["NPU", "NO_ACCEL"])
def test_other_vendors_have_no_ranges(kind):
    AcceleratorUtil.start_profiling(kind)
    assert not AcceleratorManager.is_profiling_active()
    with AcceleratorUtil.profiling_range(kind, "step"):
        pass
    AcceleratorUtil.stop_profiling(kind)


@pytest.mark.gpu
@pytest.mark.skipif(
    not Path("/proc/driver/nvidia/version").exists(), reason="there is no NVIDIA driver here"
)
def test_on_a_machine_with_nvidia_gpus():
    import torch

    found = Accelerator.enumerate(0)
    assert found.count == torch.cuda.device_count()
    assert found.infos[0].model.removeprefix("NV_GPU:") in torch.cuda.get_device_name(0)
