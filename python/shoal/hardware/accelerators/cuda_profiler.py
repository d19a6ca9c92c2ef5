"""Profiling through torch's CUDA interface, which torch has for ROCm as well."""

import contextlib
import importlib
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

from shoal.hardware.accelerators.manager import AcceleratorManager

__all__ = ["CudaProfiler"]

_log = logging.getLogger("shoal")


class CudaProfiler(AcceleratorManager):
    """Base class of vendors whose profiler records between `torch.cuda.profiler.start` and `stop`."""

    _recording: ClassVar[bool] = False

    @classmethod
    def start_profiling(cls, step_idx: int | None = None) -> None:
        """Start the profiler's recording; does nothing if it records already."""
        if CudaProfiler._recording:
            return
        if step_idx is not None:
            _log.info("profiling: step %d", step_idx)
        CudaProfiler._recording = True
        cls._cuda().profiler.start()

    @classmethod
    def stop_profiling(cls) -> None:
        """Stop the profiler's recording; does nothing if it does not record."""
        if CudaProfiler._recording:
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
        """Mark a `with` block as an NVTX range, while the profiler records.

        Args:
            label: The name of the range.
            color: Its colour, a name or `0xRRGGBB`; needs the package `nvtx`, as `domain` does.
            domain: Its domain.
        """
        if not CudaProfiler._recording:
            yield
            return
        try:
            annotate = importlib.import_module("nvtx").annotate
        except ImportError:
            annotate = None
        if annotate is not None:
            with annotate(label, color=color, domain=domain):
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
