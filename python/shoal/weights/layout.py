"""The layout of a version: which bytes of a state go where in its file, and back to tensors.

A file has a header, blocks of data, a description, and the digests of the blocks, in this order. A
block holds one tensor or array, or several that share memory; these share it where they are read,
too. Data is copied once, from where it is to the file; only the description, and small values of
other types, are pickled. The blocks of a delta that did not change are in files of older versions.
"""

import ctypes
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal import pickling
from shoal.errors import ShoalValueError
from shoal.weights.copying import cast, gather, stage
from shoal.weights.description import (
    HEADER,
    BlockRange,
    Description,
    Entries,
    Frame,
    Leaf,
    Value,
)
from shoal.weights.shards import (
    LocalShard,
    ShardFile,
    Shards,
    dense_strides,
    is_distributed,
    local_shard,
    shard_files,
)
from shoal.weights.version import FilePart

if TYPE_CHECKING:
    import torch

__all__ = [
    "ALIGNMENT",
    "Blocks",
    "Mark",
    "Piece",
    "Placement",
    "StateLayout",
    "flattened",
    "keys_of",
    "was_written",
]

ALIGNMENT = 64
"""Blocks begin at multiples of this."""

_VALUE_BYTES = 2**20
"""Maximum number of bytes of a value that is neither a tensor nor an array."""

_SPARSE = 4
"""Tensors that share memory are one block if it has at most this many times their bytes."""


class Piece(NamedTuple):
    """A block of a state that is to be published.

    Attributes:
        size: Its number of bytes.
        source: A contiguous buffer with its bytes, or the function that copies them.
        marks: The mark of each of its tensors; None if one has no mark.
        device: The device that has it; an empty text for the CPU.
    """

    size: int
    source: Any
    marks: "tuple[Mark, ...] | None"
    device: str = ""


class _Source(NamedTuple):
    """A tensor or array to publish.

    Attributes:
        name: Its name.
        kind: As of `Leaf`.
        value: The tensor or array.
        dtype: As of `Leaf`.
        device: The device of its memory.
        strides: As of `Leaf`.
        nbytes: The number of bytes of its elements.
        itemsize: The number of bytes of one.
        first: The address of its first element.
        start: The lowest address of its bytes.
        end: The address after the last of its bytes.
    """

    name: str
    kind: str
    value: Any
    dtype: Any
    device: str
    strides: tuple[int, ...]
    nbytes: int
    itemsize: int
    first: int
    start: int
    end: int

    @classmethod
    def of(cls, name: str, kind: str, value: Any, dtype: Any, device: str, first: int) -> "_Source":
        """Return the source of a tensor or array with data, whose first element is at `first`."""
        itemsize, nbytes = value.itemsize, value.nbytes
        if kind == "torch":
            strides, scale, is_dense = value.stride(), itemsize, value.is_contiguous()
        else:
            strides, scale, is_dense = value.strides, 1, value.flags.c_contiguous
        start, end = first, first + nbytes
        if not is_dense:
            reaches = [s * scale * (n - 1) for s, n in zip(strides, value.shape, strict=True)]
            start = first + sum(reach for reach in reaches if reach < 0)
            end = first + sum(reach for reach in reaches if reach > 0) + itemsize
        if not nbytes:
            start = end = first = 0
        return cls(
            name, kind, value, dtype, device, tuple(strides), nbytes, itemsize, first, start, end
        )

    @property
    def span(self) -> int:
        return self.end - self.start

    def leaf(self, block: int, offset: int) -> Leaf:
        """Return the leaf of a block in which the elements lie as in the source."""
        return Leaf(self.kind, self.dtype, tuple(self.value.shape), self.strides, block, offset)

    def mark(self) -> "Mark | None":
        """Return the mark of a tensor of torch; None of others, and of tensors that count no writes."""
        if self.kind != "torch":
            return None
        try:
            written = self.value._version  # noqa: SLF001  (torch has no other name for it)
        except RuntimeError:  # an inference tensor has no version
            return None
        return Mark(_weak_ref_type()(self.value.untyped_storage()), written, self.first)


class Mark(NamedTuple):
    """The state of a tensor, which each write to it changes, but for those through `.data`.

    Attributes:
        storage: A weak reference to its storage.
        written: The number of writes to it.
        first: The address of its first element.
    """

    storage: Any
    written: int
    first: int


def was_written(before: tuple[Mark, ...] | None, now: tuple[Mark, ...] | None) -> bool | None:
    """Return whether a block has been written to since it had the marks `before`.

    None if the marks do not tell: its tensors have other storages now, or there is no mark.
    """
    if not before or not now:
        return None
    written = False
    for (storage, count, first), (other, before_count, before_first) in zip(
        now, before, strict=True
    ):
        # As long as a mark refers to a storage, no other one has its address.
        if storage.cdata != other.cdata:
            return None
        written |= count != before_count or first != before_first
    return written


@functools.cache
def _weak_ref_type() -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef


class Blocks:
    """The blocks of a state, and what they hold; see `StateLayout`."""

    def __init__(self, pieces: list[Piece], entries: Entries, shards: Sequence[Shards]) -> None:
        self.pieces, self.entries, self.shards = pieces, entries, shards


class StateLayout(Blocks):
    """The blocks of a state, and which parts of the state they hold.

    Args:
        state: A dict of names to tensors, arrays, small values, and dicts of such.
        dtype: A dtype of torch to which floating-point tensors are cast on the way; None for none.
        is_part: Whether other processes publish the rest, so that it may have distributed tensors.

    Attributes:
        pieces: The blocks.
        shards: The shards of distributed tensors, by their meshes. Their blocks follow.
        entries: The leaves and values by name, in the order of the state.
        nbytes: The number of bytes of all blocks but those of shards.

    Raises:
        ShoalValueError: The state cannot be published; the text names the part.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        dtype: "torch.dtype | None" = None,
        *,
        is_part: bool = False,
    ) -> None:
        self._dtype = dtype
        shards: list[LocalShard] = []
        found: dict[str, Leaf | Value | None] = {}
        self._sources: list[_Source] = []  # kept, because buffers only point to their memory
        for name, value in flattened(state, "publish"):
            if name in found:
                raise ShoalValueError(f"publish: two parts of the state have the name {name!r}")
            if is_part and is_distributed(value):
                found[name] = None
                shards.append(local_shard(name, value, dtype))
                continue
            source = _source(name, value)
            # None holds the place, so that the entries have the order of the state.
            found[name] = _value(name, value) if source is None else None
            if source is not None:
                self._sources.append(source)
        self.pieces: list[Piece] = []
        for group in _groups(self._sources):
            self._add(group, found)
        self.shards: list[ShardFile] = shard_files(shards)
        number = len(self.pieces)
        for file in self.shards:
            found |= file.leaves(number)
            number += len(file.blocks)
        self.entries = {name: entry for name, entry in found.items() if entry is not None}
        self.nbytes = sum(piece.size for piece in self.pieces)

    def _add(self, group: list[_Source], found: dict[str, Leaf | Value | None]) -> None:
        """Make a block of sources that share memory, or of one that does not."""
        block, only = len(self.pieces), group[0]
        start = only.start  # they are sorted
        size = max([source.end for source in group]) - start
        dtype = self._cast_of(group)
        copied: Any
        if len(group) == 1 and only.span > only.nbytes:
            found[only.name] = _scattered(only, block, dtype)
            size = only.nbytes // only.itemsize * (dtype or only.value.dtype).itemsize
            copied = partial(gather, only.value, dtype)
        elif dtype is not None:
            count, unit = size // only.itemsize, dtype.itemsize
            for source in group:
                at = (source.first - start) // source.itemsize * unit
                found[source.name] = source.leaf(block, at)._replace(dtype=_name_of(dtype))
            size, copied = count * unit, partial(cast, only.value, start, count, dtype)
        else:
            for source in group:
                found[source.name] = source.leaf(block, source.first - start)
            if only.device == "cpu":
                copied = (ctypes.c_ubyte * size).from_address(start) if size else b""
            else:
                copied = partial(stage, only.value, start) if size else b""
        marks: tuple[Mark, ...] | None = ()
        for source in group:
            mark = source.mark()
            marks = None if marks is None or mark is None else (*marks, mark)
        device = "" if only.device == "cpu" else only.device
        self.pieces.append(Piece(size, copied, marks, device))

    def _cast_of(self, group: list[_Source]) -> "torch.dtype | None":
        """Return the dtype to cast a group to; None if it keeps its own.

        Raises:
            ShoalValueError: Its tensors are not all of one dtype.
        """
        wanted = self._dtype
        if wanted is None or not any(
            source.kind == "torch"
            and source.value.is_floating_point()
            and source.value.dtype != wanted
            and source.nbytes
            for source in group
        ):
            return None
        others = [source for source in group if source.dtype != group[0].dtype]
        if others:
            raise ShoalValueError(
                f"publish: dtype={_name_of(wanted)}: {group[0].name!r} and {others[0].name!r} share "
                f"memory and have the dtypes {group[0].dtype} and {others[0].dtype}, so it cannot be "
                "cast; publish them without dtype="
            )
        return wanted


class Placement:
    """Where the blocks of a state go in the file of a version.

    Args:
        layout: The state.
        own: The file.
        shared: The file, and the offset in it, of each block that is there already.
        notes: As of `Description`.
        shard_files: The files of the shards of distributed tensors.

    Attributes:
        copied: The numbers of the blocks that are copied, each with its offset.
        frame: The bytes around them.
    """

    def __init__(
        self,
        layout: Blocks,
        own: FilePart,
        shared: Mapping[int, tuple[FilePart, int]] | None = None,
        notes: dict[str, Any] | None = None,
        shard_files: Sequence[FilePart] = (),
    ) -> None:
        files, blocks = {own: 0}, []
        self.copied: list[tuple[int, int]] = []
        end = _aligned(HEADER.size)
        for number, piece in enumerate(layout.pieces):
            if shared and number in shared:
                other, start = shared[number]
                blocks.append(BlockRange(files.setdefault(other, len(files)), start, piece.size))
                continue
            blocks.append(BlockRange(0, end, piece.size))
            self.copied.append((number, end))
            end = _aligned(end + piece.size)
        for shards, part in zip(layout.shards, shard_files, strict=True):
            number = files.setdefault(part, len(files))
            blocks += [BlockRange(number, start, size) for start, size in shards.blocks]
        description = Description(tuple(files), tuple(blocks), layout.entries, (), notes or {})
        self.frame = Frame(description, end)


def keys_of(blocks: Sequence[Piece | BlockRange], entries: Entries) -> list[tuple[Any, ...]]:
    """Return a key for each block of a state or a version, which may share blocks of equal keys."""
    found: list[list[Any]] = [[block.size] for block in blocks]
    for name, entry in entries.items():
        if isinstance(entry, Leaf):
            kind, dtype, shape, strides, block, offset = entry
            # The dtype of a record is a list.
            found[block].append((name, kind, str(dtype), shape, strides, offset))
    return [tuple(key) for key in found]


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def flattened(state: Any, operation: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of nested dicts, with their names joined by dots.

    Args:
        state: The dict.
        operation: The operation on it, for errors.
        prefix: The begin of all names.

    Raises:
        ShoalValueError: It is not a dict, or a name is not a text.
    """
    if not isinstance(state, Mapping):
        raise ShoalValueError(
            f"{operation}: a state of type {type(state).__name__}: expected a dict of names to "
            "tensors, arrays and small values, such as module.state_dict()"
        )
    for name, value in state.items():
        if not isinstance(name, str) or not name:
            where = f"the part {prefix[:-1]!r}" if prefix else "the state"
            raise ShoalValueError(f"{operation}: {where} has the name {name!r}: expected a text")
        if isinstance(value, Mapping):
            yield from flattened(value, operation, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _value(name: str, value: Any) -> Value:
    data, buffers = pickling.dumps(value)
    size = len(data) + sum(buffer.nbytes for buffer in buffers)
    if size > _VALUE_BYTES:
        raise ShoalValueError(
            f"publish: {name!r} of type {type(value).__name__} has {size:,} bytes as a pickle: "
            f"expected at most {_VALUE_BYTES:,}; give tensors and arrays names of their own"
        )
    return Value(data, tuple(map(bytes, buffers)))


def _source(name: str, value: Any) -> _Source | None:
    """Return a tensor or an array as a source; None for another value."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        _check_tensor(name, value, torch)
        tensor = value.detach() if value.requires_grad else value
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        device = "cpu" if tensor.is_cpu else str(tensor.device)
        return _Source.of(name, "torch", tensor, _name_of(tensor.dtype), device, tensor.data_ptr())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        values = value.view(np.ndarray)
        first = values.__array_interface__["data"][0]
        description = np.lib.format.dtype_to_descr(values.dtype)
        return _Source.of(name, "numpy", values, description, "cpu", first)
    return None


def _check_tensor(name: str, tensor: "torch.Tensor", torch: ModuleType) -> None:
    if is_distributed(tensor):
        kind = (
            "DTensor, of which this process has a shard (publish it with part=(rank, world_size))"
        )
    elif type(tensor) is not torch.Tensor and _is_wrapper(tensor):
        kind = type(tensor).__name__
    elif tensor.is_quantized:
        kind = "quantized tensor"
    elif tensor.layout != torch.strided:
        kind = f"tensor of layout {tensor.layout}"
    elif tensor.is_meta:
        kind = "tensor without data, on the device meta"
    elif tensor.numel() and (
        not tensor.data_ptr() or tensor.untyped_storage().nbytes() < _needed(tensor)
    ):
        kind = "tensor whose storage was freed"
    else:
        return
    raise ShoalValueError(f"publish: {name!r} is a {kind}: expected a plain tensor with data")


def _is_wrapper(tensor: "torch.Tensor") -> bool:
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    found: bool = is_traceable_wrapper_subclass(tensor)
    return found


def _needed(tensor: "torch.Tensor") -> int:
    """Return the number of bytes that a storage needs for a tensor."""
    last = tensor.numel() - 1
    if not tensor.is_contiguous():
        pairs = zip(tensor.stride(), tensor.shape, strict=True)
        last = sum(stride * (length - 1) for stride, length in pairs)
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def _groups(sources: list[_Source]) -> Iterator[list[_Source]]:
    """Yield the sources that share memory together, and each other one alone."""
    found: list[_Source] = []
    end = 0
    for source in sorted(sources, key=lambda source: (source.device, source.start)):
        if found and source.device == found[0].device and source.start < end:
            found.append(source)
            end = max(end, source.end)
            continue
        yield from _together(found)
        found, end = [source], source.end
    yield from _together(found)


def _together(group: list[_Source]) -> list[list[_Source]]:
    if len(group) < 2:  # noqa: PLR2004  (there is nothing to share memory with)
        return [group] if group else []
    start = min(source.start for source in group)
    span = max(source.end for source in group) - start
    is_aligned = all((source.first - start) % source.itemsize == 0 for source in group)
    if is_aligned and span <= _SPARSE * sum(source.nbytes for source in group):
        return [group]
    return [[source] for source in group]


def _scattered(source: _Source, block: int, dtype: "torch.dtype | None") -> Leaf:
    """Return the leaf of a source with gaps between its elements, which has none in the file."""
    shape = tuple(source.value.shape)
    unit = 1 if source.kind == "torch" else source.itemsize
    name = source.dtype if dtype is None else _name_of(dtype)
    return Leaf(source.kind, name, shape, dense_strides(shape, unit), block, 0)


def _name_of(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")
