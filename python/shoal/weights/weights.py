"""`Weights`: the public class of weights that a job publishes and reads by their name."""

import concurrent.futures
import contextlib
import secrets
import sys
import threading
from functools import partial
from typing import Any, Literal, Self, overload

import ray

from shoal._ray import in_process
from shoal.channel.create import connect, create, routes_of
from shoal.channel.remote import RemoteQueues
from shoal.context import current, describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ChannelClosed,
    ChannelError,
    ChannelExistsError,
    ChannelNotFoundError,
    ShoalTimeoutError,
    ShoalValueError,
    WeightsClosed,
    WeightsError,
    WeightsExistsError,
    WeightsNotFoundError,
)
from shoal.futures import ends_in_time, fail, fulfil, without_frames
from shoal.integers import as_int
from shoal.job_end import tie_to_job
from shoal.manager import NodeManager
from shoal.process import Origin
from shoal.queues.wait import JOB_HAS_ENDED
from shoal.reused_threads import run_in_thread
from shoal.weights import timing
from shoal.weights.actor import PREFIX, WeightsSettings, WeightsWorker, home_of
from shoal.weights.arguments import (
    check_device_memory,
    check_name,
    check_node,
    check_whole,
    checked_delta,
    checked_dtype,
    checked_part,
    checked_settings,
    checked_version,
    worded,
)
from shoal.weights.layout import StateLayout
from shoal.weights.parts import publish_part
from shoal.weights.sent_parts import send_part
from shoal.weights.snapshot import Snapshot
from shoal.weights.stats import WeightsStats
from shoal.weights.store import Store
from shoal.weights.subscription import Subscription
from shoal.weights.version import Version
from shoal.work import AsyncChannelWork, AsyncWork

__all__ = ["Weights"]

Future = concurrent.futures.Future[Any]


_MESSAGES = 4
"""Maximum number of messages of a version that wait for a node."""

_TRANSFER_BYTES = 2**27
"""Maximum number of bytes of the messages that wait for one node."""


class Weights:
    """Versions of a state, which one process publishes and many read in place, on every node.

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
        self._index = 0  # of the actor whose memory that is
        self._lock = threading.Lock()
        self._origin = Origin()
        self._pending: set[Future] = set()  # the publishes of this handle that have not ended
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
        push: bool = False,
        device_memory: bool = False,
        timeout: float | None = None,
    ) -> Self:
        """Create weights, or connect to those of this name if they are the same.

        Args:
            name: Unique among the weights of the job.
            keep: Number of versions that stay in memory, whether or not anyone reads them. Others
                stay as long as a snapshot of them does.
            max_bytes: Maximum number of bytes of all versions in memory; None for no bound below
                the size of the file system.
            node_rank: The node on which versions are published; None for the node of the process
                that publishes the first. They are read on all nodes.
            push: Whether each version is sent to every node as soon as it is published; otherwise
                only to nodes that have readers.
            device_memory: Whether tensors of CUDA devices stay in the memory of these, where readers
                of the node find them, who have to see the same devices. A version ends with its
                publisher then. In a job of several nodes this needs `node_rank`.
            timeout: Maximum seconds of the start; None for the default.

        Raises:
            WeightsExistsError: The name belongs to weights with other arguments.
            ShoalValueError: An argument is not valid.
            ShoalTimeoutError: The actor did not start in time.
        """
        check_name(name)
        keep, max_bytes = Store.checked_bounds(keep, max_bytes)
        nodes = 1 if in_process() is not None else NodeManager.get_proxy().num_nodes()
        here = max(0, current().node_rank)
        home = here if nodes == 1 and node_rank is None else as_int(node_rank, 0)
        is_node = node_rank is None if home is None else home < nodes or in_process() is not None
        if not is_node:
            raise ShoalValueError(
                f"weights {name!r}: node_rank={node_rank!r}: expected a node, 0 to {nodes - 1}"
            )
        check_device_memory(name, device_memory, push=push, is_placed=home is not None)
        settings = WeightsSettings(
            PREFIX + name,
            maxsize=_MESSAGES,
            max_bytes=_TRANSFER_BYTES * nodes,
            keep=keep,
            version_bytes=max_bytes,
            home=home,
            push=push,
            device_memory=device_memory,
            unique=secrets.token_hex(8),
        )
        try:
            found, routes = create(
                settings,
                distributed=True,
                node_rank=0 if home is None else home,
                deadline=Deadline(timeout),
                worker_cls=WeightsWorker,
            )
        except ChannelExistsError as error:
            raise WeightsExistsError(worded(error, name)) from None
        weights = cls(checked_settings(found, name), routes)
        if node_rank is not None and node_rank != weights.node_rank:
            raise WeightsExistsError(
                f"{describe_self()}: the weights {name!r} exist, with node_rank={weights.node_rank} (asked "
                f"for: {node_rank}); connect to them with Weights.connect, or choose another name"
            )
        return weights

    @classmethod
    def connect(cls, name: str, timeout: float | None = None) -> Self:
        """Find weights by their name.

        Args:
            name: The name.
            timeout: Maximum seconds to wait until they are created; None not to wait.

        Raises:
            WeightsNotFoundError: There are no weights of this name.
        """
        check_name(name)
        try:
            found, routes = connect(PREFIX + name, None if timeout is None else Deadline(timeout))
        except (ChannelNotFoundError, ChannelClosed) as error:
            raise WeightsNotFoundError(worded(error, name)) from None
        return cls(checked_settings(found, name), routes)

    @property
    def name(self) -> str:
        """The name."""
        return self._settings.name.removeprefix(PREFIX)

    @property
    def node_rank(self) -> int | None:
        """The node on which versions are published; None if that is not known yet."""
        return home_of(self._settings)

    @property
    def newest(self) -> Version | None:
        """The newest version that was published, as far as this node knows; None before the first.

        It never goes back. On another node than the publisher's it may be on its way still; `latest`
        waits for it. If this node does not follow that one yet, this takes until it answers, at most
        2 s.
        """
        store = self._opened()
        if store.follows and not store.control.packed and self.node_rank is None:
            return None  # no node has published one, so there is nothing to hear of
        return store.newest()

    @overload
    def publish(
        self, state: Any, version: int | None = None, timeout: float | None = None, *,
        dtype: Any = None, delta: bool | str | Version = False, checksum: bool = True,
        part: tuple[int, int] | None = None, async_op: Literal[False] = False,
    ) -> Version: ...  # fmt: skip

    @overload
    def publish(
        self, state: Any, version: int | None = None, timeout: float | None = None, *,
        dtype: Any = None, delta: bool | str | Version = False, checksum: bool = True,
        part: tuple[int, int] | None = None, async_op: Literal[True],
    ) -> AsyncWork: ...  # fmt: skip

    @overload
    def publish(
        self, state: Any, version: int | None = None, timeout: float | None = None, *,
        dtype: Any = None, delta: bool | str | Version = False, checksum: bool = True,
        part: tuple[int, int] | None = None, async_op: bool,
    ) -> Version | AsyncWork: ...  # fmt: skip

    def publish(
        self,
        state: Any,
        version: int | None = None,
        timeout: float | None = None,
        *,
        dtype: Any = None,
        delta: bool | str | Version = False,
        checksum: bool = True,
        part: tuple[int, int] | None = None,
        async_op: bool = False,
    ) -> Version | AsyncWork:
        """Publish a state as the newest version.

        Args:
            state: A `torch.nn.Module`, whose `state_dict` is taken, or a dict of names to tensors,
                arrays, small values, and dicts of such. It may change once this call, or the work
                that it returns, has ended. Tensors that share memory share it in the snapshots,
                too; gradients are not part of a version.
            version: The number of the version, greater than the last one of this publisher; None for
                the next number.
            timeout: Maximum seconds to wait while another process publishes; None for the default.
            dtype: A dtype of torch to which floating-point tensors are cast on the way.
            delta: Copy only what changed since the newest version; readers see no difference. True
                compares hashes, which reads the state once, and copies tensors of an accelerator
                and those that are cast. `"counters"` trusts torch's counts of the writes to a
                tensor instead, which is faster, but misses writes through `.data`; other values are
                compared as for True. A `Version` is as True, and an error if it is not the newest.
            checksum: Whether to make hashes while copying, for `Snapshot.verify` and deltas.
            part: The rank of this process and the number of processes, if several publish one version
                together, on any nodes; `version` has to be given then. The version is there when all parts are,
                and the call waits for that. Each name belongs to one part, except that all processes
                of a `DTensor`'s mesh publish it, and readers get the whole tensor.
            async_op: Return a work at once, and publish in another thread, in the order of the
                calls.

        Returns:
            The version, or a work of it. Its epoch is greater than that of any version of another
            publisher.

        Raises:
            ShoalValueError: A part of the state cannot be published, or the number is too small.
            WeightsClosed: The weights were closed, or their job has ended.
            WeightsMemoryError: There is no room for the version; nothing was written.
            WeightsError: This process cannot share memory of its GPU, as `device_memory` asks for; or
                this is another node than that of the versions, and no part is given.
            PeerLostError: The node to which a part is sent was lost.
            ShoalTimeoutError: Another process published until the deadline, or another part did not
                come; the text names it.
        """
        store, deadline = self._opened(), Deadline(timeout)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(state, torch.nn.Module):
            state = state.state_dict()
        delta = checked_delta(delta)
        which = checked_part(part, version, delta)
        on_device = self._settings.device_memory
        if on_device:
            check_whole(self.name, delta, which)
        layout = StateLayout(state, checked_dtype(dtype), is_part=which is not None)
        home = self._claim(store, is_part=which is not None) if store.follows else None
        future: Future = concurrent.futures.Future()
        if not self._origin.is_here:  # the threads of the parent do not exist in a forked child
            self._origin, self._lock, self._pending = Origin(), threading.Lock(), set()
        with self._lock:
            earlier = list(self._pending)
            self._pending.add(future)
        future.add_done_callback(self._pending.discard)

        def publish() -> Version:
            wait = LongWait(
                lambda: f"{describe_self()}: publish waits for earlier ones of {store.name}",
                deadline,
                operation="publish",
                on=store.name,
            )
            for one in earlier:
                if not ends_in_time(one, wait):
                    raise ShoalTimeoutError(
                        f"{wait.describe()}: no end of them within {deadline.timeout:g} s"
                    )
            if which is not None and home is not None:
                return send_part(store, home, layout, which, deadline, checksum=checksum)
            if which is not None:
                return publish_part(store, layout, which, deadline, checksum=checksum)
            return store.publish(
                layout, version, deadline, delta=delta, checksum=checksum, on_device=on_device
            )

        if not async_op:
            try:
                return publish()
            finally:
                future.set_result(None)  # not the error, whose frames refer to the future
        try:
            run_in_thread(partial(fulfil, future, publish))
        except RuntimeError:  # no thread can be started
            future.cancel()  # the next publish does not wait for it
            raise
        return AsyncWork(future, f"publish of {store.name}")

    @overload
    def latest(
        self, newer_than: Version | tuple[int, int] | None = None, timeout: float | None = None, *,
        async_op: Literal[False] = False,
    ) -> Snapshot: ...  # fmt: skip

    @overload
    def latest(
        self, newer_than: Version | tuple[int, int] | None = None, timeout: float | None = None, *,
        async_op: Literal[True],
    ) -> AsyncChannelWork: ...  # fmt: skip

    @overload
    def latest(
        self, newer_than: Version | tuple[int, int] | None = None, timeout: float | None = None, *,
        async_op: bool,
    ) -> Snapshot | AsyncChannelWork: ...  # fmt: skip

    def latest(
        self,
        newer_than: Version | tuple[int, int] | None = None,
        timeout: float | None = None,
        *,
        async_op: bool = False,
    ) -> Snapshot | AsyncChannelWork:
        """Return the newest version; wait for one if there is none, or none that is new enough.

        Args:
            newer_than: Wait for a version after this one; None for any.
            timeout: Maximum seconds to wait; None for the default, 0 not to wait.
            async_op: Return a work at once; it can be waited for, awaited and cancelled.

        Returns:
            A `Snapshot`, or a work of it.

        Raises:
            ShoalTimeoutError: There was no such version in time.
            WeightsClosed: The weights were closed, or their job has ended.
        """
        if newer_than is None:
            return self._newest(1, "a version", timeout, async_op=async_op)
        after = checked_version(newer_than, "newer_than")
        wanted = f"a version after {after}"
        return self._newest(after.packed() + 1, wanted, timeout, async_op=async_op)

    @overload
    def wait_for(
        self, version: Version | tuple[int, int], timeout: float | None = None, *,
        async_op: Literal[False] = False,
    ) -> Snapshot: ...  # fmt: skip

    @overload
    def wait_for(
        self, version: Version | tuple[int, int], timeout: float | None = None, *,
        async_op: Literal[True],
    ) -> AsyncChannelWork: ...  # fmt: skip

    @overload
    def wait_for(
        self, version: Version | tuple[int, int], timeout: float | None = None, *,
        async_op: bool,
    ) -> Snapshot | AsyncChannelWork: ...  # fmt: skip

    def wait_for(
        self,
        version: Version | tuple[int, int],
        timeout: float | None = None,
        *,
        async_op: bool = False,
    ) -> Snapshot | AsyncChannelWork:
        """Wait until a version or a later one is there, and return the newest.

        A worker that was started in place of another calls this before it serves, for example.

        Args:
            version: The version.
            timeout: As of `latest`.
            async_op: As of `latest`.

        Returns:
            A `Snapshot`, or a work of it.

        Raises:
            ShoalTimeoutError: There was no such version in time.
            WeightsClosed: The weights were closed, or their job has ended.
        """
        least = checked_version(version, "version")
        wanted = f"version {least} or a later one"
        return self._newest(least.packed(), wanted, timeout, async_op=async_op)

    def subscribe(
        self,
        newer_than: Version | tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """Return an iterator over the newest versions, for `for` and `async for`.

        Each step waits for a version after the one before; versions that are over by then are
        skipped. It ends when the weights are closed.

        Args:
            newer_than: Begin with a version after this one; None for any.
            timeout: Maximum seconds of each step, as of `latest`.
        """
        return Subscription(self.latest, newer_than, timeout)

    def _newest(
        self, least: int, wanted: str, timeout: float | None, *, async_op: bool
    ) -> Snapshot | AsyncChannelWork:
        store, deadline = self._opened(), Deadline(timeout)
        if not async_op:
            return store.latest(least, wanted, deadline)
        future: Future = concurrent.futures.Future()

        def check() -> None:
            if future.cancelled():
                raise concurrent.futures.CancelledError

        def work() -> None:
            try:
                snapshot = store.latest(least, wanted, deadline, check)
            except BaseException as error:  # noqa: BLE001  (it is the result of the work)
                fail(future, without_frames(error))
            else:
                fulfil(future, lambda: snapshot)

        run_in_thread(work)
        return AsyncChannelWork(future, f"{wanted} of {store.name}", takes=True)

    def diff(self, target: Any, timeout: float | None = None) -> tuple[str, ...]:
        """Return the names whose values in a module or a dict are not those of the newest version.

        Args:
            target: A `torch.nn.Module`, or a dict that may be nested.
            timeout: Maximum seconds to wait for the version; None for 60 s while it is on its way to
                this node, and else not to wait.

        Raises:
            ShoalTimeoutError: There is no version, or it did not come in time.
            WeightsClosed: The weights were closed, or their job has ended.
        """
        store, wanted = self._opened(), "a version"
        if store.follows:
            home = self.node_rank
            wanted = "a first version" if home is None else f"a version from node {home}"
        deadline = Deadline(timeout, default=timing.TIMING.diff_s if store.follows else 0)
        return store.latest(1, wanted, deadline).diff(target)

    def stats(self) -> WeightsStats:
        """Return which versions are in memory, and which process holds which since when."""
        return self._opened().stats()

    def close(self, reason: str = "") -> None:
        """Let no version follow, end all waits of all processes, and free the memory.

        Snapshots stay valid. Idempotent.

        Args:
            reason: A text for the errors of those who wait.
        """
        try:
            store = self._store or self._opened()
            self._check_job()
        except WeightsClosed:
            return
        reason = reason or f"{describe_self()} called close"
        store.close(reason)
        store.forget()
        if self._settings.num_actors > 1:
            told = []
            for queues in self._routes.actors():
                with contextlib.suppress(ChannelError):  # this actor has ended already
                    told.append(queues.handle.close_weights.remote(reason))
            if told:
                ray.wait(told, num_returns=len(told), timeout=timing.TIMING.close_s)
        with contextlib.suppress(ChannelError):  # its actor has ended already
            self._routes.end(now=True)

    def _claim(self, store: Store, *, is_part: bool) -> tuple[int, RemoteQueues] | None:
        """Make this node the one on which versions are published, if there is none yet.

        Returns:
            If it is another one, that node and the queues of its actor; else None.

        Raises:
            WeightsError: It is another one, and a whole version is to be published.
        """
        home = home_of(self._settings, claimed_by=self._index)
        if home is not None and home != self._index and is_part:
            return home, list(self._routes.actors())[home]
        if home != self._index:
            raise WeightsError(
                f"{describe_self()}: publish: the weights {self.name!r} are published on node {home}; to "
                f"publish here, create them with node_rank={max(0, current().node_rank)}"
            )
        store.control.make_home()
        return None

    def _opened(self) -> Store:
        if self._store is None:
            self._check_job()
            folder, index = self._folder()
            check_node(self._settings, self.name, index)
            store = Store.of(folder, f"the weights {self.name!r}", self._check_job)
            store.follows = self._settings.num_actors > 1 and index != self._settings.home
            self._store, self._index = store, index
        return self._store

    def _folder(self) -> tuple[str, int]:
        """Return the folder of this node, and the index of its actor."""
        if in_process() is not None:
            try:
                folder: str = self._routes.folder()
            except ChannelClosed:
                raise WeightsClosed(
                    f"{describe_self()}: the weights {self.name!r} were closed"
                ) from None
            with contextlib.suppress(FileExistsError):
                Store.create(folder, self._settings.keep, self._settings.version_bytes)
            return folder, 0
        locations, own = self._settings.locations, current().node_rank
        # Nodes of a test may share their memory.
        order = sorted(range(len(locations)), key=lambda index: index != own)
        for index in order:
            location = locations[index]
            if location is not None and location.is_here():
                return location.token, index
        if any(location is not None and location.is_gone() for location in locations):
            raise WeightsClosed(
                f"{describe_self()}: the weights {self.name!r} were closed, or their job has ended"
            )
        raise WeightsError(
            f"{describe_self()}: the weights {self.name!r} have no memory that this process can see: "
            "expected a worker on a node of the job, of the same user, /dev/shm and core"
        )

    def _end_with_job(self) -> None:
        self._job_has_ended = True
        if self._store is not None:
            self._store.forget()

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
