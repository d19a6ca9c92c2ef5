"""Versions that several processes publish together, each a part.

    s<number>-<size>-<rank>-<epoch>-<namespace>-<pid>-<start>    a part that is complete
    u<number>-<size>-<rank>-<signature>-<namespace>-<pid>-<start>    a file of several parts

The steps of each process:

1. Under the publisher's lock it removes the names of dead processes, and takes files: one of its own,
   and one for the shards of distributed tensors, which it shares with the processes that have shards
   of the same tensors. Each of them gives the shared file a name of its own, so that the file is not
   used for another version as long as one of them may write, and no second process writes its part.
2. Without the lock it copies its part.
3. Under the lock it gives its file the name `s…`. Whoever finds all parts complete publishes: it links
   their files to `r<epoch>-<number>-<n>`, and then links a description of all of them to
   `v<epoch>-<number>`, as any publisher does.
4. It waits for the version, and then removes its names.

A process that dies takes its part with it: until another one publishes that part, the others wait.
For the processes of other nodes the home's actor does all this (`sent_parts`).
"""

import contextlib
import math
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ShoalTimeoutError, ShoalValueError, WeightsError
from shoal.process import own_process
from shoal.shm.shared_files.mapping import copy_into, map_shared
from shoal.shm.shared_files.names import Key, key_of
from shoal.weights import timing
from shoal.weights.description import (
    BlockRange,
    Description,
    Entries,
    Frame,
    Leaf,
    read_file,
)
from shoal.weights.hashing import digests_of
from shoal.weights.layout import Blocks, Placement
from shoal.weights.part_names import PartFile, VersionPart, complete_parts, writers
from shoal.weights.shards import Shards
from shoal.weights.store import Store, own_place, write_file
from shoal.weights.version import FilePart, Version

__all__ = ["publish_part"]

_HEAD = 64
"""Number of bytes before the description of a version that has no block of its own."""


def publish_part(
    store: Store, layout: Blocks, part: VersionPart, deadline: Deadline, *, checksum: bool
) -> Version:
    """Publish a part of a version, and wait until all parts are there.

    Args:
        store: The weights.
        layout: The state of the part.
        part: Which part it is.
        deadline: When to stop waiting for the others.
        checksum: Whether to make the digests of blocks.

    Raises:
        ShoalValueError: The part does not fit the others, or is there already.
        ShoalTimeoutError: Another part did not come.
        WeightsClosed: The weights were closed.
        WeightsMemoryError: There is no room.
    """
    store.begin()
    names: list[Path] = []
    wait = LongWait(
        lambda: f"{describe_self()}: publish: {_missing(store, part)}",
        deadline,
        operation="publish",
    )
    version = before = None
    is_written = False
    try:
        before = _write(store, layout, part, names, wait, checksum=checksum)
        is_written = True
        version = _awaited(store, part, before, wait)
    except ShoalTimeoutError:
        # Whoever has the lock may be about to publish all parts.
        _take_back(store, names, wait)
        version = _published(store, part, before) if is_written else None
        if version is None:
            raise
    finally:
        _take_back(store, names, wait)
    store.epoch = version.epoch
    return version


def _take_back(store: Store, names: list[Path], wait: LongWait) -> None:
    """Remove the names of a part, also if another process keeps the publisher's lock for long."""
    if not names:
        return
    with contextlib.ExitStack() as held:
        is_held = False
        with contextlib.suppress(ShoalTimeoutError, WeightsError):
            held.enter_context(_locked(store, wait))
            is_held = True
        while names:
            names.pop().unlink(missing_ok=True)
        if is_held:
            with contextlib.suppress(WeightsError, FileNotFoundError):
                store.newest_there()  # whoever published all parts may have died before it said so


def _locked(store: Store, wait: LongWait) -> AbstractContextManager[None]:
    """Hold the publisher's lock also after the deadline of a wait."""
    return store.publishing(
        LongWait(wait.describe, Deadline(timing.TIMING.part_lock_s), operation="publish")
    )


def _write(
    store: Store,
    layout: Blocks,
    part: VersionPart,
    names: list[Path],
    wait: LongWait,
    *,
    checksum: bool,
) -> Version | None:
    """Write the file of a part and name it; return the newest version before.

    Args:
        store: The weights.
        layout: The state of the part.
        part: Which part it is.
        names: Gets the names that are to be removed at the end.
        wait: The wait for the publisher's lock.
        checksum: As of `publish_part`.
    """
    key = "-".join(map(str, key_of(own_process())))
    notes: dict[str, Any] = {
        "processes": {part.rank: key_of(own_process())},
        "who": {part.rank: own_place()},
        "checksum": checksum,
    }
    own, memories = FilePart(0, part.number), []
    shard_files = [FilePart(0, part.number, shards.signature) for shards in layout.shards]
    notes["written"] = {
        name: count for shards in layout.shards for name, count in shards.counts().items()
    }
    placement = Placement(layout, own, None, notes, shard_files)
    with store.publishing(wait):
        store.check()
        before = store.newest_there()
        _check_new(store, part, before)
        for other in writers(store.folder, part):
            if other.part.rank == part.rank:
                raise ShoalValueError(
                    f"{describe_self()}: publish: {part} is being written by process {other.process[1]} "
                    "(the actor of the weights, if its publisher is on another node)"
                )
        store.retire(store.control.keep - 1, before)
        for shards in layout.shards:
            name = f"u{part.number}-{part.size}-{part.rank}-{shards.signature}-{key}"
            names.append(store.folder / name)
            memories.append(_shared_memory(store, part, shards, names[-1]))
        file = store.take_file(placement.frame.nbytes)
    try:
        for shards, memory in zip(layout.shards, memories, strict=True):
            shards.write(memory)
        write_file(file, layout, placement, {}, checksum=checksum)
        with store.publishing(wait):
            store.check()
            _check_new(store, part, store.newest_there())
            name = f"s{part.number}-{part.size}-{part.rank}-{store.epoch or 0}-{key}"
            names.append(store.folder / name)
            os.link(file.path, names[-1])
    finally:
        store.put_back(file)
    with store.publishing(wait):
        _commit(store, part)
    return before


def _shared_memory(store: Store, part: VersionPart, shards: Shards, own: Path) -> memoryview:
    """Return the memory that several parts write into, and give it a name of this process."""
    there = _names_of_shared(store.folder, part, shards.signature)
    if not there:
        file = store.take_file(shards.nbytes)
        try:
            os.link(file.path, own)
        finally:
            store.put_back(file)  # once it has two names, it is not taken
        return file.memory[: shards.nbytes]
    os.link(there[0], own)
    descriptor = os.open(own, os.O_RDWR | os.O_CLOEXEC)
    try:
        return map_shared(descriptor, shards.nbytes)
    finally:
        os.close(descriptor)


def _check_new(store: Store, part: VersionPart, newest: Version | None) -> None:
    """Check that a part is not there yet, and that its version may come.

    Raises:
        ShoalValueError: It is, or its version is not newer than the newest of this publisher.
    """
    for other in complete_parts(store.folder):
        if other.part.number != part.number:
            continue
        if other.part.size != part.size:
            raise ShoalValueError(
                f"{describe_self()}: publish: {part}: {_publisher(other)} publishes {other.part}: all "
                "have to say the same number of parts"
            )
        if other.part.rank == part.rank:
            raise ShoalValueError(
                f"{describe_self()}: publish: {part} is there already, from {_publisher(other)}"
            )
    continues = newest is not None and newest.epoch == store.next_epoch(newest, {store.epoch})
    if newest is not None and continues and part.number <= newest.number:
        raise ShoalValueError(
            f"{describe_self()}: publish: version={part.number} after {newest}: expected an integer, "
            f"at least {newest.number + 1}"
        )


def _publisher(complete: PartFile) -> str:
    who: str = read_file(complete.path).notes["who"][complete.part.rank]
    return who


def _awaited(store: Store, part: VersionPart, before: Version | None, wait: LongWait) -> Version:
    """Wait until the version of a part is there."""
    control = store.control

    def check() -> None:
        store.check()
        # Whoever completed the version may have died before it was published.
        if len(_parts_of(store, part)) == part.size:
            with contextlib.suppress(ShoalTimeoutError), _locked(store, wait):
                _commit(store, part)

    while True:
        packed = control.packed
        version = _published(store, part, before)
        if version is not None:
            return version
        if not control.wait(packed, control.announced, wait, check):
            raise ShoalTimeoutError(
                f"{describe_self()}: publish: {_missing(store, part)}: no end of it within "
                f"{wait.deadline.timeout:g} s"
            )


def _published(store: Store, part: VersionPart, before: Version | None) -> Version | None:
    """Return the version that has the part of this process; None if it is not there yet.

    A version of another publisher may have the same number.
    """
    for file in store.files():
        version = file.version
        is_own = file.part.file == 0 and version.number == part.number
        if is_own and (before is None or version > before):
            with contextlib.suppress(FileNotFoundError):
                publishers = store.described(file.part).notes.get("processes", {})
                if publishers.get(part.rank) == key_of(own_process()):
                    return version
    return None


def _parts_of(store: Store, part: VersionPart) -> list[PartFile]:
    found = complete_parts(store.folder)
    return [one for one in found if one.part[::2] == part[::2]]


def _missing(store: Store, part: VersionPart) -> str:
    """Say which parts are not there, and who published them last."""
    there = {one.part.rank for one in _parts_of(store, part)}
    newest = store.control.newest
    known = {} if newest is None else store.publishers(newest)
    shown = [
        f"part {rank}" + (f" (published last by {known[rank]})" if rank in known else "")
        for rank in range(part.size)
        if rank not in there
    ]
    done = {(one.part.rank, one.process) for one in _parts_of(store, part)}
    own = part.rank, key_of(own_process())
    shown += [
        f"process {process[1]}, which still writes part {rank}"
        for rank, process in {(one.part.rank, one.process) for one in writers(store.folder, part)}
        - done
        - {own}
    ]
    return f"{part} of {store.name} waits for {', '.join(shown) or 'the commit'}"


def _commit(store: Store, part: VersionPart) -> None:
    """Publish a version if all its parts are there; under the publisher's lock.

    Raises:
        ShoalValueError: The parts do not fit together.
    """
    parts = _parts_of(store, part)
    writing = writers(store.folder, part)
    done = {(one.part.rank, one.process) for one in parts}
    if len(parts) < part.size or any((one.part.rank, one.process) not in done for one in writing):
        return
    newest = store.newest_there()
    is_later = newest is None or part.number > newest.number
    epoch = store.next_epoch(newest, {one.epoch for one in parts} if is_later else ())
    version = Version(epoch, part.number)
    merged = _Merged(version)
    try:
        for one in parts:
            merged.add(one, store.folder)
        description, digests = merged.described()
        for further, path in merged.paths.items():
            target = store.path_of("r", further)
            target.unlink(missing_ok=True)  # of one who died in the middle of this
            os.link(path, target)
    except FileNotFoundError:
        return  # a part was taken back by a process that did not get the lock
    frame = Frame(description, _HEAD)
    file = store.take_file(frame.nbytes)
    try:
        file.fill(lambda memory: copy_into(memory, frame.parts(digests)))
        os.link(file.path, store.path_of("v", version))
    finally:
        store.put_back(file)
    store.epoch = epoch
    store.control.note(version)
    for path in [one.path for one in writing] + [one.path for one in parts]:
        path.unlink(missing_ok=True)
    store.retire(store.control.keep, version)


class _Merged:
    """The description of a version that consists of parts.

    Attributes:
        paths: The path of each further file of the version.
    """

    def __init__(self, version: Version) -> None:
        self._version = version
        self.paths: dict[FilePart, Path] = {}
        self._known: dict[FilePart, FilePart] = {}
        self._files = [FilePart(*version)]
        self._blocks: list[BlockRange] = []
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._entries: Entries = {}
        self._digests: dict[int, bytes] = {}
        self._written: dict[str, int] = {}
        self._shards: dict[int, Path] = {}
        self._who: dict[int, str] = {}
        self._processes: dict[int, Key] = {}

    def add(self, complete: PartFile, folder: Path) -> None:
        """Add a part.

        Raises:
            ShoalValueError: It has a name that another part has.
        """
        description = read_file(complete.path)
        numbers = [self._file(part, complete, folder) for part in description.files]
        blocks = {}
        for number, block in enumerate(description.blocks):
            file_number = numbers[block.file]
            place = file_number, block.start, block.size
            if place not in self._numbers or block.file == 0:
                self._numbers[place] = len(self._blocks)
                self._blocks.append(block._replace(file=file_number))
            blocks[number] = self._numbers[place]
            digest = description.digests[number]
            if digest is not None:
                self._digests[blocks[number]] = digest
            elif block.file and description.notes["checksum"]:
                self._shards[blocks[number]] = self.paths[self._files[file_number]]
        for name, entry in description.entries.items():
            moved = entry._replace(block=blocks[entry.block]) if isinstance(entry, Leaf) else entry
            if self._entries.setdefault(name, moved) != moved:
                raise ShoalValueError(
                    f"publish: {name!r} is in the parts of {description.notes['who']} and "
                    f"{self._who}: a name belongs to one part, unless it is a distributed tensor"
                )
        self._who |= description.notes["who"]
        self._processes |= description.notes["processes"]
        for name, count in description.notes.get("written", {}).items():
            self._written[name] = self._written.get(name, 0) + count

    def _file(self, part: FilePart, complete: PartFile, folder: Path) -> int:
        """Return the number of a file, which several parts may name."""
        known = self._known.get(part) if part.file else None
        if known is None:
            known = FilePart(*self._version, len(self._files))
            self._files.append(known)
            self.paths[known] = complete.path
            if part.file:
                self.paths[known] = _names_of_shared(folder, complete.part, part.file)[0]
                self._known[part] = known
        return self._files.index(known)

    def described(self) -> tuple[Description, dict[int, bytes]]:
        """Return the description, and the digests of its blocks.

        Raises:
            ShoalValueError: The shards of a tensor do not cover it.
        """
        for name, count in self._written.items():
            leaf = self._entries[name]
            whole = math.prod(leaf.shape) if isinstance(leaf, Leaf) else 1
            if count != whole:
                raise ShoalValueError(
                    f"publish: the shards of {name!r} have {count} elements together, and the tensor "
                    f"has {whole}: a process of its mesh publishes no part"
                )
        notes = {"who": self._who, "processes": self._processes}
        blocks = tuple(self._blocks)
        for number, path in self._shards.items():
            _, start, size = blocks[number]
            memory = np.memmap(path, np.uint8, "r")
            (self._digests[number],) = digests_of([memory[start : start + size]])
        return Description(tuple(self._files), blocks, self._entries, (), notes), self._digests


def _names_of_shared(folder: Path, part: VersionPart, signature: int) -> list[Path]:
    """Return the names of a file that several parts of a version write into."""
    return sorted(folder.glob(f"u{part.number}-{part.size}-*-{signature}-*"))
