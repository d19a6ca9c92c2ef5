"""AMD's GPUs."""

from collections.abc import Mapping
from typing import ClassVar

from shoal.hardware.accelerators.cuda_profiler import CudaProfiler
from shoal.hardware.accelerators.devices import Device, Restrictions, split_visible
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager, ray_devices

__all__ = ["AMDGPUManager"]

# Hides devices from HIP, which numbers the remaining ones from 0.
_BELOW_HIP = "ROCR_VISIBLE_DEVICES"


@AcceleratorManager.register_manager(AcceleratorType.AMD_GPU)
class AMDGPUManager(CudaProfiler):
    """AMD's GPUs, found by Ray through AMD's management library."""

    RESTRICTIONS: ClassVar[Restrictions] = Restrictions("HIP_VISIBLE_DEVICES")
    NOT_SET_BY_RAY: ClassVar[tuple[str, ...]] = (
        "RAY_EXPERIMENTAL_NOSET_ROCR_VISIBLE_DEVICES",
        "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES",
    )
    CCL_BACKEND: ClassVar[str] = "nccl"
    CCL_IFNAME: ClassVar[str] = "NCCL_SOCKET_IFNAME"
    TORCH_DEVICE: ClassVar[str] = "cuda"

    @classmethod
    def ask(cls) -> list[Device]:
        """Ask AMD's management library, through Ray."""
        return ray_devices("AMDGPUAcceleratorManager")

    @classmethod
    def probe(cls, environment: Mapping[str, str]) -> tuple[list[Device], list[str]]:
        """Return the devices that the node may use, without those that ROCm itself hides."""
        devices, names = super().probe(environment)
        below = environment.get(_BELOW_HIP)
        if below is None or cls.RESTRICTIONS.visible in environment:
            return devices, names
        count = min(len(devices), len(split_visible(below)))
        return devices[:count], []
