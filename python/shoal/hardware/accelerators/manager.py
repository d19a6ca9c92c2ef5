"""`AcceleratorManager`: the base class of the classes that each support one vendor's devices."""

import contextlib
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from shoal.errors import ShoalValueError
from shoal.hardware import timing
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

# A vendor's class must define each attribute or method on the left, or the method on the right.
_REQUIRED = {
    "RESTRICTIONS": "get_accelerator_env_var",
    "CCL_BACKEND": "get_ccl_backend",
    "CCL_IFNAME": "get_ccl_socket_ifname_env_var",
    "TORCH_DEVICE": "get_device_type",
    "ask": "get_num_devices",
}
# Two ranks that no other variable is likely to contain: the visibility variable is found by them.
_SAMPLE_RANKS = ("6", "7")
_UNKNOWN = "UNKNOWN"  # the model of a device whose library does not say it


class AcceleratorManager:
    """One vendor's accelerators. Derive from it and decorate with `register_manager(type)`.

    A class defines `ask` and the attributes without a default, or, as classes for RLinf do, static
    methods in their place: `get_num_devices` and `get_accelerator_model`, `get_accelerator_env_var`,
    `get_ccl_backend`, `get_ccl_socket_ifname_env_var` and `get_device_type`.

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
    def register_manager(accelerator_type: str) -> Callable[[M], M]:
        """Return a decorator that registers a vendor's class.

        Args:
            accelerator_type: An `AcceleratorType`, or the user's own name.

        Raises:
            ShoalValueError: The type is registered already, its name is invalid, or the class is
                not derived from `AcceleratorManager` or lacks an attribute or a method.
        """
        given: Any = accelerator_type  # typed, but it comes from a user
        word = isinstance(given, str) and given.isidentifier()
        if not word or given == AcceleratorType.NO_ACCEL:
            raise ShoalValueError(
                f"{given!r} is not a name for an accelerator type; expected one word"
            )

        def add(cls: M) -> M:
            known = AcceleratorManager.manager_register
            if given in known:
                raise ShoalValueError(
                    f"the accelerator type {given} is registered already, by "
                    f"{known[given].__name__}"
                )
            if not issubclass(cls, AcceleratorManager):
                raise ShoalValueError(
                    f"{cls.__qualname__} is not an accelerator class: derive it from AcceleratorManager"
                )
            missing = [
                f"{ours} (or {theirs}())"
                for ours, theirs in _REQUIRED.items()
                if not cls._defines(ours) and not cls._defines(theirs)
            ]
            if missing:
                raise ShoalValueError(f"{cls.__qualname__} lacks {', '.join(missing)}")
            cls.TYPE = given
            known[given] = cls
            return cls

        return add

    @classmethod
    def _defines(cls, name: str) -> bool:
        """Return whether a class derived from this one has an attribute or a method of its own."""
        missing = object()
        found = inspect.getattr_static(cls, name, missing)
        return found is not inspect.getattr_static(AcceleratorManager, name, missing)

    @staticmethod
    def register_profiling_config(accelerator_type: str) -> Callable[[P], P]:
        """Return a decorator that registers the configuration class of a vendor's profiler."""

        def add(cls: P) -> P:
            AcceleratorManager.profiling_config_register[accelerator_type] = cls
            if cls not in ProfileConfig.registry.values():
                ProfileConfig.register()(cls)
            return cls

        return add

    # --- the node's devices ---

    @classmethod
    def ask(cls) -> list[Device]:
        """Ask the vendor's library for its devices. No other method of shoal's queries devices."""
        count = cls.get_num_devices()
        model = cls.get_accelerator_model() if count else _UNKNOWN
        return [Device(model, index=index) for index in range(count)]

    @classmethod
    def restrictions(cls) -> Restrictions:
        """Return the variables that restrict a node to some devices."""
        if cls._defines("RESTRICTIONS"):
            return cls.RESTRICTIONS
        env = cls.get_accelerator_env_var(list(_SAMPLE_RANKS))
        sample = ",".join(_SAMPLE_RANKS)
        return Restrictions(next((name for name, value in env.items() if value == sample), ""))

    @classmethod
    def probe(cls, environment: Mapping[str, str]) -> tuple[list[Device], list[str]]:
        """Return the devices that a node may use, and the node's names for them.

        A library that fails or does not answer is logged as a warning and counts as no devices.

        Args:
            environment: The node's environment.
        """
        try:
            devices = within(timing.TIMING.ask_s, f"the library of {cls.TYPE} devices", cls.ask)
        except Exception as error:  # noqa: BLE001  (a broken library must not stop a job)
            _log.warning(
                "no %s devices are used here: %s: %s", cls.TYPE, type(error).__name__, error
            )
            return [], []
        restrictions = cls.restrictions()
        if not cls._defines("RESTRICTIONS"):
            # Such a class does not say whether its count is that of the visible devices.
            named = split_visible(environment.get(restrictions.visible, ""))
            restrictions = replace(restrictions, obeyed=len(named) == len(devices))
        return usable_devices(devices, environment, restrictions)

    @classmethod
    def get_num_devices(cls) -> int:
        """Return the number of devices that this process's node may use."""
        return len(cls.probe(os.environ)[0])

    @classmethod
    def get_accelerator_type(cls) -> str:
        """Return the accelerator type."""
        return cls.TYPE

    @classmethod
    def get_accelerator_model(cls) -> str:
        """Return the model of the node's first device; `UNKNOWN` if there is none."""
        devices = cls.probe(os.environ)[0] if cls._defines("ask") else []
        return devices[0].model if devices else _UNKNOWN

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
        if cls._defines("get_accelerator_env_var"):
            return cls.get_accelerator_env_var(list(names))
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
        variable = cls.restrictions().visible
        text = environment.get(variable, "")
        return [_entry(name, variable, text) for name in split_visible(text)]

    @classmethod
    def get_visible_devices(cls) -> list[int | str]:
        """Return the devices that this process's visibility variable names; see `visible_devices`.

        Raises:
            ShoalValueError: An entry is neither a number nor a unique name.
        """
        return cls.visible_devices(os.environ)

    # --- torch ---

    @classmethod
    def get_ccl_backend(cls) -> str:
        """Return the backend for `torch.distributed`."""
        return cls.CCL_BACKEND

    @classmethod
    def get_ccl_socket_ifname_env_var(cls) -> str:
        """Return the variable that names the network devices for that backend."""
        return cls.CCL_IFNAME

    @classmethod
    def get_device_type(cls) -> str:
        """Return torch's name for the devices and for its module for them."""
        return cls.TORCH_DEVICE

    @classmethod
    def get_torch_platform(cls) -> Any:
        """Return torch's module for the devices."""
        if cls.TORCH_EXTENSION:
            importlib.import_module(cls.TORCH_EXTENSION)
        platform: Any = getattr(importlib.import_module("torch"), cls.get_device_type())
        if not hasattr(platform, "ipc_collect"):
            # Only CUDA shares memory between processes in this way; others have none to free.
            platform.ipc_collect = _nothing
        return platform

    @classmethod
    def get_accel_pg_options(cls, options: Any) -> Any:
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
    model = (manager.get_current_node_accelerator_type() if count else None) or _UNKNOWN
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
