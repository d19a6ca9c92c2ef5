"""`Snapshot`: one version of weights, read in place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.errors import ShoalValueError, WeightsCorruptError, WeightsError
from shoal.nearest import did_you_mean
from shoal.weights.description import Description, Leaf, OnDevice, names_of, view
from shoal.weights.device_memory import Devices, owner_of
from shoal.weights.hashing import digests_of
from shoal.weights.loading import LoadReport, differing, load
from shoal.weights.version import Version

__all__ = ["Snapshot"]


class _UnknownNameError(WeightsError, KeyError):
    """A snapshot has nothing of a name; callers expect a `KeyError`."""

    __str__ = Exception.__str__


class Snapshot(Mapping[str, Any]):
    """One version of weights, as tensors and arrays on the memory that was published.

    Nothing is copied. The snapshot, and each tensor and array of it, stays valid and unchanged while
    anything refers to it, whatever is published meanwhile. A reader's write to a tensor stays in its
    process and costs the pages that it touches; numpy's arrays refuse writes.

    `snapshot[name]` returns a tensor, an array or a small value. The name of a part of a nested dict
    is its names joined by dots. `snapshot["actor"]` returns a dict of all parts whose names begin
    with `actor.`, by the rest of the name.

    Attributes:
        version: The version.
        nbytes: The number of bytes of its tensors and arrays.
        description: Their places in memory.
    """

    def __init__(
        self,
        version: Version,
        description: Description,
        memories: Sequence[memoryview | Devices],
        weights: str,
    ) -> None:
        self.version = version
        self._weights = weights
        self.nbytes = sum(block.size for block in description.blocks)
        self.description = description
        self._entries = description.entries
        self._memories = memories
        self._owner = owner_of(description)
        self._views: dict[str, Any] = {}
        self._storages: dict[int, Any] = {}

    def __getitem__(self, name: str) -> Any:
        found = self.get(name, self)
        if found is self:
            raise _UnknownNameError(
                f"version {self.version} of {self._weights} has no name {name!r} (names: {len(self)})"
                f"{did_you_mean(str(name), self)}"
            )
        return found

    def get(self, name: str, /, default: Any = None) -> Any:
        """Same as `snapshot[name]`, but return `default` for an unknown name."""
        self.check()
        found = self._views.get(name)
        if found is not None:
            return found
        entry = self._entries.get(name)
        if entry is None:
            return self._below(name) or default
        if isinstance(entry, Leaf):
            found = view(entry, name, self.block(entry.block), self._storages)
            return self._views.setdefault(name, found)
        return entry.load()

    def check(self) -> None:
        """Raise if the memory of the version has gone.

        Raises:
            PeerLostError: It was that of a GPU, and the publisher has died.
        """
        if self._owner is not None:
            self._owner.check(self.version)

    def _check_read(self) -> None:
        """Raise if the memory has gone while it was read."""
        for memory in self._memories:
            if isinstance(memory, Devices):
                memory.synchronize()
        self.check()

    def block(self, number: int) -> memoryview | OnDevice:
        """Return the memory of a block of the description."""
        file, start, size = self.description.blocks[number]
        return self._memories[file][start : start + size]

    def _below(self, name: str) -> dict[str, Any]:
        prefix = f"{name}."
        return {
            other[len(prefix) :]: self[other] for other in self._entries if other.startswith(prefix)
        }

    def is_tensor(self, name: str) -> bool:
        """Whether a name is that of a tensor or an array, not of a small value."""
        return isinstance(self._entries.get(name), Leaf)

    def load_into(self, target: Any, *, strict: bool = True) -> LoadReport:
        """Copy the tensors and arrays into a module, or into a dict of tensors and arrays.

        Names and shapes are checked before anything is written, but not those of a module with
        hooks, which may change them; values are cast to the dtypes of the target. A module is loaded
        by its `load_state_dict`, so its hooks run; afterwards its values are compared with the
        snapshot if it has any. Small values of the snapshot that the
        target does not have are ignored.

        Args:
            target: A `torch.nn.Module`, or a dict that may be nested.
            strict: Whether a name that only one side has, or a hook that changed values, is an
                error.

        Returns:
            What became of each name.

        Raises:
            ShoalValueError: The target does not fit.
            PeerLostError: The version is in the memory of a GPU, and its publisher has died; what the
                target has now is not that version.
        """
        report = load(self, target, strict=strict)
        self._check_read()
        return report

    def verify(self) -> None:
        """Compare the bytes in memory with the hashes that were made when they were published.

        Raises:
            WeightsCorruptError: Bytes differ; the text names the tensors and the version. A write of
                this process to a tensor of the snapshot counts too.
            ShoalValueError: The version was published without hashes, or is in the memory of a GPU.
        """
        if self._owner is not None:
            raise ShoalValueError(
                f"verify: version {self.version} is in the memory of a GPU, where no hashes are made"
            )
        promised = {
            number: digest
            for number, digest in enumerate(self.description.digests)
            if digest is not None
        }
        if not promised and self.description.blocks:
            raise ShoalValueError(
                f"verify: version {self.version} was published with checksum=False: there is nothing "
                "to compare with"
            )
        found = digests_of([self.block(number) for number in promised])
        wrong = [
            name
            for (number, theirs), ours in zip(promised.items(), found, strict=True)
            if ours != theirs
            for name in names_of(self.description.entries, number)
        ]
        if wrong:
            raise WeightsCorruptError(
                f"verify: version {self.version}: the bytes of {', '.join(map(repr, wrong))} are not "
                "those that were published"
            )

    def diff(self, target: Any) -> tuple[str, ...]:
        """Return the names whose values differ in a module or a dict, or that only one side has.

        Values are compared as the target's dtypes hold them.

        Args:
            target: A `torch.nn.Module`, or a dict that may be nested.
        """
        found = differing(self, target)
        self._check_read()
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return self is other  # the values of tensors cannot be compared as those of a dict are

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Snapshot(version={self.version}, {len(self)} names, {self.nbytes:,} bytes)"
