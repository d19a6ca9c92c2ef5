"""`AcceleratorUtil`: vendor-independent access to accelerators, for the other parts of shoal."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, ClassVar

from shoal.bootstrap.extension import load_user_extension_module
from shoal.errors import ShoalValueError
from shoal.hardware.accelerators.accelerator import Accelerator
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager
from shoal.nearest import did_you_mean

__all__ = ["AcceleratorUtil", "complete_environment", "manager_of", "visibility_env"]

# The variable that gloo reads, the backend for workers without accelerators.
_GLOO_IFNAME = "GLOO_SOCKET_IFNAME"


def manager_of(accelerator_type: str) -> type[AcceleratorManager] | None:
    """Return the class of an accelerator type; None for `NO_ACCEL`.

    Raises:
        ShoalValueError: The accelerator type is unknown.
    """
    manager = AcceleratorManager.manager_register.get(accelerator_type)
    if manager is None and accelerator_type != AcceleratorType.NO_ACCEL:
        known = [AcceleratorType.NO_ACCEL.value, *map(str, AcceleratorManager.manager_register)]
        raise ShoalValueError(
            f"there is no accelerator type {accelerator_type!r}; there are {', '.join(known)}"
            f"{did_you_mean(str(accelerator_type), known)}"
        )
    return manager


def visibility_env(
    accelerator_type: str,
    visible: Sequence[str | int],
    device_names: Sequence[str] = (),
    *,
    egl_ids: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables that restrict a worker to some of its node's accelerators.

    Queries no device, so that a plan can show the variables, too.

    Args:
        accelerator_type: The accelerator type, as the node reports it.
        visible: Hardware ranks of the devices on the node, or unique names (`GPU-…`, `MIG-…`).
        device_names: The node's names for its devices: UUIDs, MIG instances, or physical indices
            if the node is restricted to a part of a machine; empty if each name is the rank.
        egl_ids: The EGL index of each of the node's devices; empty if unknown.
        environment: The worker's other variables; some values of the user's are kept.

    Returns:
        The variables; empty for `NO_ACCEL`.

    Raises:
        ShoalValueError: The accelerator type or a device does not exist.
    """
    manager = manager_of(accelerator_type)
    if manager is None:
        return {}
    names, ranks = manager.named_devices(visible, device_names)
    return manager.visibility_env(names, ranks, egl_ids, environment or {})


def complete_environment() -> None:
    """Set, in a worker, the variables that depend on the packages installed on its node.

    Loads the user's extension module first, because it may register the accelerator type.
    """
    load_user_extension_module()
    manager = manager_of(os.environ.get("ACCELERATOR_TYPE") or AcceleratorType.NO_ACCEL)
    for name, value in (manager.worker_env() if manager is not None else {}).items():
        os.environ.setdefault(name, value)


@cache
def _own_type() -> str:
    found = Accelerator.enumerate(0)
    if found is None:
        return AcceleratorType.NO_ACCEL
    return Accelerator.get_accelerator_type_from_model(found.infos[0].model)


class AcceleratorUtil:
    """Functions of an accelerator type; for `NO_ACCEL` they do nothing or return None or empty."""

    CCL_SUPPORT_LIST: ClassVar[list[AcceleratorType]] = [
        AcceleratorType.NV_GPU,
        AcceleratorType.AMD_GPU,
        AcceleratorType.MUSA_GPU,
    ]

    @staticmethod
    def get_accelerator_type() -> str:
        """Return the type of this machine's accelerators; detected once per process."""
        return _own_type()

    @staticmethod
    def get_accelerator_env_var(
        accelerator_type: str, visible_accelerators: Sequence[str | int]
    ) -> dict[str, str]:
        """Return the variables that restrict a process to some devices; see `visibility_env`."""
        manager = manager_of(accelerator_type)
        return {} if manager is None else manager.get_accelerator_env_var(visible_accelerators)

    @staticmethod
    def get_visible_devices(accelerator_type: str) -> list[int | str]:
        """Return the devices that this process's visibility variable names.

        Raises:
            ShoalValueError: An entry is neither a number nor a unique name.
        """
        manager = manager_of(accelerator_type)
        return [] if manager is None else manager.get_visible_devices()

    @staticmethod
    def get_ccl_backend(accelerator_type: str) -> str | None:
        """Return the backend of `torch.distributed` for the devices."""
        manager = manager_of(accelerator_type)
        return None if manager is None else manager.get_ccl_backend()

    @staticmethod
    def get_ccl_socket_ifname_env_var(accelerator_type: str) -> str:
        """Return the variable that names the network devices for that backend, else for gloo."""
        manager = manager_of(accelerator_type)
        return _GLOO_IFNAME if manager is None else manager.get_ccl_socket_ifname_env_var()

    @staticmethod
    def get_torch_platform(accelerator_type: str) -> Any:
        """Return torch's module for the devices: `torch.cuda`."""
        manager = manager_of(accelerator_type)
        return None if manager is None else manager.get_torch_platform()

    @staticmethod
    def get_device_type(accelerator_type: str) -> str | None:
        """Return torch's name for the devices: `cuda`."""
        manager = manager_of(accelerator_type)
        return None if manager is None else manager.get_device_type()

    @staticmethod
    def get_accel_pg_options(accelerator_type: str, options: Any) -> Any:
        """Make the options of a process group; None for its defaults."""
        manager = manager_of(accelerator_type)
        return None if manager is None else manager.get_accel_pg_options(options)

    @staticmethod
    def start_profiling(accelerator_type: str, step_idx: int | None = None) -> None:
        """Start the range that a profiler records."""
        manager = manager_of(accelerator_type)
        if manager is not None:
            manager.start_profiling(step_idx)

    @staticmethod
    def stop_profiling(accelerator_type: str) -> None:
        """End the range that a profiler records."""
        manager = manager_of(accelerator_type)
        if manager is not None:
            manager.stop_profiling()

    @staticmethod
    def profiling_range(
        accelerator_type: str, label: str, color: str | None = None, domain: str | None = None
    ) -> AbstractContextManager[None]:
        """Mark a `with` block for the profiler while it records."""
        manager = manager_of(accelerator_type)
        return nullcontext() if manager is None else manager.profiling_range(label, color, domain)
