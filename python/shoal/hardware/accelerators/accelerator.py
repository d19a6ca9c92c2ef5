"""Accelerators as hardware: the default of node groups."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from shoal.errors import ShoalValueError
from shoal.hardware.accelerators.egl import egl_ids
from shoal.hardware.accelerators.kind import ACCELERATOR_HW_TYPE, AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager
from shoal.hardware.base import Hardware, HardwareInfo, HardwareResource

__all__ = ["Accelerator", "accelerator_model"]


def accelerator_model(kind: str, name: str) -> str:
    """Return a model as nodes report it: `NV_GPU:H200`, with no other colon."""
    return f"{kind}:{name.replace(':', ' ')}"


@Hardware.register(is_default_hw=True)
class Accelerator(Hardware):
    """The accelerators of one vendor: of the first, in the order of registration, that has some."""

    HW_TYPE: ClassVar[str] = ACCELERATOR_HW_TYPE

    @classmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[Any] | None = None
    ) -> HardwareResource | None:
        """Return the accelerators that this node may use, by its environment."""
        del node_rank, configs
        for kind, manager in AcceleratorManager.manager_register.items():
            devices, names = manager.probe(os.environ)
            if devices:
                model = accelerator_model(kind, devices[0].model)
                infos = [HardwareInfo(cls.HW_TYPE, model) for _ in devices]
                egl = (
                    egl_ids(",".join(names), len(devices)) if kind is AcceleratorType.NV_GPU else []
                )
                return HardwareResource(cls.HW_TYPE, infos, names, egl)
        return None

    @staticmethod
    def get_accelerator_type_from_model(model: str) -> str:
        """Return the kind of a model as nodes report it: `NV_GPU` of `NV_GPU:H200`.

        Raises:
            ShoalValueError: It is not written like that, or there is no such kind.
        """
        kind, colon, rest = model.partition(":")
        if not colon or ":" in rest or kind not in AcceleratorManager.manager_register:
            raise ShoalValueError(
                f"{model!r} is no accelerator model; expected one like NV_GPU:H200"
            )
        members = AcceleratorType.__members__
        return members.get(kind, kind)
