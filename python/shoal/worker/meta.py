"""`WorkerMeta`: the metaclass of `Worker`; `MadeByInit`: names a constructor that was left out."""

import inspect
from abc import ABCMeta
from typing import TYPE_CHECKING, Any

from shoal.bootstrap.host import generator_error
from shoal.hardware import AcceleratorUtil
from shoal.worker.identity import accelerator_type

__all__ = ["MadeByInit", "WorkerMeta", "torch_device_type", "torch_platform"]


def torch_device_type() -> str | None:
    """Return the device type that torch has for this process's accelerators, or None."""
    return AcceleratorUtil.get_device_type(accelerator_type())


def torch_platform() -> Any:
    """Return the torch module of this process's accelerators, or None."""
    return AcceleratorUtil.get_torch_platform(accelerator_type())


_MADE_BY_INIT = frozenset(
    {
        "_collective",
        "_device_lock",
        "_local_rank",
        "_local_world_size",
        "_manager_proxy",
        "_master_address",
        "_master_port",
        "_port_lock",
        "_worker_info",
    }
)


class MadeByInit:
    """Base of `Worker` that explains why an attribute of its constructor is missing."""

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__qualname__
            if name in _MADE_BY_INIT and "_collective" not in vars(self):
                raise AttributeError(
                    f"{kind} has no {name!r} yet: Worker.__init__ makes it, and has not run. Call "
                    f"super().__init__() first in {kind}.__init__",
                    name=name,
                    obj=self,
                )
            raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)


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
