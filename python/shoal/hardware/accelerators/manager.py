"""`AcceleratorManager`: the base class of the classes that each support one vendor's devices."""

import contextlib
import importlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from shoal.errors import ShoalValueError
from shoal.hardware.accelerators.devices import (
    Device,
    Restrictions,
    split_visible,
    usable_devices,
)
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.time_limit import within
from shoal.profiling.base import ProfileConfig

__all__ = ["AcceleratorManager", "is_unique_name", "ray_devices"]

M = TypeVar("M", bound=type["AcceleratorManager"])
P = TypeVar("P", bound=type[ProfileConfig])

_log = logging.getLogger("shoal")

_REQUIRED = ("RESTRICTIONS", "CCL_BACKEND", "CCL_IFNAME", "TORCH_DEVICE")
# Seconds to wait for a vendor's library: initialising devices takes some, a broken driver hangs.
_ASK_S = 60.0


class AcceleratorManager(ABC):
    """One vendor's accelerators. Derive from it and decorate with `register_manager(type)`.

    Attributes:
        manager_register: The vendors' classes, by accelerator type, in the order of queries.
        profiling_config_register: The configuration classes of profilers, by accelerator type.
        profile_backend_register: The configuration classes of profilers, by profiler name.
        TYPE: The accelerator type.
        RESTRICTIONS: The variables that restrict a node to some devices.
        NOT_SET_BY_RAY: Variables that stop Ray from writing the visibility variable.
        CCL_BACKEND: The backend for `torch.distributed`.
        CCL_IFNAME: The variable that names the network devices for that backend.
        TORCH_DEVICE: torch's name for the devices and for its module for them.
        TORCH_EXTENSION: The package that adds that module to torch; empty if torch has it.
    """

    manager_register: ClassVar[dict[str, type["AcceleratorManager"]]] = {}
    profiling_config_register: ClassVar[dict[str, type[ProfileConfig]]] = {}
    profile_backend_register: ClassVar[dict[str, type[ProfileConfig]]] = ProfileConfig.registry

    TYPE: ClassVar[str]
    RESTRICTIONS: ClassVar[Restrictions]
    NOT_SET_BY_RAY: ClassVar[tuple[str, ...]] = ()
    CCL_BACKEND: ClassVar[str]
    CCL_IFNAME: ClassVar[str]
    TORCH_DEVICE: ClassVar[str]
    TORCH_EXTENSION: ClassVar[str] = ""

    @staticmethod
    def register_manager(type: str) -> Callable[[M], M]:  # noqa: A002  (part of the API)
        """Return a decorator that registers a vendor's class.

        Args:
            type: The accelerator type: an `AcceleratorType`, or the user's own name.

        Raises:
            ShoalValueError: The type is registered already, its name is invalid, or the class lacks
                a required attribute or method.
        """
        given: Any = type  # typed, but it comes from a user
        word = isinstance(given, str) and given.isidentifier()
        if not word or given == AcceleratorType.NO_ACCEL:
            raise ShoalValueError(
                f"{type!r} is not a name for an accelerator type; expected one word"
            )

        def add(cls: M) -> M:
            known = AcceleratorManager.manager_register
            if type in known:
                raise ShoalValueError(
                    f"the accelerator type {type} is registered already, by {known[type].__name__}"
                )
            missing = [name for name in _REQUIRED if not hasattr(cls, name)]
            if "ask" in getattr(cls, "__abstractmethods__", ()):
                missing.append("ask()")
            if missing:
                raise ShoalValueError(f"{cls.__qualname__}: {', '.join(missing)} missing")
            cls.TYPE = type
            known[type] = cls
            return cls

        return add

    @staticmethod
    def register_profiling_config(type: str) -> Callable[[P], P]:  # noqa: A002  (part of the API)
        """Return a decorator that registers the configuration class of a vendor's profiler."""

        def add(cls: P) -> P:
            AcceleratorManager.profiling_config_register[type] = cls
            if cls not in ProfileConfig.registry.values():
                ProfileConfig.register()(cls)
            return cls

        return add

    # --- the node's devices ---

    @classmethod
    @abstractmethod
    def ask(cls) -> list[Device]:
        """Ask the vendor's library for its devices. No other method queries devices."""

    @classmethod
    def probe(cls, environment: Mapping[str, str]) -> tuple[list[Device], list[str]]:
        """Return the devices that a node may use, and the node's names for them.

        A library that fails or does not answer is logged as a warning and counts as no devices.

        Args:
            environment: The node's environment.
        """
        try:
            devices = within(_ASK_S, f"the library of {cls.TYPE} devices", cls.ask)
        except Exception as error:  # noqa: BLE001  (a broken library must not stop a job)
            _log.warning(
                "no %s devices are used here: %s: %s", cls.TYPE, type(error).__name__, error
            )
            return [], []
        return usable_devices(devices, environment, cls.RESTRICTIONS)

    # --- a worker's environment ---

    @classmethod
    def visibility_env(
        cls,
        names: Sequence[str],
        ranks: Sequence[int],
        egl_ids: Sequence[int],
        environment: Mapping[str, str],
    ) -> dict[str, str]:
        """Return the variables that restrict a worker to some devices.

        Args:
            names: The node's names for the devices.
            ranks: Their hardware ranks; -1 for a device of which only the unique name is known.
            egl_ids: The EGL index of every device of the node; empty if unknown.
            environment: The worker's other variables.
        """
        del ranks, egl_ids, environment
        return {cls.RESTRICTIONS.visible: ",".join(names)} | dict.fromkeys(cls.NOT_SET_BY_RAY, "1")

    @classmethod
    def get_accelerator_env_var(cls, visible_accelerators: Sequence[str | int]) -> dict[str, str]:
        """Return the variables that restrict a process to some devices; see `visibility_env`.

        Args:
            visible_accelerators: Hardware ranks, or unique names (`GPU-…`, `MIG-…`).

        Raises:
            ShoalValueError: One is neither.
        """
        return cls.visibility_env(*cls.named_devices(visible_accelerators), (), os.environ)

    @classmethod
    def named_devices(
        cls, visible: Sequence[str | int], device_names: Sequence[str] = ()
    ) -> tuple[list[str], list[int]]:
        """Return the node's names for devices, and their ranks; -1 if only the name is known.

        Args:
            visible: Hardware ranks, or unique names.
            device_names: The node's names for its devices; empty if each name is the rank.

        Raises:
            ShoalValueError: A device does not exist.
        """
        if isinstance(visible, str):
            raise ShoalValueError(f"expected a list of hardware ranks, not {visible!r}")
        found = [_named(cls.TYPE, device, device_names) for device in visible]
        return [name for name, _ in found], [rank for _, rank in found]

    @classmethod
    def worker_env(cls) -> dict[str, str]:
        """Return the variables that depend on the packages installed on the worker's node."""
        return {}

    @classmethod
    def visible_devices(cls, environment: Mapping[str, str]) -> list[int | str]:
        """Read the visibility variable: numbers as numbers, unique names as they are.

        Raises:
            ShoalValueError: An entry is neither.
        """
        text = environment.get(cls.RESTRICTIONS.visible, "")
        return [_entry(name, cls.RESTRICTIONS.visible, text) for name in split_visible(text)]

    # --- torch ---

    @classmethod
    def get_torch_platform(cls) -> Any:
        """Return torch's module for the devices."""
        if cls.TORCH_EXTENSION:
            importlib.import_module(cls.TORCH_EXTENSION)
        platform: Any = getattr(importlib.import_module("torch"), cls.TORCH_DEVICE)
        if not hasattr(platform, "ipc_collect"):
            # Only CUDA shares memory between processes in this way; others have none to free.
            platform.ipc_collect = _nothing
        return platform

    @classmethod
    def pg_options(cls, options: Any) -> Any:
        """Make the options of a process group from `CollectiveGroupOptions`; None for defaults."""
        del options
        return None

    # --- profiling ---

    @classmethod
    def start_profiling(cls, step_idx: int | None = None) -> None:
        """Start the range that a profiler records; does nothing by default."""
        del step_idx

    @classmethod
    def stop_profiling(cls) -> None:
        """End the range that a profiler records; does nothing by default."""
        return

    @classmethod
    def is_profiling_active(cls) -> bool:
        """Return whether a profiler records now; never by default."""
        return False

    @classmethod
    @contextlib.contextmanager
    def profiling_range(
        cls, label: str, color: str | None = None, domain: str | None = None
    ) -> Iterator[None]:
        """Mark a `with` block for the profiler while it records; does nothing by default."""
        del label, color, domain
        yield


def ray_devices(name: str) -> list[Device]:
    """Ask a vendor's library for its devices through the class `name` of Ray."""
    manager = getattr(importlib.import_module("ray._private.accelerators"), name)
    count = manager.get_current_node_num_accelerators()
    model = (manager.get_current_node_accelerator_type() if count else None) or "UNKNOWN"
    return [Device(model, index=i) for i in range(count)]


def is_unique_name(name: str) -> bool:
    """Return whether the name of a device is unique among all machines."""
    return name.startswith(("GPU-", "MIG-"))


def _named(kind: str, device: str | int, names: Sequence[str]) -> tuple[str, int]:
    text = "" if isinstance(device, bool) else str(device).strip()
    rank = int(text) if text.isdecimal() else names.index(text) if text in names else -1
    if 0 <= rank < len(names):
        return names[rank], rank
    if names and (rank >= 0 or is_unique_name(text)):
        raise ShoalValueError(
            f"{kind} device {text} does not exist; the node has {', '.join(names)}"
        )
    if rank < 0 and not is_unique_name(text):
        raise ShoalValueError(
            f"{kind} device {device!r} is not a device; expected hardware ranks or unique names "
            "(GPU-…, MIG-…)"
        )
    return text, rank


def _entry(name: str, variable: str, text: str) -> int | str:
    if name.isdecimal():
        return int(name)
    if not is_unique_name(name):
        raise ShoalValueError(
            f"{variable}={text!r}: {name!r} is not a device; expected numbers or unique names "
            "(GPU-…, MIG-…) with commas between"
        )
    return name


def _nothing() -> None:
    pass
