"""Double of the distributed tensors of torch: in one process, the shards of all its ranks."""

import importlib
from types import SimpleNamespace
from typing import NamedTuple

torch = importlib.import_module("torch")


class Shard(NamedTuple):
    """As the placement of torch: the ranks have consecutive rows."""

    dim: int


class _StridedShard(NamedTuple):
    """As the placement of FSDP2 after another one, which made `split_factor` parts."""

    dim: int
    split_factor: int = 2


StridedShard = _StridedShard


class Sharded:
    """Stands for a `DTensor` of which a process has the shard of a rank.

    Use it with `add_module("torch.distributed.tensor", DTensor=Sharded)`.
    """

    _spec = None

    def __init__(self, whole, placement, rank, size=2):
        self.shape, self.placements = whole.shape, [placement]
        ranks = torch.arange(size)
        self.device_mesh = SimpleNamespace(
            get_coordinate=lambda: [rank], size=lambda _: size, mesh=ranks
        )
        parts = whole.chunk(getattr(placement, "split_factor", 1), placement.dim)
        shards = [part.chunk(size, placement.dim)[rank] for part in parts]
        self._local = torch.cat(shards, placement.dim)

    def to_local(self):
        return self._local
