"""Intel's GPUs."""

from collections.abc import Mapping
from typing import ClassVar

from shoal.hardware.accelerators.devices import Device, Restrictions
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager, ray_devices

__all__ = ["IntelGPUManager"]

_SELECTOR = "ONEAPI_DEVICE_SELECTOR"
_BACKEND = "level_zero:"


@AcceleratorManager.register_manager(AcceleratorType.INTEL_GPU)
class IntelGPUManager(AcceleratorManager):
    """Intel's GPUs, found by Ray through dpctl."""

    RESTRICTIONS: ClassVar[Restrictions] = Restrictions(_SELECTOR, obeyed=True)
    NOT_SET_BY_RAY: ClassVar[tuple[str, ...]] = ("RAY_EXPERIMENTAL_NOSET_ONEAPI_DEVICE_SELECTOR",)
    CCL_BACKEND: ClassVar[str] = "ccl"
    CCL_IFNAME: ClassVar[str] = "CCL_MNIC_NAME"
    TORCH_DEVICE: ClassVar[str] = "xpu"

    @classmethod
    def ask(cls) -> list[Device]:
        """Ask dpctl, through Ray."""
        return ray_devices("IntelGPUAcceleratorManager")

    @classmethod
    def probe(cls, environment: Mapping[str, str]) -> tuple[list[Device], list[str]]:
        """Return the devices that the node may use."""
        return super().probe(_with_numbers(environment))

    @classmethod
    def visible_devices(cls, environment: Mapping[str, str]) -> list[int | str]:
        """Read the numbers of the selector, which may have its backend before them."""
        return super().visible_devices(_with_numbers(environment))


def _with_numbers(environment: Mapping[str, str]) -> dict[str, str]:
    """Reduce the selector to numbers; remove one for all devices (`level_zero:gpu`, `*:*`)."""
    env = dict(environment)
    if _SELECTOR in env:
        env[_SELECTOR] = env[_SELECTOR].removeprefix(_BACKEND)
        if any(sign in env[_SELECTOR] for sign in ":*gG"):
            del env[_SELECTOR]
    return env
