"""The EGL index of each CUDA device, for rendering without a screen on the worker's own GPU."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping

from shoal.hardware import timing

__all__ = ["egl_ids"]

_log = logging.getLogger("shoal")

# EGL lists devices in its own order. NVIDIA's EGL devices report their CUDA index, as counted by
# the process that queries it. Runs in a separate process, because drivers have crashed on it.
_QUESTION = """
import ctypes, json, sys

CUDA_DEVICE, MOST = 0x323A, 64
egl = ctypes.CDLL("libEGL.so.1")
egl.eglGetProcAddress.restype = ctypes.c_void_p
egl.eglGetProcAddress.argtypes = [ctypes.c_char_p]
pointers, number = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int)
value = ctypes.POINTER(ctypes.c_ssize_t)
list_devices = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, pointers, number)(
    egl.eglGetProcAddress(b"eglQueryDevicesEXT"))
attribute = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, value)(
    egl.eglGetProcAddress(b"eglQueryDeviceAttribEXT"))
devices, count = (ctypes.c_void_p * MOST)(), ctypes.c_int()
found = {}
if list_devices(MOST, devices, ctypes.byref(count)):
    for index in range(count.value):
        cuda = ctypes.c_ssize_t(-1)
        if attribute(devices[index], CUDA_DEVICE, ctypes.byref(cuda)) and cuda.value >= 0:
            found[cuda.value] = index
sys.stdout.write("\\n" + json.dumps(found))
"""


def egl_ids(visible: str, count: int, environment: Mapping[str, str] | None = None) -> list[int]:
    """Ask EGL for its indices of a node's devices.

    Args:
        visible: The devices, as CUDA's visibility variable names them; empty for all.
        count: The number of devices.
        environment: The environment of the process that queries EGL; None for this process's.

    Returns:
        One index per device, -1 if it has none; an empty list if EGL reports no indices.
    """
    env = dict(os.environ if environment is None else environment)
    if visible:
        env["CUDA_VISIBLE_DEVICES"] = visible
    else:
        env.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        done = subprocess.run(  # noqa: S603  (our own interpreter and a constant text)
            [sys.executable, "-c", _QUESTION],
            capture_output=True,
            text=True,
            timeout=timing.TIMING.egl_s,
            check=True,
            env=env,
        )
        found = {
            int(cuda): int(egl) for cuda, egl in json.loads(done.stdout.splitlines()[-1]).items()
        }
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        _log.debug("EGL reports nothing about this node's devices: %s", error)
        return []
    indices = [found.get(rank, -1) for rank in range(count)]
    return indices if any(index >= 0 for index in indices) else []
