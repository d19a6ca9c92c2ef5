"""Accelerators: one class per vendor, and the functions that work for every vendor.

A node queries the vendors in the order of the imports below, and then those of the user.
"""

# isort: off
from shoal.hardware.accelerators.kind import ACCELERATOR_HW_TYPE, AcceleratorType
from shoal.hardware.accelerators.devices import Device, Restrictions
from shoal.hardware.accelerators.manager import AcceleratorManager
from shoal.hardware.accelerators.amd import AMDGPUManager
from shoal.hardware.accelerators.ascend import AscendNPUManager
from shoal.hardware.accelerators.intel import IntelGPUManager
from shoal.hardware.accelerators.kunlun import KunlunXPUManager
from shoal.hardware.accelerators.musa import MUSAGPUManager
from shoal.hardware.accelerators.nvidia import NvidiaGPUManager
from shoal.hardware.accelerators.accelerator import Accelerator, accelerator_model
from shoal.hardware.accelerators.util import AcceleratorUtil, complete_environment, visibility_env

# isort: on
from shoal.profiling import NsightConfig, RocprofSysConfig

AcceleratorManager.register_profiling_config(AcceleratorType.NV_GPU)(NsightConfig)
AcceleratorManager.register_profiling_config(AcceleratorType.AMD_GPU)(RocprofSysConfig)

__all__ = [
    "ACCELERATOR_HW_TYPE",
    "AMDGPUManager",
    "Accelerator",
    "AcceleratorManager",
    "AcceleratorType",
    "AcceleratorUtil",
    "AscendNPUManager",
    "Device",
    "IntelGPUManager",
    "KunlunXPUManager",
    "MUSAGPUManager",
    "NvidiaGPUManager",
    "Restrictions",
    "accelerator_model",
    "complete_environment",
    "visibility_env",
]
