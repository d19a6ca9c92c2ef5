"""Huawei's Ascend NPUs."""

from typing import ClassVar

from shoal.hardware.accelerators.devices import Device, Restrictions
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager, ray_devices

__all__ = ["AscendNPUManager"]


@AcceleratorManager.register_manager(AcceleratorType.NPU)
class AscendNPUManager(AcceleratorManager):
    """Ascend NPUs, found by Ray through AscendCL or their device files."""

    RESTRICTIONS: ClassVar[Restrictions] = Restrictions("ASCEND_RT_VISIBLE_DEVICES", obeyed=True)
    NOT_SET_BY_RAY: ClassVar[tuple[str, ...]] = (
        "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",
    )
    CCL_BACKEND: ClassVar[str] = "hccl"
    CCL_IFNAME: ClassVar[str] = "HCCL_SOCKET_IFNAME"
    TORCH_DEVICE: ClassVar[str] = "npu"
    TORCH_EXTENSION: ClassVar[str] = "torch_npu"

    @classmethod
    def ask(cls) -> list[Device]:
        """Ask AscendCL, through Ray."""
        return ray_devices("NPUAcceleratorManager")
