"""`Accelerator`: the kind of hardware that node groups count by default."""

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
    """Return a model as nodes report it: `NV_GPU:H200`. Colons in the name become spaces."""
    return f"{kind}:{name.replace(':', ' ')}"


@Hardware.register(is_default_hw=True)
class Accelerator(Hardware):
    """The accelerators of a node, all of one vendor: the first registered one that finds any."""

    HW_TYPE: ClassVar[str] = ACCELERATOR_HW_TYPE

    @classmethod
    def enumerate(
        cls, node_rank: int, configs: Sequence[Any] | None = None
    ) -> HardwareResource | None:
        """Return the accelerators that this node may use according to its environment."""
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
        """Return the accelerator type of a model that a node reported: `NV_GPU` for `NV_GPU:H200`.

        Raises:
            ShoalValueError: The model is not written like that, or its type is unknown.
        """
        kind, colon, rest = model.partition(":")
        if not colon or ":" in rest or kind not in AcceleratorManager.manager_register:
            raise ShoalValueError(
                f"{model!r} is not an accelerator model; expected one like NV_GPU:H200"
            )
        members = AcceleratorType.__members__
        return members.get(kind, kind)
