"""NVIDIA's GPUs."""

import importlib
import importlib.metadata
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from shoal.hardware.accelerators.cuda_profiler import CudaProfiler
from shoal.hardware.accelerators.devices import Device, Restrictions, as_text
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager

__all__ = ["EGL_DEVICE_ID_ENV_VARS", "NvidiaGPUManager", "set_nccl_options"]

EGL_DEVICE_ID_ENV_VARS = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")
"""The variables that choose the GPU of rendering: for MuJoCo, and for other libraries."""

_log = logging.getLogger("shoal")

_DRIVER = Path("/proc/driver/nvidia")
_NVML = ("pynvml", "ray._private.thirdparty.pynvml")
# Words of a product's name that do not tell models apart.
_NOISE = re.compile(r"\b(?:NVIDIA|GeForce)\b")
# MuJoCo's ways to render without EGL.
_NO_EGL = frozenset({"osmesa", "glx"})
# Since this version torch does by default what TORCH_NCCL_AVOID_RECORD_STREAMS requests.
_TORCH_KEEPS_STREAMS = (2, 8)
# NCCL's names of the options. Each with shoal's name, and its value if only others are given.
_NCCL_CONFIG = {
    "cga_cluster_size": ("accel_cluster_size", 4),
    "max_ctas": ("accel_max_ctas", 32),
    "min_ctas": ("accel_min_ctas", 1),
}


@AcceleratorManager.register_manager(AcceleratorType.NV_GPU)
class NvidiaGPUManager(CudaProfiler):
    """NVIDIA's GPUs, found through NVML; each part of a divided GPU (MIG) counts as one device."""

    RESTRICTIONS: ClassVar[Restrictions] = Restrictions(
        "CUDA_VISIBLE_DEVICES", container="NVIDIA_VISIBLE_DEVICES"
    )
    NOT_SET_BY_RAY: ClassVar[tuple[str, ...]] = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
    CCL_BACKEND: ClassVar[str] = "nccl"
    CCL_IFNAME: ClassVar[str] = "NCCL_SOCKET_IFNAME"
    TORCH_DEVICE: ClassVar[str] = "cuda"

    @classmethod
    def ask(cls) -> list[Device]:
        """Ask NVML, or the kernel driver if only NVML's library is missing (a small container)."""
        nvml = _nvml()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            if not (_DRIVER / "version").exists():
                return []  # a machine without NVIDIA's driver
            if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                return _from_kernel()
            raise
        try:
            found: list[Device] = []
            for index in range(nvml.nvmlDeviceGetCount()):
                found += _device(nvml, index)
            return found
        finally:
            nvml.nvmlShutdown()

    @classmethod
    def visibility_env(
        cls,
        names: Sequence[str],
        ranks: Sequence[int],
        egl_ids: Sequence[int],
        environment: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the variables that restrict a worker to some devices, for CUDA and rendering."""
        env = super().visibility_env(names, ranks, egl_ids, environment)
        # A device of which only the unique name is known (rank -1) has no known EGL index.
        if ranks and ranks[0] >= 0 and environment.get("MUJOCO_GL", "").lower() not in _NO_EGL:
            env |= dict.fromkeys(EGL_DEVICE_ID_ENV_VARS, _egl_id(names[0], ranks[0], egl_ids))
        env["NCCL_CUMEM_ENABLE"] = environment.get("NCCL_CUMEM_ENABLE", "0")
        if env["NCCL_CUMEM_ENABLE"] != "0":
            _say_kept(env["NCCL_CUMEM_ENABLE"])
        return env

    @classmethod
    def worker_env(cls) -> dict[str, str]:
        """Return the variable that makes older torch keep tensors alive by references, not streams."""
        try:
            found = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            return {}
        numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
        return {} if numbers >= _TORCH_KEEPS_STREAMS else {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}

    @classmethod
    def get_accel_pg_options(cls, options: Any) -> Any:
        """Make NCCL's options; None if all are defaults."""
        if options is None or options.is_empty_options():
            return None
        distributed: Any = importlib.import_module("torch.distributed")
        made = distributed.ProcessGroupNCCL.Options()
        set_nccl_options(made, options)
        return made


def set_nccl_options(made: Any, options: Any) -> None:
    """Set the options of a process group that its library has, by NCCL's names.

    Args:
        made: The library's object, for example a `ProcessGroupNCCL.Options`.
        options: `CollectiveGroupOptions`.
    """
    with suppress(AttributeError):  # libraries without stream priorities
        made.is_high_priority_stream = options.is_high_priority_stream
    config = getattr(made, "config", None)
    given = {theirs: getattr(options, ours) for theirs, (ours, _) in _NCCL_CONFIG.items()}
    if config is not None and any(value is not None for value in given.values()):
        for name, value in given.items():
            setattr(config, name, _NCCL_CONFIG[name][1] if value is None else value)


def _nvml() -> Any:
    """Return the installed bindings of NVML, or else those that Ray includes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an outdated package of this name warns that it is
        with suppress(ImportError):
            return importlib.import_module(_NVML[0])
    return importlib.import_module(_NVML[1])


def _device(nvml: Any, index: int) -> list[Device]:
    """Describe one GPU, or the parts of a divided GPU."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    model = _model(nvml, handle)
    parts: list[Device] = []
    with suppress(nvml.NVMLError):  # most GPUs cannot be divided
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            parts = _parts(nvml, handle, index)
    return parts or [Device(model, as_text(nvml.nvmlDeviceGetUUID(handle)), index)]


def _parts(nvml: Any, handle: Any, gpu: int) -> list[Device]:
    parts: list[Device] = []
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError):  # there may be fewer parts than the maximum
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            uuid = as_text(nvml.nvmlDeviceGetUUID(part))
            # To CUDA the GPU's number means its first part.
            parts.append(Device(_model(nvml, part), uuid, None if parts else gpu, is_part=True))
    return parts


def _model(nvml: Any, handle: Any) -> str:
    try:
        return _short(as_text(nvml.nvmlDeviceGetName(handle)))
    except nvml.NVMLError:
        return "UNKNOWN"


def _short(name: str) -> str:
    return " ".join(_NOISE.sub(" ", name).split()) or "UNKNOWN"


def _from_kernel() -> list[Device]:
    """Read the kernel driver's own list of GPUs."""
    found: list[Device] = []
    for path in sorted((_DRIVER / "gpus").glob("*/information")):
        lines = (line.partition(":") for line in path.read_text().splitlines())
        facts = {key.strip(): value.strip() for key, _, value in lines}
        found.append(Device(_short(facts.get("Model", "")), facts.get("GPU UUID", ""), len(found)))
    return found


def _egl_id(name: str, rank: int, egl_ids: Sequence[int]) -> str:
    if rank < len(egl_ids) and egl_ids[rank] >= 0:
        return str(egl_ids[rank])
    return name if name.isdecimal() else str(rank)


@cache
def _say_kept(value: str) -> None:
    _log.warning("NCCL_CUMEM_ENABLE=%s is kept; without it shoal sets 0", value)
