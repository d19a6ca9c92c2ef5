"""`VersionFolder`: the versions of weights in one folder in memory, as every process of a node sees them.

A version is one file (`shoal.shm.shared_files.pool`), or several. A file is written by the process
that holds the publisher's lock, and then never again while anybody can see it. Its names tell its
state:

    p<writer>-<file>        the base name: the file belongs to the pool of this writer
    v<epoch>-<number>       a version: the file is complete, and readers may open it
    r<epoch>-<number>       a retired version, which readers may still hold
    r<epoch>-<number>-<n>   the n-th further file of a version that several processes published

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

*Versions never go back.* A publisher goes on in the epoch of the newest version only if that is its
own, and else begins a greater one. If the memory was lost, the next process of the actor makes the
page with an epoch that exceeds those that it knows of (`actor`). If a follower has seen a greater
one all the same, it asks for a version after one that is not there (`following`); from then on every
new epoch exceeds that one.

`store` has the steps of one publisher, `parts` those of several that publish one version.
"""

import contextlib
import errno
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelNotFoundError,
    ShoalError,
    ShoalTimeoutError,
    WeightsClosed,
    WeightsCorruptError,
    WeightsMemoryError,
    WeightsNotFoundError,
)
from shoal.shm.shared_files import sweep
from shoal.shm.shared_files.pool import is_locked, lock_and_map
from shoal.weights import timing
from shoal.weights.control import ControlPage, publisher_lock
from shoal.weights.description import Description, read, read_file
from shoal.weights.device_memory import open_devices, owner_of
from shoal.weights.holders import holders, record, sweep_records
from shoal.weights.part_names import sweep_parts
from shoal.weights.snapshot import Snapshot
from shoal.weights.stats import VersionFile, VersionStats, WeightsStats, version_files
from shoal.weights.version import FilePart, Version

__all__ = ["VersionFolder"]


class VersionFolder:
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
        self.check_job = check
        self._is_alone = True
        self._seen: weakref.ref[Snapshot] | None = None
        self._files_of: dict[Version, tuple[FilePart, ...]] = {}
        self._publishers: dict[Version, dict[int | None, str]] = {}

    @property
    def follows(self) -> bool:
        """Whether versions are sent to this node from another one; not before this is set."""
        return not (self._is_alone or self.control.is_home)

    @follows.setter
    def follows(self, follows: bool) -> None:
        self._is_alone = not follows

    # Reading.

    def latest(
        self,
        least: int,
        wanted: str,
        deadline: Deadline,
        check: Callable[[], None] = lambda: None,
        *,
        is_newest: bool = True,
    ) -> Snapshot:
        """Return the newest version, once there is one that is new enough.

        Args:
            least: The least version that is, as `Version.packed` returns it; 1 for any.
            wanted: The awaited version in words, for messages.
            deadline: When to stop waiting.
            check: Is called again and again, and ends the wait by raising.
            is_newest: Whether to wait for a newer version that is on its way to this node.

        Raises:
            ShoalTimeoutError: There was none in time.
            WeightsClosed: The weights were closed.
            WeightsError: It is in the memory of a GPU that this process cannot read.
            PeerLostError: It was in the memory of a GPU, and its publisher has died.
        """
        control = self.control

        def both() -> None:
            self.check_job()
            check()
            if self.follows:
                control.want()

        if self.follows:
            control.want()
            control.wait_until_followed(min(deadline.remaining, timing.TIMING.followed_s), both)

        def needed(announced: int) -> int:
            return max(least, announced) if self.follows and is_newest else least

        packed = control.packed
        if packed >= needed(control.announced):
            snapshot = None if self._seen is None else self._seen()
            if snapshot is not None and snapshot.version.packed() == packed:
                snapshot.check()
                return snapshot
        wait = None
        while True:
            packed, announced = control.packed, control.announced
            if packed >= needed(announced):
                snapshot = self._opened(packed)
                if snapshot is not None:
                    self._seen = weakref.ref(snapshot)
                    return snapshot
                continue
            self.check()
            wait = wait or LongWait(
                lambda: f"{describe_self()}: waits for {wanted} of {self.name} ({self._last()})",
                deadline,
                operation="latest",
                on=self.name,
            )
            if not control.wait(packed, announced, wait, both):
                raise ShoalTimeoutError(
                    f"{describe_self()}: {wanted} of {self.name} did not come within "
                    f"{deadline.timeout:g} s: {self._last(is_polled=deadline.timeout < 1)}"
                )

    def _last(self, *, is_polled: bool = False) -> str:
        """Say which version is the newest here, and who published it, as far as that is known.

        Args:
            is_polled: Whether this must take no time, so that the file of the version is not read.
        """
        newest = self.control.newest
        if newest is None:
            return "none was published"
        who = [] if is_polled else list(self.publishers(newest).values())
        more = len(who) - 1
        others = f" and {more} other{'s' if more > 1 else ''}" if more > 0 else ""
        return f"the newest is {newest}" + (f", published by {who[0]}{others}" if who else "")

    def publishers(self, version: Version) -> dict[int | None, str]:
        """Return who published each part of a version, or the whole (None); empty if not known."""
        if version not in self._publishers:  # read once: a wait may be described again and again
            # It may be retired meanwhile, or there are too many open files: no wait ends by that.
            with contextlib.suppress(OSError, ShoalError):
                self._publishers = {version: self.described(version).notes.get("who", {})}
        return self._publishers.get(version, {})

    def newest(self) -> Version | None:
        """Return the newest version that this node has heard of; None for none.

        It may be on its way to this node, and does not come if its publisher's memory is lost.
        """
        control = self.control
        if not self.follows:
            return control.newest
        control.want()
        control.wait_until_followed(timing.TIMING.followed_s, self.check_job)
        return Version.unpacked(control.known)

    def _opened(self, packed: int) -> Snapshot | None:
        """Open a version; None if it was retired meanwhile."""
        version = Version.unpacked(packed)
        if version is None:
            return None
        path = self.path_of("v", version)
        try:
            memories = [self._mapped(path)]
            # By its name, after the lock: a file without the name may be written again.
            description = read_file(path)
            parts = [part for part in description.files if part.file >= 0]
            memories += [self._mapped_part(part) for part in parts[1:]]
            # Last, and it must succeed: it proves that the name existed when the locks were taken.
            path.stat()
        except (FileNotFoundError, BlockingIOError):
            if self.control.packed == packed:
                self.check()  # the folder was removed
                raise WeightsCorruptError(f"{path} of {self.name} was removed") from None
            return None
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise WeightsMemoryError(f"no room to map {path}: {error}") from None
            raise
        for part, memory in zip(parts, memories, strict=True):
            record(self.folder, part.version, memory)
        owner = owner_of(description)
        devices = [] if owner is None else open_devices(owner, version, self.name, memories[0])
        return Snapshot(version, description, [*memories, *devices], self.name)

    def _mapped(self, path: Path) -> memoryview:
        keep = self.control.keeps_descriptors
        return lock_and_map(str(path), path.stat().st_size, keep=keep)

    def _mapped_part(self, part: FilePart) -> memoryview:
        """Map a file that a version names; it may be retired at any moment, but not the reverse."""
        if part.file == 0:
            with contextlib.suppress(FileNotFoundError):
                return self._mapped(self.path_of("v", part.version))
        return self._mapped(self.path_of("r", part))

    # Upkeep, under the lock of the publisher.

    @contextlib.contextmanager
    def publishing(self, wait: LongWait) -> Iterator[None]:
        """Hold the publisher's lock; remove what dead publishers left.

        Raises:
            ShoalTimeoutError: Another process published until the deadline.
            WeightsClosed: The folder was removed meanwhile.
            WeightsCorruptError: A file of the folder was.
        """
        try:
            with publisher_lock(self.folder, wait):
                sweep(str(self.folder))
                sweep_parts(self.folder)
                yield
        except (FileNotFoundError, ChannelNotFoundError, WeightsNotFoundError) as error:
            self.check()
            raise WeightsCorruptError(
                f"{describe_self()}: a file of {self.name} was removed by another program: {error}; "
                "publish again"
            ) from error

    def newest_there(self) -> Version | None:
        """Return the newest version; note one whose publisher died before it had done so."""
        noted = self.control.newest
        there = max((file.version for file in self.files() if not file.retired), default=None)
        if there is not None and (noted is None or there > noted):
            self.control.note(there)
            return there
        return noted

    def retire(self, keep: int, newest: Version | None) -> None:
        """Retire versions but for the newest ones, and remove those that nobody needs."""
        files = self.files()
        visible = sorted(file for file in files if not file.retired)
        least = max(1, keep) if newest is not None else keep
        over = visible[: max(0, len(visible) - least)]
        for file in over:
            file.path.rename(self.path_of("r", file.version))
        self._collect(self.files() if over else files)

    def _collect(self, files: list[VersionFile]) -> None:
        """Remove the retired versions that no reader holds and no version names."""
        retired = [file for file in files if file.retired]
        if not retired:
            return
        named = self.named(files)
        for file in retired:
            with contextlib.suppress(FileNotFoundError):  # the folder is being removed
                if file.part not in named and not is_locked(file.path):
                    file.path.unlink()

    def named(self, there: list[VersionFile] | None = None) -> dict[FilePart, list[Version]]:
        """Return the versions that name each file; those that are retired do not count.

        Args:
            there: The files of all versions; None to list them now.
        """
        there = self.files() if there is None else there
        files_of: dict[Version, tuple[FilePart, ...]] = {}
        for version in [file.version for file in there if not file.retired]:
            # Without the publisher's lock a version may be retired meanwhile.
            with contextlib.suppress(FileNotFoundError):
                known = self._files_of.get(version)
                files_of[version] = known or self.described(version).files
        self._files_of = files_of  # a new dict, which other threads may read
        found: dict[FilePart, list[Version]] = {}
        for version, files in files_of.items():
            for part in files:
                found.setdefault(part, []).append(version)
        return found

    def described(self, version: Version | FilePart) -> Description:
        """Return the description of a version, retired or not.

        Raises:
            FileNotFoundError: It is not there any more.
        """
        part = FilePart(*version[:2])
        for path in (self.path_of("v", part), self.path_of("r", part)):
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                memory = self._mapped(path)
                if path.exists() or self.path_of("r", part).exists():  # after the lock, as a reader
                    return read(memory)
        raise FileNotFoundError(f"version {part.version} of {self.name}")

    def stats(self) -> WeightsStats:
        """Return what is in memory, and who holds it."""
        held = holders(self.folder)
        sharing: dict[Version, set[Version]] = {}
        for part, versions in self.named().items():
            others = [version for version in versions if version != part.version]
            sharing.setdefault(part.version, set()).update(others)
        files: dict[Version, list[VersionFile]] = {}
        for file in self.files():
            files.setdefault(file.version, []).append(file)
        found = tuple(
            VersionStats(
                version,
                sum(file.nbytes for file in files[version]),
                all(file.retired for file in files[version]),
                tuple(held.get(version, ())),
                tuple(sorted(sharing.get(version, ()))),
            )
            for version in sorted(files)
        )
        return WeightsStats(found, sum(version.nbytes for version in found), self._free())

    def _free(self) -> int:
        try:
            found = os.statvfs(self.folder)
        except FileNotFoundError:
            return 0
        return found.f_bavail * found.f_frsize

    # What there is.

    def files(self) -> list[VersionFile]:
        """Return the files of all versions, also of retired ones."""
        return version_files(self.folder)

    def sweep(self) -> None:
        """Remove what dead publishers and readers left, unless a process publishes: it does that."""
        wait = LongWait(lambda: "sweep", Deadline(0))
        with contextlib.suppress(ShoalTimeoutError), self.publishing(wait):
            self.retire(self.control.keep, self.newest_there())
        sweep_records(self.folder)

    def close(self, reason: str) -> None:
        """Let no version follow, and end all waits with a reason. Idempotent."""
        self.control.close(reason)

    def check(self) -> None:
        """Raise if there will be no more versions."""
        self.check_job()
        end = self.control.end
        if end is not None:
            raise WeightsClosed(f"{describe_self()}: {self.name} were closed: {end}")
        if not self.control.is_there():
            raise WeightsClosed(
                f"{describe_self()}: {self.name} are gone: their job has ended, or {self.folder} was "
                "removed; to go on, close them and call Weights.create again"
            )

    def path_of(self, kind: str, part: Version | FilePart) -> Path:
        """Return the path of a file: `v` for a version, `r` for a retired one or another part."""
        return self.folder / f"{kind}{'-'.join(map(str, part if any(part[2:]) else part[:2]))}"
