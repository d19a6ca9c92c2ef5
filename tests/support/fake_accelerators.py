"""Gives nodes fake accelerators of the invented vendor ACME, for jobs on a real Ray and for plans."""

import os
from pathlib import Path

_MODULE = """
from shoal.hardware import AcceleratorManager
from shoal.hardware.accelerators import Device, Restrictions

def register():
    @AcceleratorManager.register_manager("ACME")
    class AcmeManager(AcceleratorManager):
        RESTRICTIONS = Restrictions("ACME_VISIBLE_DEVICES")
        CCL_BACKEND, CCL_IFNAME, TORCH_DEVICE = "accl", "ACCL_IFNAME", "acme"

        @classmethod
        def ask(cls):
            return [Device("A1", index=i) for i in range({count})]
"""


def add_acme_devices(folder: Path, count: int, more: str = "") -> dict[str, str]:
    """Write the module into a folder, with `more` members; return the variables that name it."""
    (folder / "acme_devices.py").write_text(_MODULE.replace("{count}", str(count)) + more)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "SHOAL_EXT_MODULE": "acme_devices"}
