"""`WorkerMeta`: the metaclass of `Worker`."""

import inspect
from abc import ABCMeta
from typing import Any

from shoal.bootstrap.host import generator_error
from shoal.hardware import AcceleratorUtil
from shoal.worker.identity import accelerator_type

__all__ = ["WorkerMeta", "torch_device_type", "torch_platform"]


def torch_device_type() -> str | None:
    """Return the device type that torch has for this process's accelerators, or None."""
    return AcceleratorUtil.get_device_type(accelerator_type())


def torch_platform() -> Any:
    """Return the torch module of this process's accelerators, or None."""
    return AcceleratorUtil.get_torch_platform(accelerator_type())


class WorkerMeta(ABCMeta):
    """Metaclass that computes class attributes which need torch only when they are read.

    Derived from `ABCMeta`, so that workers may have abstract methods.

    Raises:
        GeneratorMethodError: A public method is an asynchronous generator.
    """

    def __init__(
        cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **kwargs: Any
    ) -> None:
        super().__init__(name, bases, members, **kwargs)
        for method, function in members.items():
            raw = getattr(function, "__func__", function)  # of a static or class method
            if not method.startswith("_") and inspect.isasyncgenfunction(raw):
                raise generator_error(f"{cls.__qualname__}.{method}")

    @property
    def torch_device_type(cls) -> str | None:
        """The device type that torch has for this process's accelerators: `cuda`, or None."""
        return torch_device_type()

    @property
    def torch_platform(cls) -> Any:
        """The torch module of this process's accelerators: `torch.cuda`, or None."""
        return torch_platform()

    @property
    def accelerator_type(cls) -> str:
        """The kind of this process's accelerators, `NO_ACCEL` without any."""
        return accelerator_type()
