"""The description of a version: its contents, their places, and its tensors on mapped memory."""

import os
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from shoal import pickling
from shoal.errors import DependencyError, WeightsCorruptError
from shoal.weights.hashing import DIGEST_BYTES
from shoal.weights.version import FilePart

if TYPE_CHECKING:
    import torch

__all__ = [
    "HEADER",
    "MAGIC",
    "BlockRange",
    "Description",
    "Entries",
    "Frame",
    "Leaf",
    "OnDevice",
    "Value",
    "names_of",
    "read",
    "read_file",
    "view",
]

MAGIC = b"SHOALW\x00\x03"
HEADER = struct.Struct("<8sQQ")
"""The magic bytes, and where the description begins and ends; then the digests follow."""


class Leaf(NamedTuple):
    """A tensor or an array of a version.

    Attributes:
        kind: `torch` or `numpy`.
        dtype: The name of torch's dtype, or numpy's description of a dtype.
        shape: The shape.
        strides: The strides: in elements for torch, in bytes for numpy.
        block: The number of its block.
        offset: The offset in bytes of its first element in the block.
    """

    kind: str
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: int
    offset: int


class Value(NamedTuple):
    """A small value of another type, as a pickle and its buffers."""

    data: bytes
    buffers: tuple[bytes, ...]

    def load(self) -> Any:
        """Return a new copy of the value."""
        return pickling.loads(self.data, [bytearray(buffer) for buffer in self.buffers])


Entries = dict[str, Leaf | Value]


def names_of(entries: Entries, block: int) -> list[str]:
    """Return the names of the tensors and arrays of a block."""
    return [
        name for name, entry in entries.items() if isinstance(entry, Leaf) and entry.block == block
    ]


class BlockRange(NamedTuple):
    """The bytes of one or several tensors of a version.

    Attributes:
        file: The number of its file in `Description.files`.
        start: Its offset in the file in bytes.
        size: Its number of bytes.
    """

    file: int
    start: int
    size: int


class Description(NamedTuple):
    """The contents of a version, and their places.

    Attributes:
        files: The files in which the blocks are; the first is that of the version itself.
        blocks: The blocks.
        entries: The leaves and values by name, in the order of the state.
        digests: The digest of each block; None for one that has none.
        notes: Facts that publishers tell others, such as `who` published each part, or the whole (None).
    """

    files: tuple[FilePart, ...]
    blocks: tuple[BlockRange, ...]
    entries: Entries
    digests: tuple[bytes | None, ...]
    notes: dict[str, Any]


class Frame:
    """The bytes of a file around its blocks: the header, the description, and the digests.

    Args:
        description: The description of the version; its digests are not used.
        start: The end of the blocks in the file.

    Attributes:
        description: The same.
        nbytes: The size of the file in bytes.
    """

    def __init__(self, description: Description, start: int) -> None:
        self.description = description
        self._count = len(description.blocks)
        self._start = start
        self._body = pickle.dumps(
            (
                tuple(map(tuple, description.files)),
                tuple(map(tuple, description.blocks)),
                {
                    name: (type(entry).__name__, tuple(entry))
                    for name, entry in description.entries.items()
                },
                description.notes,
            ),
            protocol=5,
        )
        self._end = start + len(self._body)
        self.nbytes = self._end + DIGEST_BYTES * self._count

    def parts(self, digests: Mapping[int, bytes]) -> list[tuple[int, bytes]]:
        """Return pairs of an offset and the bytes to write there.

        Args:
            digests: The digest of each block that has one.
        """
        table = b"".join(digests.get(number, bytes(DIGEST_BYTES)) for number in range(self._count))
        header = HEADER.pack(MAGIC, self._start, self._end)
        return [(self._start, self._body), (self._end, table), (0, header)]


def read(memory: memoryview) -> Description:
    """Return the description in a version's file.

    Raises:
        WeightsCorruptError: The file is not one of a version.
    """
    start, end = _bounds(bytes(memory[: HEADER.size]), len(memory))
    return _parsed(memory[start:end], lambda size: bytes(memory[end : end + size]))


def read_file(path: Path) -> Description:
    """Same as `read`, for a file that is not mapped: the first look at a mapping costs a huge page.

    Raises:
        FileNotFoundError: There is no such file.
        WeightsCorruptError: The file is not one of a version.
    """
    with path.open("rb", buffering=0) as file:
        start, end = _bounds(file.read(HEADER.size), os.fstat(file.fileno()).st_size)
        file.seek(start)
        # Only what is needed: the file may be much longer than the version.
        return _parsed(file.read(end - start), file.read)


def _bounds(header: bytes, size: int) -> tuple[int, int]:
    """Return where the description and the table of digests begin."""
    magic, start, end = HEADER.unpack(header.ljust(HEADER.size))
    if magic != MAGIC or not start <= end <= size:
        raise WeightsCorruptError(f"the header of a version is {header!r}")
    return start, end


def _parsed(body: bytes | memoryview, next_bytes: Callable[[int], bytes]) -> Description:
    """Return a description from its bytes, and from a function that returns those behind it."""
    kinds = {"Leaf": Leaf, "Value": Value}
    try:
        files, blocks, entries, notes = pickle.loads(body)
        table = next_bytes(DIGEST_BYTES * len(blocks))
        digests = [table[at : at + DIGEST_BYTES] for at in range(0, len(table), DIGEST_BYTES)]
        return Description(
            tuple(FilePart(*file) for file in files),
            tuple(BlockRange(*block) for block in blocks),
            {name: kinds[kind](*fields) for name, (kind, fields) in entries.items()},
            tuple(digest if any(digest) else None for digest in digests),
            notes,
        )
    except Exception as error:
        raise WeightsCorruptError(f"the description of a version is damaged: {error}") from error


class OnDevice(Protocol):
    """The memory of a block in a buffer of a GPU."""

    def __len__(self) -> int: ...

    def tensor(self) -> "torch.Tensor":
        """Return the bytes as a tensor."""


def view(leaf: Leaf, name: str, block: memoryview | OnDevice, storages: dict[int, Any]) -> Any:
    """Return a tensor or an array on the memory of a version.

    Args:
        leaf: What to return.
        name: Its name, for errors.
        block: The memory of its block.
        storages: The storages that earlier calls made, by the number of the block.

    Raises:
        DependencyError: Its package is not installed.
    """
    if leaf.kind == "numpy":
        return _numpy_view(leaf, cast(memoryview, block))
    try:
        return _torch_view(leaf, block, storages)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DependencyError(
            f"{name!r} was published as a tensor of torch, which is not installed here; run: pip "
            "install torch"
        ) from None


def _torch_view(
    leaf: Leaf, block: memoryview | OnDevice, storages: dict[int, Any]
) -> "torch.Tensor":
    import torch

    dtype = getattr(torch, leaf.dtype)
    if not len(block) and 0 not in leaf.shape:
        raise WeightsCorruptError(f"a block of {leaf} is empty")
    storage = storages.get(leaf.block)
    if storage is None and not isinstance(block, memoryview):
        storage = storages.setdefault(leaf.block, block.tensor().untyped_storage())
    elif storage is None:
        if not len(block):
            return torch.empty(leaf.shape, dtype=dtype)
        found = torch.frombuffer(block, dtype=torch.uint8).untyped_storage()
        storage = storages.setdefault(leaf.block, found)
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    return tensor.set_(storage, leaf.offset // tensor.element_size(), leaf.shape, leaf.strides)


def _numpy_view(leaf: Leaf, block: memoryview) -> Any:
    dtype = np.lib.format.descr_to_dtype(leaf.dtype)
    if not len(block):
        values = np.empty(leaf.shape, dtype)
    else:
        values = np.ndarray(leaf.shape, dtype, block, leaf.offset, leaf.strides)
    values.flags.writeable = False
    return values
