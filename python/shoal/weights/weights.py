"""`Weights`: the public class of weights that a job publishes and reads by their name."""

import contextlib
from collections.abc import Mapping
from typing import Any, Self

from shoal._ray import in_process
from shoal.channel.create import connect, create, routes_of
from shoal.context import current, describe_self
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelError,
    ChannelExistsError,
    ChannelNotFoundError,
    ShoalValueError,
    WeightsClosed,
    WeightsError,
    WeightsExistsError,
    WeightsNotFoundError,
)
from shoal.job_end import tie_to_job
from shoal.queues.wait import JOB_HAS_ENDED
from shoal.weights.actor import WeightsSettings, WeightsWorker
from shoal.weights.snapshot import Snapshot
from shoal.weights.store import Store, WeightsStats
from shoal.weights.version import Version

__all__ = ["Weights"]

_PREFIX = "weights/"
"""The name of the actor begins with it, so that a channel may have the name of weights."""


class Weights:
    """Versions of a state, which one process publishes and all processes of its node read in place.

    A publisher writes a state into shared memory once. Each version is complete before anyone sees
    it, and never changes; newer versions compare greater, also after a restart of the publisher. A
    publisher waits for no reader, and its death leaves the version before.

    Make them with `Weights.create`, find them with `Weights.connect`. Handles can be passed to
    workers.

    Example:
        >>> weights = Weights.create("policy")  # doctest: +SKIP
        >>> weights.publish(model.state_dict())  # doctest: +SKIP
        Version(epoch=1, number=1)
        >>> model.load_state_dict(weights.latest())  # in another worker  # doctest: +SKIP
    """

    def __init__(self, settings: WeightsSettings, routes: Any) -> None:
        self._settings = settings
        self._routes = routes
        self._store: Store | None = None
        self._job_has_ended = False
        tie_to_job(self, Weights._end_with_job)

    @classmethod
    def create(
        cls,
        name: str,
        keep: int = 2,
        *,
        max_bytes: int | None = None,
        node_rank: int | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Create weights, or connect to those of this name if they are the same.

        Args:
            name: Unique among the weights of the job.
            keep: Number of versions that stay in memory, whether or not anyone reads them. Others
                stay as long as a snapshot of them does.
            max_bytes: Maximum number of bytes of all versions in memory; None for no bound below
                the size of the file system.
            node_rank: The node of the memory; None for the node of the caller.
            timeout: Maximum seconds of the start; None for the default.

        Raises:
            WeightsExistsError: The name belongs to weights with other arguments.
            ShoalValueError: An argument is not valid.
            ShoalTimeoutError: The actor did not start in time.
        """
        _check_name(name)
        Store.check_bounds(keep, max_bytes)
        if node_rank is None:
            node_rank = max(0, current().node_rank)
        settings = WeightsSettings(
            _PREFIX + name, capacity=1, max_bytes=2**16, keep=keep, version_bytes=max_bytes
        )
        try:
            found, routes = create(
                settings,
                distributed=False,
                node_rank=node_rank,
                deadline=Deadline(timeout),
                worker_cls=WeightsWorker,
            )
        except ChannelExistsError as error:
            raise WeightsExistsError(_worded(error, name)) from None
        return cls(_checked(found, name), routes)

    @classmethod
    def connect(cls, name: str, timeout: float | None = None) -> Self:
        """Find weights by their name.

        Args:
            name: The name.
            timeout: Maximum seconds to wait until they are created; None not to wait.

        Raises:
            WeightsNotFoundError: There are no weights of this name.
        """
        _check_name(name)
        try:
            found, routes = connect(_PREFIX + name, None if timeout is None else Deadline(timeout))
        except (ChannelNotFoundError, ChannelClosed) as error:
            raise WeightsNotFoundError(_worded(error, name)) from None
        return cls(_checked(found, name), routes)

    @property
    def name(self) -> str:
        """The name."""
        return self._settings.name.removeprefix(_PREFIX)

    @property
    def newest(self) -> Version | None:
        """The newest version; None before the first."""
        return self._opened().control.newest

    def publish(
        self, state: Mapping[str, Any], version: int | None = None, timeout: float | None = None
    ) -> Version:
        """Publish a state as the newest version.

        Args:
            state: A dict of names to tensors, arrays, small values, and dicts of such: for example
                `module.state_dict()`. It may change when this call has returned. Tensors that share
                memory share it in the snapshots, too; gradients are not part of a version.
            version: The number of the version, greater than the last one of this publisher; None for
                the next number.
            timeout: Maximum seconds to wait while another process publishes; None for the default.

        Returns:
            The version. Its epoch is greater than that of any version of another publisher.

        Raises:
            ShoalValueError: A part of the state cannot be published, or the number is too small.
            WeightsClosed: The weights were closed, or their job has ended.
            WeightsMemoryError: There is no room for the version; nothing was written.
            ShoalTimeoutError: Another process published until the deadline.
        """
        return self._opened().publish(state, version, Deadline(timeout))

    def latest(
        self, newer_than: "Version | tuple[int, int] | None" = None, timeout: float | None = None
    ) -> Snapshot:
        """Return the newest version; wait for one if there is none, or none that is new enough.

        Args:
            newer_than: Wait for a version after this one; None for any.
            timeout: Maximum seconds to wait; None for the default, 0 not to wait.

        Raises:
            ShoalTimeoutError: There was no such version in time.
            WeightsClosed: The weights were closed, or their job has ended.
        """
        after = None if newer_than is None else _version(newer_than)
        return self._opened().latest(after, Deadline(timeout))

    def stats(self) -> WeightsStats:
        """Return which versions are in memory, and which process holds which since when."""
        return self._opened().stats()

    def close(self, reason: str = "") -> None:
        """Let no version follow, end all waits of all processes, and free the memory.

        Snapshots stay valid. Idempotent.

        Args:
            reason: A text for the errors of those who wait.
        """
        store = self._store
        if store is None:
            try:
                store = self._opened()
            except WeightsClosed:
                return
        store.close(reason or f"{describe_self()} called close")
        with contextlib.suppress(ChannelError):  # its actor has ended already
            self._routes.end(now=True)

    def _opened(self) -> Store:
        if self._store is None:
            self._check_job()
            self._store = Store(self._folder(), f"the weights {self.name!r}", self._check_job)
        return self._store

    def _folder(self) -> str:
        if in_process() is not None:
            folder: str = self._routes.folder()
            with contextlib.suppress(FileExistsError):
                Store.create(folder, self._settings.keep, self._settings.version_bytes)
            return folder
        location = self._settings.locations[0]
        if location is None or not location.is_here():
            raise self._elsewhere()
        return location.token

    def _elsewhere(self) -> WeightsError:
        location = self._settings.locations[0]
        if location is not None and location.is_gone():
            return WeightsClosed(
                f"{describe_self()}: the weights {self.name!r} were closed, or their job has ended"
            )
        node = next(iter(self._settings.node_ranks), 0)
        return WeightsError(
            f"{describe_self()}: the weights {self.name!r} are in the memory of node {node}, which this "
            "process cannot see: expected a worker on that node, of the same user, /dev/shm and core"
        )

    def _end_with_job(self) -> None:
        self._job_has_ended = True

    def _check_job(self) -> None:
        if self._job_has_ended:
            raise WeightsClosed(
                f"{describe_self()}: the weights {self.name!r} are gone: {JOB_HAS_ENDED}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self._settings, self._routes.namespace)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


def _restore(cls: type[Weights], settings: WeightsSettings, namespace: str) -> Weights:
    return cls(settings, routes_of(settings, namespace))


def _check_name(name: Any) -> None:
    if type(name) is not str or not name or ":" in name:
        raise ShoalValueError(
            f"weights name {name!r}: expected a text that is not empty and has no ':'"
        )


def _version(given: Any) -> Version:
    try:
        version = Version(*given)
    except TypeError:
        version = Version(-1, -1)
    if not all(type(part) is int and part >= 0 for part in version):
        raise ShoalValueError(
            f"newer_than={given!r}: expected a version, such as snapshot.version, or None"
        )
    return version


def _checked(settings: Any, name: str) -> WeightsSettings:
    if not isinstance(settings, WeightsSettings):
        raise WeightsExistsError(
            f"{describe_self()}: {settings.name!r} is the name of a channel, and the weights {name!r} "
            "need it; choose another name"
        )
    return settings


def _worded(error: ChannelError, name: str) -> str:
    """Return the text of an error about the channel of weights, as one about the weights."""
    text = str(error).replace(f"the channel {_PREFIX + name!r}", f"the weights {name!r}")
    text = text.replace(f"no channel {_PREFIX + name!r}", f"no weights {name!r}")
    return text.replace("Channel.", "Weights.")
