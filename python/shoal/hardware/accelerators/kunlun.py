"""Baidu's Kunlun XPUs, which torch sees as CUDA devices."""

import importlib.util
import json
import subprocess
import sys
from typing import ClassVar

from shoal.errors import ClusterError
from shoal.hardware import timing
from shoal.hardware.accelerators.devices import Device, Restrictions
from shoal.hardware.accelerators.kind import AcceleratorType
from shoal.hardware.accelerators.manager import AcceleratorManager

__all__ = ["KunlunXPUManager"]

_LIBRARY = "torch_xmlir"
# Runs in a separate process, because it imports torch.
_QUESTION = """
import json, sys
import torch, torch_xmlir
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
sys.stdout.write("\\n" + json.dumps(names))
"""


@AcceleratorManager.register_manager(AcceleratorType.KUNLUN_XPU)
class KunlunXPUManager(AcceleratorManager):
    """Kunlun XPUs, found through torch_xmlir."""

    RESTRICTIONS: ClassVar[Restrictions] = Restrictions("CUDA_VISIBLE_DEVICES", obeyed=True)
    NOT_SET_BY_RAY: ClassVar[tuple[str, ...]] = ("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",)
    CCL_BACKEND: ClassVar[str] = "bkcl"
    CCL_IFNAME: ClassVar[str] = "BKCL_SOCKET_IFNAME"
    TORCH_DEVICE: ClassVar[str] = "cuda"
    TORCH_EXTENSION: ClassVar[str] = _LIBRARY

    @classmethod
    def ask(cls) -> list[Device]:
        """Ask torch_xmlir, if it is installed.

        Raises:
            ClusterError: torch_xmlir failed.
        """
        if importlib.util.find_spec(_LIBRARY) is None:
            return []
        done = subprocess.run(  # noqa: S603  (our own interpreter and a constant text)
            [sys.executable, "-c", _QUESTION],
            capture_output=True,
            text=True,
            timeout=timing.TIMING.kunlun_s,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ClusterError(f"{_LIBRARY} failed: {last}")
        names = json.loads(done.stdout.splitlines()[-1])
        return [Device(name, index=i) for i, name in enumerate(names)]
