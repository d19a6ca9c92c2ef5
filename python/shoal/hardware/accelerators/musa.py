"""Moore Threads' GPUs."""

import importlib
import importlib.util
from typing import Any, ClassVar

from shoal.hardware.accelerators.devices import Device, Restrictions, as_text
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager

__all__ = ["MUSAGPUManager"]

_LIBRARY = "pymtml"


@AcceleratorManager.register_manager(AcceleratorType.MUSA_GPU)
class MUSAGPUManager(AcceleratorManager):
    """Moore Threads' GPUs, found through pymtml."""

    RESTRICTIONS: ClassVar[Restrictions] = Restrictions(
        "MUSA_VISIBLE_DEVICES", container="MTHREADS_VISIBLE_DEVICES"
    )
    NOT_SET_BY_RAY: ClassVar[tuple[str, ...]] = ("RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES",)
    CCL_BACKEND: ClassVar[str] = "mccl"
    CCL_IFNAME: ClassVar[str] = "MCCL_SOCKET_IFNAME"
    TORCH_DEVICE: ClassVar[str] = "musa"
    TORCH_EXTENSION: ClassVar[str] = "torch_musa"

    @classmethod
    def ask(cls) -> list[Device]:
        """Ask pymtml, if it is installed."""
        if importlib.util.find_spec(_LIBRARY) is None:
            return []
        mtml: Any = importlib.import_module(_LIBRARY)
        mtml.mtmlLibraryInit()
        try:
            handles = [
                mtml.mtmlLibraryInitDeviceByIndex(i) for i in range(mtml.mtmlLibraryCountDevice())
            ]
            return [
                Device(as_text(mtml.mtmlDeviceGetName(handle)), index=i)
                for i, handle in enumerate(handles)
            ]
        finally:
            mtml.mtmlLibraryShutDown()
