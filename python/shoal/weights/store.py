"""`Store`: publishes versions of weights into a folder; `folder` has the steps and the argument."""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.context import current, describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelError,
    ShoalValueError,
    WeightsClosed,
    WeightsMemoryError,
    WeightsNotFoundError,
)
from shoal.integers import as_int
from shoal.loop import submit
from shoal.process import Origin
from shoal.shm.shared_files.mapping import copy_into
from shoal.shm.shared_files.pool import NoRoomError, PayloadFile, Pool
from shoal.weights import timing
from shoal.weights.control import ControlPage
from shoal.weights.description import Description
from shoal.weights.device_memory import copy_to_devices, keep_devices, release_devices
from shoal.weights.folder import VersionFolder
from shoal.weights.hashing import copy_hashed, digests_of
from shoal.weights.layout import Blocks, Mark, Placement, StateLayout, keys_of, was_written
from shoal.weights.part_names import part_bytes
from shoal.weights.version import MOST_IN_EPOCH, FilePart, Version

__all__ = ["HUGE_SHARE", "Store", "own_place", "write_file"]

Delta = bool | str | Version
"""Which blocks of the newest version a publish may use again; see `Weights.publish`."""

HUGE_SHARE = 0.05
"""Time that a publish spends on huge pages for its readers, as a share of the copy."""

_MOST_FILES = 16
"""Maximum number of older files whose blocks a version uses."""

_MOST_TIMES = 2
"""A version uses blocks of older files that together have at most this many times its own bytes."""

_LEAST = 2**22
"""Bytes that these files may have beyond that."""


def own_place() -> str:
    """Describe this process in messages to others: its name and its node."""
    return f"{describe_self()} on node {max(0, current().node_rank)}"


class _OwnVersion(NamedTuple):
    """A version, with the facts that this process needs for a delta on it.

    Attributes:
        version: The version.
        description: What is in it.
        marks: Of each block, as of `Piece`; none if another process has published the version.
    """

    version: Version
    description: Description
    marks: list[tuple[Mark, ...] | None]


class Store(VersionFolder):
    """The versions in a folder, and the files that this process publishes with.

    All threads of a process share it; a forked child may use it. Arguments as of the base class.
    """

    def __init__(self, folder: str, name: str, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(folder, name, check)
        self._begin()

    def begin(self) -> None:
        """Start without files if this is a forked child: those that it has are its parent's."""
        if not self._origin.is_here:
            self._begin()

    def _begin(self) -> None:
        self._origin = Origin()
        self.epoch: int | None = None
        self._own: _OwnVersion | None = None
        self._pool: Pool | None = None
        self._pool_lock = threading.RLock()  # another thread, or a handler, may call `forget`

    @classmethod
    def of(cls, folder: str, name: str, check: Callable[[], None]) -> "Store":
        """Return the store of a folder in this process: handles that come and go share its epoch.

        Args:
            folder: As of the class.
            name: As of the class.
            check: As of the class.
        """
        for path, store in list(_stores.items()):
            if not store.control.is_there():
                store.forget()
                _stores.pop(path, None)
        found = _stores.get(folder)
        return _stores.setdefault(folder, cls(folder, name, check)) if found is None else found

    def forget(self) -> None:
        """Give up the files of this process, once no version follows."""
        self.begin()
        with self._pool_lock:
            pool, self._pool = self._pool, None
            if pool is not None:
                pool.close()
        if _stores.get(str(self.folder)) is self:
            _stores.pop(str(self.folder), None)

    @classmethod
    def create(cls, folder: str, keep: int, max_bytes: int | None, least_epoch: int = 0) -> None:
        """Make the weights of a folder.

        Args:
            folder: An existing folder in memory, of this user.
            keep: Number of versions that stay, whoever holds others.
            max_bytes: Maximum number of bytes of all versions; None for no bound.
            least_epoch: An epoch that the epochs of all versions exceed.

        Raises:
            ShoalValueError: An argument is not valid.
            FileExistsError: The folder has weights.
            WeightsMemoryError: The folder has no room for a page.
        """
        keep, max_bytes = cls.checked_bounds(keep, max_bytes)
        try:
            keeps = Pool(folder).keeps_descriptor
            ControlPage.create(
                Path(folder), keep, max_bytes, keeps_descriptors=keeps, least_epoch=least_epoch
            )
        except NoRoomError as error:
            raise WeightsMemoryError(f"{folder} has no room for weights: {error}") from None
        except ChannelError as error:
            raise WeightsNotFoundError(f"{folder} cannot hold weights: {error}") from None

    @staticmethod
    def checked_bounds(keep: Any, max_bytes: Any) -> tuple[int, int | None]:
        """Return the arguments of `create`.

        Raises:
            ShoalValueError: One is not valid.
        """
        kept, most = as_int(keep, 1), as_int(max_bytes, 1)
        if kept is None:
            raise ShoalValueError(f"keep={keep!r}: expected an integer, at least 1")
        if most is None and max_bytes is not None:
            raise ShoalValueError(f"max_bytes={max_bytes!r}: expected an integer, at least 1")
        return kept, most

    # Publishing.

    def publish(
        self,
        layout: StateLayout,
        number: int | None,
        deadline: Deadline,
        *,
        delta: Delta = False,
        checksum: bool = True,
        on_device: bool = False,
    ) -> Version:
        """Publish a state.

        Args:
            layout: The state.
            number: The number of its version; None for the next.
            deadline: When to stop waiting for another publisher.
            delta: As for `Weights.publish`.
            checksum: Whether to make the digests of blocks.
            on_device: Whether the blocks of GPUs stay in the memory of these; without a delta.

        Raises:
            ShoalValueError: The number is not greater than the last, or the base of the delta is not
                the newest version.
            ShoalTimeoutError: Another process publishes.
            WeightsClosed: The weights were closed.
            WeightsMemoryError: There is no memory for the version.
        """
        self.begin()
        self.check()
        wait = LongWait(
            lambda: f"{describe_self()}: publish waits for another publisher of {self.name}",
            deadline,
            operation="publish",
            on=self.name,
        )
        with self.publishing(wait):
            self.check()
            newest = self.newest_there()
            version = self._next(newest, number)
            shared, digests = self._shared(layout, newest, delta)
            self.retire(self.control.keep - 1, newest)
            notes: dict[str, Any] = {}
            memories: Sequence[Any] = ()
            if on_device:
                release_devices()
                shared, notes, memories = copy_to_devices(layout, version, self.name)
            notes["who"] = {None: own_place()}  # of the whole, which has no parts
            placement = Placement(layout, FilePart(*version), shared, notes)
            file = self.take_file(placement.frame.nbytes)
            try:
                write_file(file, layout, placement, digests, checksum=checksum)
                paths = self.path_of("v", version), self.path_of("r", version)
                with keep_devices(file.path, paths, memories):
                    os.link(file.path, paths[0])
            finally:
                self.put_back(file)
            self.epoch = version.epoch
            self.control.note(version)
            made = tuple(map(digests.get, range(len(layout.pieces))))
            description = placement.frame.description._replace(digests=made)
            self._own = _OwnVersion(version, description, [piece.marks for piece in layout.pieces])
            self._files_of = self._files_of | {version: description.files}
            self.retire(self.control.keep, version)
        return version

    def _shared(
        self, layout: StateLayout, newest: Version | None, delta: Delta
    ) -> tuple[dict[int, tuple[FilePart, int]], dict[int, bytes]]:
        """Return the places and the digests of the blocks that the newest version has too."""
        if isinstance(delta, Version) and delta != newest:
            raise ShoalValueError(
                f"publish: delta={delta}: the newest version of {self.name} is {newest}, and a delta "
                "has to be one on that; publish with delta=True or delta=False"
            )
        if not delta or newest is None:
            return {}, {}
        own = self._own
        if own is None or own.version != newest or not self.path_of("v", newest).exists():
            own = _OwnVersion(newest, self.described(newest), [])
        base = own.description
        there = {key: number for number, key in enumerate(keys_of(base.blocks, base.entries))}
        keys = keys_of(layout.pieces, layout.entries)
        found = {number: there[key] for number, key in enumerate(keys) if key in there}
        written: dict[int, bool | None] = {}
        if delta == "counters" and own.marks:
            written = {
                number: was_written(own.marks[other], layout.pieces[number].marks)
                for number, other in found.items()
            }
        unknown = [
            number
            for number, other in found.items()
            if written.get(number) is None
            and not callable(layout.pieces[number].source)
            and base.digests[other] is not None
        ]
        hashed = digests_of([layout.pieces[number].source for number in unknown])
        same = [number for number in found if written.get(number) is False] + [
            number
            for number, digest in zip(unknown, hashed, strict=True)
            if digest == base.digests[found[number]]
        ]
        shared: dict[int, tuple[FilePart, int]] = {}
        digests: dict[int, bytes] = {}
        for number in same:
            block, digest = base.blocks[found[number]], base.digests[found[number]]
            shared[number] = base.files[block.file], block.start
            if digest is not None:
                digests[number] = digest
        if self.is_scattered({part for part, _ in shared.values()}, layout.nbytes):
            return {}, {}
        return shared, digests

    def is_scattered(self, parts: set[FilePart], nbytes: int) -> bool:
        """Whether older files are too many or too large to be kept for a version of this many bytes."""
        sizes = [file.nbytes for file in self.files() if file.part in parts]
        return len(parts) > _MOST_FILES or sum(sizes) > _MOST_TIMES * nbytes + _LEAST

    def check(self) -> None:
        """Raise if there will be no more versions; then the files of this process are not needed."""
        try:
            super().check()
        except WeightsClosed:
            self.forget()
            raise

    def forget_if_ended(self) -> bool:
        """Give up the files of this process if no version follows; return whether it has none."""
        with contextlib.suppress(WeightsClosed):
            self.check()
        return self._pool is None

    def _next(self, newest: Version | None, number: int | None) -> Version:
        epoch = self.next_epoch(newest, {self.epoch})
        least = newest.number + 1 if newest is not None and newest.epoch == epoch else 0
        if number is None:
            return Version(epoch, max(1, least))
        wanted = as_int(number, least, MOST_IN_EPOCH)
        if wanted is None:
            after = f" after {newest}" if least else ""
            raise ShoalValueError(
                f"publish: version={number!r}{after}: expected an integer, at least {least}"
            )
        return Version(epoch, wanted)

    def next_epoch(self, newest: Version | None, epochs: Collection[int | None]) -> int:
        """Return the epoch of the version after the newest one; under the publisher's lock.

        Args:
            newest: The newest version.
            epochs: Those in which the publishers of the next one have published last. If all have
                published the newest one, they continue in its epoch.
        """
        seen = self.control.least_epoch
        if newest is None:
            return seen + 1
        # Memory was lost if the newest epoch does not exceed one that was seen: then its numbers may
        # be used already, and a reader may have a greater version.
        continues = set(epochs) == {newest.epoch} and newest.epoch > seen
        return newest.epoch if continues else max(newest.epoch, seen) + 1

    def take_file(self, size: int) -> PayloadFile:
        """Return a file that no reader can see, with room for a version."""
        with self._pool_lock:
            try:
                pool = self._pool or self._new_pool()
                self._check_bound(size)
                try:
                    file = pool.take(size)
                except NoRoomError:
                    pool.trim(0)
                    file = pool.take(size)
            except NoRoomError as error:
                raise self._no_room(size, str(error)) from None
            # Files of another size, or that readers held until now, are not needed any more.
            pool.trim(0)
            return file

    def _new_pool(self) -> Pool:
        pool = self._pool = Pool(str(self.folder))
        weakref.finalize(self, _close, self._origin, pool)
        submit(_forget_at_the_end(weakref.ref(self)))
        return pool

    def put_back(self, file: PayloadFile) -> None:
        """Give a file back to the pool, once it has its name or is not needed."""
        with self._pool_lock:
            if self._pool is None:  # the weights were closed meanwhile
                file.remove()
            else:
                self._pool.put_back(file)

    def _check_bound(self, size: int) -> None:
        bound = self.control.max_bytes
        if bound is None:
            return
        stats, parts = self.stats(), part_bytes(self.folder)
        if stats.nbytes + parts + size > bound:
            raise WeightsMemoryError(
                f"{describe_self()}: publish: {self.name} have max_bytes={bound:,}; the new version has "
                f"{size:,} bytes, and {stats.nbytes + parts:,} are in use: {stats}"
            )

    def _no_room(self, size: int, why: str) -> WeightsMemoryError:
        stats = self.stats()
        return WeightsMemoryError(
            f"{describe_self()}: publish: no room for a version of {self.name}: it needs {size:,} bytes, "
            f"{self.folder} has {stats.free:,} free ({why}); in use: {stats}. Let readers drop "
            "old snapshots, use a smaller keep=, or make the file system larger (in a container, raise "
            "--shm-size; Kubernetes: the sizeLimit of an emptyDir of medium Memory)"
        )


_stores: dict[str, Store] = {}


def _close(origin: Origin, pool: Pool) -> None:
    if origin.is_here:
        pool.close()


async def _forget_at_the_end(found: "weakref.ref[Store]") -> None:
    """Let a process that publishes no more give up its files once the weights have ended."""
    while (store := found()) is not None and not store.forget_if_ended():
        del store
        await asyncio.sleep(timing.TIMING.look_s)  # nothing tells when the page is removed


def write_file(
    file: PayloadFile,
    layout: Blocks,
    placement: Placement,
    digests: dict[int, bytes],
    *,
    checksum: bool,
) -> None:
    """Write the file of a version: the blocks that no older file has, and the bytes around them."""

    def copy(memory: memoryview) -> None:
        parts, others = [], []
        for number, start in placement.copied:
            size, source = layout.pieces[number][:2]
            target = memory[start : start + size]
            if callable(source):
                source(target)
                others.append((number, target))
            else:
                parts.append((number, target, source))
        if checksum:
            made = copy_hashed([(target, source) for _, target, source in parts])
            digests.update(zip([number for number, *_ in parts], made, strict=True))
            made = digests_of([target for _, target in others])
            digests.update(zip([number for number, _ in others], made, strict=True))
        else:
            starts = dict(placement.copied)
            copy_into(memory, [(starts[number], source) for number, _, source in parts])
        copy_into(memory, placement.frame.parts(digests))

    file.fill(copy, HUGE_SHARE)
