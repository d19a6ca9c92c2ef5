"""The calls of the CUDA driver by which processes share memory of a GPU.

The memory is the driver's, not that of torch's allocator: so the settings of that one do not matter
(`expandable_segments`), a handle needs no rights over other processes (`pidfd_getfd`), and the memory
lives until the publisher frees it, however often it was opened.
"""

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref
from types import ModuleType
from typing import Any

from shoal.fork import ChildStage, in_child

__all__ = ["CudaError", "Gpu", "refusal"]

_LIBRARY = "libcuda.so.1"
_OUT_OF_MEMORY = 2
_LAZY_PEER_ACCESS = 1
_STEP = 2**21
"""Sizes are multiples of this: memory of other sizes may share its handle with other memory."""


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


_Pointer = ctypes.c_uint64

_ARGUMENTS: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDeviceGet": [POINTER(ctypes.c_int), ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(ctypes.c_void_p), ctypes.c_int],
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(ctypes.c_void_p)],
    "cuCtxSynchronize": [],
    "cuMemGetInfo_v2": [POINTER(ctypes.c_size_t), POINTER(ctypes.c_size_t)],
    "cuMemAlloc_v2": [POINTER(_Pointer), ctypes.c_size_t],
    "cuMemFree_v2": [_Pointer],
    "cuIpcGetMemHandle": [POINTER(_Handle), _Pointer],
    "cuIpcOpenMemHandle_v2": [POINTER(_Pointer), _Handle, ctypes.c_uint],
    "cuIpcCloseMemHandle": [_Pointer],
    "cuGetErrorString": [ctypes.c_int, POINTER(ctypes.c_char_p)],
}


class CudaError(Exception):
    """A call of the driver failed.

    Attributes:
        is_out_of_memory: Whether the GPU has no room.
    """

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.is_out_of_memory = code == _OUT_OF_MEMORY


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(_LIBRARY)
    for name, arguments in _ARGUMENTS.items():
        getattr(library, name).argtypes = arguments
    return library


def _call(name: str, *arguments: Any) -> None:
    library = _library()
    code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, byref(text))
        raise CudaError(name, code, (text.value or b"an unknown error").decode())


def refusal(torch: ModuleType) -> str | None:
    """Say why this process cannot use memory of a GPU that others share; None if it may try."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        given = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        return f"torch finds no GPU of NVIDIA{given}"
    try:
        _library()
    except (OSError, AttributeError) as error:
        return f"the library of the CUDA driver is not there, or too old: {error}"
    return None


class Gpu:
    """A GPU that this process sees; use `of`.

    Args:
        index: Its number in this process.

    Raises:
        CudaError: The driver cannot use it.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        _call("cuInit", 0)
        _call("cuDeviceGet", byref(device), index)
        _call("cuDevicePrimaryCtxRetain", byref(self._context), device)  # that of torch

    @staticmethod
    @functools.cache
    def of(index: int) -> "Gpu":
        """Return the GPU with a number."""
        return Gpu(index)

    @contextmanager
    def _current(self) -> Iterator[None]:
        _call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", byref(ctypes.c_void_p()))

    def allocate(self, nbytes: int) -> tuple[int, bytes]:
        """Return the address of new memory, and the handle by which others open it.

        Raises:
            CudaError: There is no room, or the driver does not share memory of this GPU, as on some
                virtual ones and in some containers.
        """
        address, handle = _Pointer(), _Handle()
        with self._current():
            _call("cuMemAlloc_v2", byref(address), -(-nbytes // _STEP) * _STEP)
            try:
                _call("cuIpcGetMemHandle", byref(handle), address)
            except BaseException:
                _call("cuMemFree_v2", address)
                raise
        return address.value, bytes(handle)

    def free(self, address: int) -> None:
        """Free memory of this process."""
        with self._current():
            _call("cuMemFree_v2", address)

    def open(self, handle: bytes) -> int:
        """Map memory of another process, and return its address; may be called again."""
        address = _Pointer()
        with self._current():
            taken = _Handle.from_buffer_copy(handle)
            _call("cuIpcOpenMemHandle_v2", byref(address), taken, _LAZY_PEER_ACCESS)
        return address.value

    def close(self, address: int) -> None:
        """End what one `open` began."""
        with self._current():
            _call("cuIpcCloseMemHandle", address)

    def synchronize(self) -> None:
        """Wait for all that this process has begun on the GPU."""
        with self._current():
            _call("cuCtxSynchronize")

    def room(self) -> int:
        """Return the number of bytes that are free."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._current():
            _call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value


in_child(ChildStage.FORGET, Gpu.of.cache_clear)  # CUDA does not survive a fork
