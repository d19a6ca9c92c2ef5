"""Options of the accelerators' collective libraries."""

from dataclasses import dataclass, fields

from shoal.errors import ShoalValueError

__all__ = ["CollectiveGroupOptions"]

_LIMITS = {
    "accel_cluster_size": (0, 8),
    "accel_max_ctas": (1, 32),
    "accel_min_ctas": (1, 32),
}


@dataclass
class CollectiveGroupOptions:
    """Options of an accelerator's collective library; other transports need none.

    Attributes:
        accel_cluster_size: NCCL's cluster size, 0 to 8; None for its default.
        accel_max_ctas: Maximum number of blocks of a kernel, 1 to 32; None for its default.
        accel_min_ctas: Minimum number of blocks of a kernel, 1 to 32; None for its default.
        is_high_priority_stream: Whether the kernels run on a high-priority stream.
        use_ring_broadcast: Whether a broadcast goes from receiver to receiver.

    Raises:
        ShoalValueError: A value is out of range, or the minimum is greater than the maximum.
    """

    accel_cluster_size: int | None = None
    accel_max_ctas: int | None = None
    accel_min_ctas: int | None = None
    is_high_priority_stream: bool = False
    use_ring_broadcast: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ShoalValueError(f"{name}={value!r}: expected {low} to {high}")
        most, fewest = self.accel_max_ctas, self.accel_min_ctas
        if most is not None and fewest is not None and most < fewest:
            raise ShoalValueError(
                f"accel_max_ctas={most} is less than accel_min_ctas={fewest}: expected at least that"
            )

    def is_empty_options(self) -> bool:
        """Whether every option has its default."""
        return all(getattr(self, field.name) == field.default for field in fields(self))
