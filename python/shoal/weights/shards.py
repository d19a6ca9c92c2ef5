"""Local shards of distributed tensors, which several processes write into one block."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import xxhash

from shoal.errors import ShoalValueError
from shoal.transport.torch.accelerator import stage_to_pinned_cpu
from shoal.weights.description import Leaf

if TYPE_CHECKING:
    import torch

__all__ = ["LocalShard", "ShardFile", "Shards", "is_distributed", "local_shard", "shard_files"]

_ALIGNMENT = 64


class LocalShard(NamedTuple):
    """The part of a distributed tensor that this process has.

    Attributes:
        name: The name of the tensor.
        local: The local tensor.
        dtype: The dtype of the published tensor.
        shape: The shape of the whole tensor.
        starts: Where the local tensor begins in the whole one, in each dimension.
        writes: Whether this process publishes it: of replicas one does.
        mesh: The ranks of its mesh, which all publish it.
    """

    name: str
    local: "torch.Tensor"
    dtype: "torch.dtype"
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    writes: bool
    mesh: tuple[int, ...]


def is_distributed(value: Any) -> bool:
    """Whether a value is a `DTensor`."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_shard(name: str, tensor: Any, dtype: "torch.dtype | None") -> LocalShard:
    """Return the local part of a `DTensor`.

    Args:
        name: Its name.
        tensor: The tensor.
        dtype: A dtype to cast it to if it has floating point; None for its own.

    Raises:
        ShoalValueError: Its placements are not `Shard` and `Replicate`.
    """
    from torch.distributed.tensor import Replicate, Shard

    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    local = tensor.to_local().detach()
    starts, sizes, writes = [0] * tensor.dim(), list(tensor.shape), coordinate is not None
    for axis, placement in enumerate(placements):
        if coordinate is None:  # this process is not in the mesh
            sizes = list(local.shape)
        elif type(placement) is Replicate:
            writes = writes and coordinate[axis] == 0
        elif type(placement) is Shard:
            at = placement.dim
            # As `torch.chunk` divides: the first parts have the same size, the last may have less.
            step = -(-sizes[at] // mesh.size(axis))
            first = min(sizes[at], step * coordinate[axis])
            starts[at] += first
            sizes[at] = min(sizes[at] - first, step)
        else:
            raise ShoalValueError(
                f"publish: {name!r} has the placement {placement}: expected Shard or Replicate"
            )
    if tuple(local.shape) != tuple(sizes):
        raise ShoalValueError(
            f"publish: {name!r} has the local shape {tuple(local.shape)}, and its placements "
            f"{placements} give {tuple(sizes)}: expected a tensor that is divided as torch.chunk does"
        )
    cast = dtype if dtype is not None and local.is_floating_point() else local.dtype
    ranks = tuple(mesh.mesh.flatten().tolist())
    return LocalShard(name, local, cast, tuple(tensor.shape), tuple(starts), writes, ranks)


def shard_files(shards: Sequence[LocalShard]) -> "list[ShardFile]":
    """Return a file for the shards of each mesh: its processes have shards of the same tensors."""
    by_mesh: dict[tuple[int, ...], list[LocalShard]] = {}
    for shard in shards:
        by_mesh.setdefault(shard.mesh, []).append(shard)
    return [ShardFile(group) for group in by_mesh.values()]


class Shards(Protocol):
    """The shards of one process, of the tensors of one mesh; see `ShardFile`."""

    blocks: list[tuple[int, int]]
    nbytes: int
    signature: int

    def counts(self) -> dict[str, int]:
        """Return how many elements of each tensor this process writes."""

    def write(self, memory: memoryview) -> None:
        """Copy the shards of this process."""


class ShardFile:
    """A file in which each of several processes writes its shards of the same tensors.

    Args:
        shards: The shards of this process.

    Attributes:
        nbytes: The size of the file in bytes.
        signature: A number that is the same in all processes with shards of the same tensors.
    """

    def __init__(self, shards: Sequence[LocalShard]) -> None:
        self._shards = shards
        self.blocks: list[tuple[int, int]] = []
        end = 0
        for shard in shards:
            size = shard.dtype.itemsize
            for length in shard.shape:
                size *= length
            self.blocks.append((end, size))
            end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = max(1, end)
        known = repr([shards[0].mesh]) + repr(
            [(shard.name, shard.shape, str(shard.dtype)) for shard in shards]
        )
        self.signature = xxhash.xxh3_64_intdigest(known.encode())

    def leaves(self, first: int) -> dict[str, Leaf]:
        """Return the leaves of the tensors, whose blocks are numbered from `first` on."""
        found = {}
        for number, shard in enumerate(self._shards):
            strides = [1] * len(shard.shape)
            for axis in range(len(shard.shape) - 2, -1, -1):
                strides[axis] = strides[axis + 1] * max(1, shard.shape[axis + 1])
            dtype = str(shard.dtype).removeprefix("torch.")
            found[shard.name] = Leaf("torch", dtype, shard.shape, tuple(strides), first + number, 0)
        return found

    def counts(self) -> dict[str, int]:
        """Return how many elements of each tensor this process writes."""
        return {shard.name: shard.local.numel() if shard.writes else 0 for shard in self._shards}

    def written(self) -> "Iterator[tuple[LocalShard, int, int]]":
        """Yield each shard that this process writes, and the start and the size of its block."""
        for shard, (start, size) in zip(self._shards, self.blocks, strict=True):
            if shard.writes and shard.local.numel():
                yield shard, start, size

    def write(self, memory: memoryview) -> None:
        """Copy the shards of this process."""
        import torch

        for shard, start, size in self.written():
            whole = torch.frombuffer(memory[start : start + size], dtype=torch.uint8)
            target = whole.view(shard.dtype).view(shard.shape)
            lengths = zip(shard.starts, shard.local.shape, strict=True)
            place = tuple(slice(at, at + length) for at, length in lengths)
            target[place].copy_(stage_to_pinned_cpu(shard.local.to(shard.dtype)))
