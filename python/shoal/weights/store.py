"""`Store`: the versions of weights in one folder in memory, for the processes of a node.

A version is one file (`shoal.shm.shared_files.pool`), written by the process that holds the
publisher's lock and then never again while anybody can see it. Its names tell its state:

    p<writer>-<file>        the base name: the file belongs to the pool of this writer
    v<epoch>-<number>       a version: the file is complete, and readers may open it
    r<epoch>-<number>       a retired version, which readers may still hold

The steps of a publisher, which may die after each of them:

1. It takes the lock, removes what dead publishers left, and retires versions: it renames `v…` to
   `r…`, and removes each `r…` that no reader holds (an exclusive `flock` succeeds).
2. It takes a file of its pool *that has no other name and no lock*, or a new one, and copies the
   state to it.
3. It links the file to `v…`: now the version exists. It notes the version in the control page,
   which makes it the newest, and rings the bell.

A reader opens `v…`, takes a shared `flock`, maps the file privately, and then looks whether the
name `v…` still exists. If it does not, the reader begins again with the newest version.

*What a reader sees never changes, and is complete.* The name `v…` is given after the copy, only
once, and is never given to another file. A reader that found it after taking its lock has had the
lock before the version was retired. The lock belongs to the open file, which the mapping keeps open
until the last view is gone or the process is dead. Until then the test in step 1 fails, so `r…`
stays, and step 2 does not take the file.

*A publisher that dies leaves the former version.* Before the link there is a file with a base name
only, which the next `sweep` removes. After it there is a version that the next publisher notes.

*Publishing waits for no reader.* A file that readers hold is left to them.

*A delta is as whole as any version.* Its file has the blocks that changed, and names the files of
the others: those of the newest version, which the publisher's lock keeps. A retired file stays as
long as a version `v…` names it. A reader locks all files of a version before it looks for `v…`.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelError,
    ShoalTimeoutError,
    ShoalValueError,
    WeightsClosed,
    WeightsCorruptError,
    WeightsMemoryError,
    WeightsNotFoundError,
)
from shoal.process import Origin
from shoal.shm.shared_files import sweep
from shoal.shm.shared_files.mapping import copy_into
from shoal.shm.shared_files.pool import NoRoomError, PayloadFile, Pool, lock_and_map
from shoal.weights.control import ControlPage, publisher_lock
from shoal.weights.description import Description, read
from shoal.weights.hashing import copy_hashed, digests_of
from shoal.weights.holders import holders, record, sweep_records
from shoal.weights.layout import Mark, Placement, StateLayout, keys_of
from shoal.weights.snapshot import Snapshot
from shoal.weights.stats import VersionFile, VersionStats, WeightsStats, version_files
from shoal.weights.version import MOST_IN_EPOCH, Version

__all__ = ["Store"]

Delta = bool | str | Version
"""Which blocks of the newest version a publish may use again; see `Weights.publish`."""

Marks = dict[tuple[Any, ...], tuple[Any, ...]]

_MOST_FILES = 16
"""Maximum number of older files whose blocks a version uses."""

_MOST_TIMES = 2
"""A delta on files that together have more than this many times the bytes of the state is whole."""

_LEAST = 2**22
"""Bytes of such files that do not matter."""


class Store:
    """The versions in a folder. All threads of this process share it; a forked child may use it.

    Args:
        folder: The folder.
        name: What the weights are called in messages.
        check: Raises an error if this process may not use the weights any more.

    Raises:
        WeightsNotFoundError: The folder has no weights.
        WeightsCorruptError: They are of another format, or damaged.
    """

    def __init__(self, folder: str, name: str, check: Callable[[], None] = lambda: None) -> None:
        self.folder = Path(folder)
        self.name = name
        self.control = ControlPage(self.folder)
        self._check_job = check
        self._seen: weakref.ref[Snapshot] | None = None
        self._begin()

    def _begin(self) -> None:
        """Start without files: those of a forked child are its parent's."""
        self._origin = Origin()
        self._epoch: int | None = None
        self._marks: tuple[Version | None, Marks] = (None, {})
        self._files_of: dict[Version, tuple[Version, ...]] = {}
        self._pool: Pool | None = None

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
        pool, self._pool = self._pool, None
        if pool is not None:
            _close(self._origin, pool)
        _stores.pop(str(self.folder), None)

    @classmethod
    def create(cls, folder: str, keep: int, max_bytes: int | None) -> None:
        """Make the weights of a folder.

        Args:
            folder: An existing folder in memory, of this user.
            keep: Number of versions that stay, whoever holds others.
            max_bytes: Maximum number of bytes of all versions; None for no bound.

        Raises:
            ShoalValueError: An argument is not valid.
            WeightsMemoryError: The folder has no room for a page.
        """
        cls.check_bounds(keep, max_bytes)
        try:
            keeps = Pool(folder).keeps_descriptor
            ControlPage.create(Path(folder), keep, max_bytes, keeps_descriptors=keeps)
        except NoRoomError as error:
            raise WeightsMemoryError(f"{folder} has no room for weights: {error}") from None
        except ChannelError as error:
            raise WeightsNotFoundError(f"{folder} cannot hold weights: {error}") from None

    @staticmethod
    def check_bounds(keep: Any, max_bytes: Any) -> None:
        """Check the arguments of `create`.

        Raises:
            ShoalValueError: One is not valid.
        """
        if type(keep) is not int or keep < 1:
            raise ShoalValueError(f"keep={keep!r}: expected an integer, at least 1")
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            raise ShoalValueError(f"max_bytes={max_bytes!r}: expected an integer, at least 1")

    # Publishing.

    def publish(
        self,
        layout: StateLayout,
        number: int | None,
        deadline: Deadline,
        *,
        delta: Delta = False,
        checksum: bool = True,
    ) -> Version:
        """Publish a state.

        Args:
            layout: The state.
            number: The number of its version; None for the next.
            deadline: When to stop waiting for another publisher.
            delta: As for `Weights.publish`.
            checksum: Whether to make the digests of blocks.

        Raises:
            ShoalValueError: The number is not greater than the last, or the base of the delta is not
                the newest version.
            ShoalTimeoutError: Another process publishes.
            WeightsClosed: The weights were closed.
            WeightsMemoryError: There is no memory for the version.
        """
        if not self._origin.is_here:
            self._begin()
        self._check()
        wait = LongWait(
            lambda: f"{describe_self()}: publish waits for another publisher of {self.name}",
            deadline,
        )
        with self._publishing(wait):
            self._check()
            newest = self._newest_there()
            version = self._next(newest, number)
            shared, digests = self._shared(layout, newest, delta)
            placement = layout.place(version, shared)
            self._retire(self.control.keep - 1, newest)
            file = self._file(placement.nbytes)
            try:
                _write(file, layout, placement, digests, checksum=checksum)
                os.link(file.path, self._path("v", version))
            finally:
                self._put_back(file)
            self._epoch = version.epoch
            self._marks = version, _marks_by_key(layout)
            self.control.note(version)
            self._retire(self.control.keep, version)
        return version

    def _shared(
        self, layout: StateLayout, newest: Version | None, delta: Delta
    ) -> tuple[dict[int, tuple[Version, int]], dict[int, bytes]]:
        """Return where the blocks lie that the newest version has too, and their digests."""
        if isinstance(delta, Version) and delta != newest:
            raise ShoalValueError(
                f"publish: delta={delta}: the newest version of {self.name} is {newest}, and a delta "
                "has to be one on that; publish with delta=True or delta=False"
            )
        if not delta or newest is None:
            return {}, {}
        base = self._described(newest)
        there = {key: number for number, key in enumerate(keys_of(base))}
        found = {
            number: there[key] for number, key in enumerate(layout.keys()) if key in there
        }  # fmt: skip
        same = self._unwritten(layout, newest) if delta == "counters" else set()
        unknown = [
            number
            for number, other in found.items()
            if number not in same
            and not callable(layout.pieces[number].source)
            and base.digests[other] is not None
        ]
        hashed = digests_of([layout.pieces[number].source for number in unknown])
        same |= {
            number
            for number, digest in zip(unknown, hashed, strict=True)
            if digest == base.digests[found[number]]
        }
        shared, digests = {}, {}
        for number in same & found.keys():
            block, digest = base.blocks[found[number]], base.digests[found[number]]
            shared[number] = base.files[block.file], block.start
            if digest is not None:
                digests[number] = digest
        files = {version for version, _ in shared.values()}
        sizes = [file.nbytes for file in self.files() if file.version in files]
        if len(files) > _MOST_FILES or sum(sizes) > _MOST_TIMES * layout.nbytes + _LEAST:
            return {}, {}  # most of these files is not used any more
        return shared, digests

    def _unwritten(self, layout: StateLayout, newest: Version) -> set[int]:
        """Return the blocks that were not written to since this process published the newest."""
        version, marks = self._marks
        if version != newest:
            return set()
        found = set()
        for number, key in enumerate(layout.keys()):
            before, now = marks.get(key), layout.pieces[number].marks
            if before and now and all(map(Mark.is_same, now, before)):
                found.add(number)
        return found

    @contextlib.contextmanager
    def _publishing(self, wait: LongWait) -> Iterator[None]:
        with publisher_lock(self.folder, wait):
            sweep(str(self.folder))
            yield

    def _next(self, newest: Version | None, number: int | None) -> Version:
        continues = newest is not None and newest.epoch == self._epoch
        epoch = newest.epoch if newest is not None and continues else (newest or (0, 0))[0] + 1
        least = newest.number + 1 if newest is not None and continues else 0
        if number is None:
            return Version(epoch, max(1, least))
        if type(number) is not int or not least <= number <= MOST_IN_EPOCH:
            after = f" after {newest}" if continues else ""
            raise ShoalValueError(
                f"publish: version={number!r}{after}: expected an integer, at least {least}"
            )
        return Version(epoch, number)

    def _newest_there(self) -> Version | None:
        """Return the newest version; note one whose publisher died before it had done so."""
        noted = self.control.newest
        there = max((file.version for file in self.files() if not file.retired), default=None)
        if there is not None and (noted is None or there > noted):
            self.control.note(there)
            return there
        return noted

    def _retire(self, keep: int, newest: Version | None) -> None:
        """Retire versions but for the newest ones, and remove those that nobody needs."""
        visible = sorted(file for file in self.files() if not file.retired)
        least = max(1, keep) if newest is not None else keep
        for file in visible[: max(0, len(visible) - least)]:
            file.path.rename(self._path("r", file.version))
        self._collect()

    def _collect(self) -> None:
        """Remove the retired versions that no reader holds and no version names."""
        retired = [file for file in self.files() if file.retired]
        if not retired:
            return
        named = self._named()
        for file in retired:
            if file.version not in named and not _is_held(file.path):
                file.path.unlink(missing_ok=True)

    def _named(self) -> dict[Version, list[Version]]:
        """Return the versions that name each file; those that are retired do not count."""
        visible = [file.version for file in self.files() if not file.retired]
        self._files_of = {
            version: self._files_of.get(version) or self._described(version).files
            for version in visible
        }
        found: dict[Version, list[Version]] = {}
        for version, files in self._files_of.items():
            for file in files:
                found.setdefault(file, []).append(version)
        return found

    def _described(self, version: Version) -> Description:
        with (
            self._path("v", version).open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
            memoryview(mapped) as memory,
        ):
            return read(memory)

    def _file(self, size: int) -> PayloadFile:
        """Return a file that no reader can see, with room for a version."""
        if self._pool is None:
            self._pool = Pool(str(self.folder))
            weakref.finalize(self, _close, self._origin, self._pool)
        pool = self._pool
        self._check_bound(size)
        try:
            file = pool.take(size)
        except NoRoomError:
            pool.trim(0)
            try:
                file = pool.take(size)
            except NoRoomError as error:
                raise self._no_room(size, str(error)) from None
        # Files of another size, or that readers held until now, are not needed any more.
        pool.trim(0)
        return file

    def _put_back(self, file: PayloadFile) -> None:
        if self._pool is not None:
            self._pool.put_back(file)

    def _check_bound(self, size: int) -> None:
        bound = self.control.max_bytes
        if bound is None:
            return
        stats = self.stats()
        if stats.nbytes + size > bound:
            raise WeightsMemoryError(
                f"{describe_self()}: publish: {self.name} have max_bytes={bound:,}; the new version has "
                f"{size:,} bytes, and {stats.nbytes:,} are in use: {stats}"
            )

    def _no_room(self, size: int, why: str) -> WeightsMemoryError:
        stats = self.stats()
        return WeightsMemoryError(
            f"{describe_self()}: publish: no room for a version of {self.name}: it needs {size:,} bytes, "
            f"{self.folder} has {stats.free:,} free ({why}); in use: {stats}. Let readers drop "
            "old snapshots, use a smaller keep=, or make the file system larger (in a container, raise "
            "--shm-size; Kubernetes: the sizeLimit of an emptyDir of medium Memory)"
        )

    def stats(self) -> WeightsStats:
        """Return what is in memory, and who holds it."""
        held = holders(self.folder)
        named = self._named()
        versions = tuple(
            VersionStats(
                file.version,
                file.nbytes,
                file.retired,
                tuple(held.get(file.version, ())),
                tuple(other for other in named.get(file.version, ()) if other != file.version),
            )
            for file in sorted(self.files(), key=lambda file: file.version)
        )
        return WeightsStats(versions, sum(version.nbytes for version in versions), self._free())

    def _free(self) -> int:
        try:
            found = os.statvfs(self.folder)
        except FileNotFoundError:
            return 0
        return found.f_bavail * found.f_frsize

    # Reading.

    def latest(
        self, least: int, wanted: str, deadline: Deadline, check: Callable[[], None] = lambda: None
    ) -> Snapshot:
        """Return the newest version, once there is one that is new enough.

        Args:
            least: The least version that is, as `Version.packed` returns it; 1 for any.
            wanted: What the caller waits for, for messages.
            deadline: When to stop waiting.
            check: Is called again and again, and ends the wait by raising.

        Raises:
            ShoalTimeoutError: There was none in time.
            WeightsClosed: The weights were closed.
        """

        def both() -> None:
            self._check_job()
            check()

        control = self.control
        packed = control.packed
        if packed >= least:
            snapshot = None if self._seen is None else self._seen()
            if snapshot is not None and snapshot.version.packed() == packed:
                return snapshot
        wait = None
        while True:
            packed = control.packed
            if packed >= least:
                snapshot = self._opened(packed)
                if snapshot is not None:
                    self._seen = weakref.ref(snapshot)
                    return snapshot
                continue
            self._check()
            wait = wait or LongWait(
                lambda: f"{describe_self()}: waits for {wanted} of {self.name}", deadline
            )
            if not control.wait(packed, wait, both):
                newest = control.newest
                there = "none was published" if newest is None else f"the newest is {newest}"
                raise ShoalTimeoutError(
                    f"{describe_self()}: {wanted} of {self.name} did not come within "
                    f"{deadline.timeout:g} s: {there}"
                )

    def _opened(self, packed: int) -> Snapshot | None:
        """Open a version; None if it was retired meanwhile."""
        version = Version.unpacked(packed)
        if version is None:
            return None
        path = self._path("v", version)
        try:
            memories = [self._mapped(path)]
            description = read(memories[0])
            memories += [self._mapped_part(other) for other in description.files[1:]]
            # Last, and it must succeed: it proves that the name existed when the locks were taken.
            path.stat()
        except (FileNotFoundError, BlockingIOError):
            if self.control.packed == packed:
                self._check()  # the folder was removed
                raise WeightsCorruptError(f"{path} of {self.name} was removed") from None
            return None
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise WeightsMemoryError(f"no room to map {path}: {error}") from None
            raise
        for other, memory in zip(description.files, memories, strict=True):
            record(self.folder, other, memory)
        return Snapshot(version, description, memories)

    def _mapped(self, path: Path) -> memoryview:
        keep = self.control.keeps_descriptors
        return lock_and_map(str(path), path.stat().st_size, keep=keep)

    def _mapped_part(self, version: Version) -> memoryview:
        """Map a file that a version names; it may be retired at any moment, but not the reverse."""
        try:
            return self._mapped(self._path("v", version))
        except FileNotFoundError:
            return self._mapped(self._path("r", version))

    # Both.

    def files(self) -> list[VersionFile]:
        """Return the files of all versions, also of retired ones."""
        return version_files(self.folder)

    def sweep(self) -> None:
        """Remove what dead publishers and readers left, unless a process publishes: it does that."""
        wait = LongWait(lambda: "sweep", Deadline(0))
        with contextlib.suppress(ShoalTimeoutError), self._publishing(wait):
            self._collect()
        sweep_records(self.folder)

    def close(self, reason: str) -> None:
        """Let no version follow, and end all waits with a reason. Idempotent."""
        self.control.close(reason)

    def _check(self) -> None:
        """Raise if there will be no more versions."""
        self._check_job()
        end = self.control.end
        if end is not None:
            raise WeightsClosed(f"{describe_self()}: {self.name} were closed: {end}")
        if not self.control.is_there():
            raise WeightsClosed(f"{describe_self()}: {self.name} are gone: their job has ended")

    def _path(self, kind: str, version: Version) -> Path:
        return self.folder / f"{kind}{version.epoch}-{version.number}"


_stores: dict[str, Store] = {}


def _close(origin: Origin, pool: Pool) -> None:
    if origin.is_here:
        pool.close()


def _write(
    file: PayloadFile,
    layout: StateLayout,
    placement: Placement,
    digests: dict[int, bytes],
    *,
    checksum: bool,
) -> None:
    """Copy the blocks that are not there yet, and what is around them."""

    def copy(memory: memoryview) -> None:
        parts, others = [], []
        for number, start in placement.copied:
            size, source, _ = layout.pieces[number]
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
        copy_into(memory, placement.frame(digests))

    file.fill(copy)
    file.nbytes = placement.nbytes


def _marks_by_key(layout: StateLayout) -> Marks:
    return {
        key: piece.marks
        for key, piece in zip(layout.keys(), layout.pieces, strict=True)
        if piece.marks
    }


def _is_held(path: Path) -> bool:
    """Whether a reader holds a version."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # `close` would not unlock it if a child forked meanwhile has inherited the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
