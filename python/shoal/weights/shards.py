"""Local shards of distributed tensors, which several processes write into one block."""

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import xxhash

from shoal.errors import ShoalValueError
from shoal.transport.torch.accelerator import stage_to_pinned_cpu
from shoal.weights.description import Leaf

if TYPE_CHECKING:
    import torch

__all__ = [
    "LocalShard",
    "ShardFile",
    "Shards",
    "dense_strides",
    "is_distributed",
    "local_shard",
    "shard_files",
]

_ALIGNMENT = 64

_Run = tuple[int, int]
"""Elements in a row, in one dimension of a whole tensor: the first, and how many."""


def dense_strides(shape: tuple[int, ...], unit: int = 1) -> tuple[int, ...]:
    """Return the strides of a tensor or array without gaps, whose elements are this far apart."""
    return tuple(unit * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


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
        runs: Where the local tensor lies in the whole one, in each dimension, if it is several
            parts of it.
    """

    name: str
    local: "torch.Tensor"
    dtype: "torch.dtype"
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    writes: bool
    mesh: tuple[int, ...]
    runs: tuple[tuple[_Run, ...], ...] = ()

    def parts(self) -> "Iterator[LocalShard]":
        """Yield a shard for each part of the whole tensor that the local one is."""
        if not self.runs:
            yield self
            return
        for place in itertools.product(*map(_with_offsets, self.runs)):
            starts = tuple(start for start, _, _ in place)
            here = tuple(slice(at, at + count) for _, count, at in place)
            yield self._replace(local=self.local[here], starts=starts, runs=())


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
        ShoalValueError: It has a placement that is none of `Shard`, `Replicate` and the
            `_StridedShard` of FSDP2, or it is divided in another way than these say.
    """
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    local = tensor.to_local().detach()
    runs, writes = [[(0, length)] for length in tensor.shape], coordinate is not None
    if coordinate is None:  # this process is not in the mesh
        runs = [[(0, length)] for length in local.shape]
    for axis in () if coordinate is None else _axes(tensor):
        placement, rank = placements[axis], coordinate[axis]
        kind = type(placement).__name__
        if kind == "Replicate":
            writes = writes and rank == 0
        elif kind in {"Shard", "_StridedShard"}:
            at = placement.dim
            runs[at] = _divided(name, runs[at], placement, mesh.size(axis), rank)
        else:
            raise ShoalValueError(
                f"publish: {name!r} has the placement {placement}: expected Shard or Replicate"
            )
    sizes = tuple(_length(of_dimension) for of_dimension in runs)
    if tuple(local.shape) != sizes:
        raise ShoalValueError(
            f"publish: {name!r} has the local shape {tuple(local.shape)}, and its placements "
            f"{placements} give {sizes}: expected a tensor that is divided as torch.chunk does"
        )
    cast = dtype if dtype is not None and local.is_floating_point() else local.dtype
    ranks = tuple(mesh.mesh.flatten().tolist())
    starts = tuple(of_dimension[0][0] if of_dimension else 0 for of_dimension in runs)
    several = tuple(map(tuple, runs)) if any(len(one) > 1 for one in runs) else ()
    return LocalShard(name, local, cast, tuple(tensor.shape), starts, writes, ranks, several)


def _axes(tensor: Any) -> list[int]:
    """Return the dimensions of the mesh in the order in which they divide the tensor."""
    # Newer versions of torch may give another order than that of the mesh.
    order = getattr(tensor._spec, "shard_order", None) or ()  # noqa: SLF001  (torch has no other name for it)
    first = [axis for entry in order for axis in entry.mesh_dims]
    return first + [axis for axis in range(len(tensor.placements)) if axis not in first]


def _divided(name: str, runs: list[_Run], placement: Any, parts: int, rank: int) -> list[_Run]:
    """Return what a placement leaves of a dimension to the process of a rank.

    Raises:
        ShoalValueError: The installed torch divides it in another way.
    """
    length, factor = _length(runs), getattr(placement, "split_factor", 1)
    kept = []
    # FSDP2 divides each of the parts that tensor parallelism, whose placement follows, has made.
    for start, count in (_chunk(length, factor, number) for number in range(factor)):
        first, size = _chunk(count, parts, rank)
        kept.append((start + first, size))
    if factor > 1 and length % (factor * parts):
        import torch

        whole = torch.arange(length).view([1] * placement.dim + [length])
        theirs, _ = placement._split_tensor(whole, parts, with_padding=False, contiguous=False)  # noqa: SLF001  (as above)
        ours = [number for start, count in kept for number in range(start, start + count)]
        if theirs[rank].flatten().tolist() != ours:
            raise ShoalValueError(
                f"publish: {name!r} has the placement {placement}, and {length} elements in this "
                f"dimension, which torch {torch.__version__} divides in another way than FSDP2: "
                "expected a length that divides evenly, or a newer torch"
            )
    found: list[_Run] = []
    for start, count in itertools.chain.from_iterable(_cut(runs, *one) for one in kept):
        if found and sum(found[-1]) == start:
            found[-1] = found[-1][0], found[-1][1] + count
        else:
            found.append((start, count))
    return found


def _chunk(length: int, parts: int, number: int) -> _Run:
    """Divide as `torch.chunk` does: the first parts have one size, the last may have less."""
    step = -(-length // parts)
    first = min(length, step * number)
    return first, min(length - first, step)


def _cut(runs: list[_Run], start: int, count: int) -> Iterator[_Run]:
    """Yield the elements of runs, one after the other, from one on."""
    for first, length, at in _with_offsets(runs):
        low, high = max(start, at), min(start + count, at + length)
        if low < high:
            yield first + low - at, high - low


def _length(runs: Sequence[_Run]) -> int:
    return sum(count for _, count in runs)


def _with_offsets(runs: Sequence[_Run]) -> list[tuple[int, int, int]]:
    """Return runs with the number of elements before each of them."""
    ends = itertools.accumulate((count for _, count in runs), initial=0)
    return [(first, count, at) for (first, count), at in zip(runs, ends, strict=False)]


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
            size = shard.dtype.itemsize * math.prod(shard.shape)
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
            dtype, strides = str(shard.dtype).removeprefix("torch."), dense_strides(shard.shape)
            found[shard.name] = Leaf("torch", dtype, shard.shape, strides, first + number, 0)
        return found

    def counts(self) -> dict[str, int]:
        """Return how many elements of each tensor this process writes."""
        return {shard.name: shard.local.numel() if shard.writes else 0 for shard in self._shards}

    def written(self) -> "Iterator[tuple[LocalShard, int, int]]":
        """Yield what this process writes, and the start and the size of its block."""
        for shard, (start, size) in zip(self._shards, self.blocks, strict=True):
            if shard.writes and shard.local.numel():
                yield from ((part, start, size) for part in shard.parts())

    def write(self, memory: memoryview) -> None:
        """Copy the shards of this process."""
        import torch

        for shard, start, size in self.written():
            whole = torch.frombuffer(memory[start : start + size], dtype=torch.uint8)
            target = whole.view(shard.dtype).view(shard.shape)
            lengths = zip(shard.starts, shard.local.shape, strict=True)
            place = tuple(slice(at, at + length) for at, length in lengths)
            target[place].copy_(stage_to_pinned_cpu(shard.local.to(shard.dtype)))
