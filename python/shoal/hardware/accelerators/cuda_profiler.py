"""Profiling through torch's CUDA interface, which torch has for ROCm as well."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, ClassVar

from shoal.hardware.accelerators.manager import AcceleratorManager

__all__ = ["CudaProfiler"]


class CudaProfiler(AcceleratorManager):
    """Base class of vendors whose profiler records between `torch.cuda.profiler.start` and `stop`."""

    _recording: ClassVar[bool] = False

    @classmethod
    def start_profiling(cls, step_idx: int | None = None) -> None:
        """Start the profiler's recording."""
        del step_idx
        CudaProfiler._recording = True
        cls._cuda().profiler.start()

    @classmethod
    def stop_profiling(cls) -> None:
        """Stop the profiler's recording."""
        CudaProfiler._recording = False
        cls._cuda().profiler.stop()

    @classmethod
    def is_profiling_active(cls) -> bool:
        """Return whether a profiler records now."""
        return CudaProfiler._recording

    @classmethod
    @contextlib.contextmanager
    def profiling_range(
        cls, label: str, color: str | None = None, domain: str | None = None
    ) -> Iterator[None]:
        """Mark a `with` block as an NVTX range, while the profiler records."""
        del color, domain  # torch's ranges have neither
        if not CudaProfiler._recording:
            yield
            return
        nvtx = cls._cuda().nvtx
        nvtx.range_push(label)
        try:
            yield
        finally:
            nvtx.range_pop()

    @staticmethod
    def _cuda() -> Any:
        return importlib.import_module("torch.cuda")
