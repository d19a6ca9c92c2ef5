"""The replies of one call on a group, and its failures: logged when they arrive."""

import itertools
import logging
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from ray.exceptions import RayActorError, RayError, RayTaskError

from shoal._ray import cause_of_death, in_process, runtime, waits_outside_ray
from shoal.bootstrap.call_value import CallValue
from shoal.bootstrap.failure import Failure
from shoal.cluster import Cluster
from shoal.cluster.stop import stop_process
from shoal.context import current
from shoal.deadline import Deadline
from shoal.errors import CallDecodeError, ClusterError, PeerLostError
from shoal.fork import ChildStage, in_child
from shoal.long_wait_hooks import annotate_waits
from shoal.manager.base import connection
from shoal.worker import timing

__all__ = ["GroupCall", "describe_not_raised", "forget_failures"]

_log = logging.getLogger("shoal")

# Part of Ray's message about an actor that was killed with this function.
_KILLED = "ray.kill"
# Maximum number of failures that are kept, and that one log line names.
_KEPT, _NAMED = 100, 3


class GroupCall:
    """One call on ranks of a group.

    A failure is logged when it arrives, unless a caller waits for the call at that moment: then it
    is raised there. If failures stop the process, each of them does.

    Args:
        group: The group's name.
        method: The method.
        refs: One Ray reference for each rank that was called.
        ranks: The ranks that were called.
        what: The call in the texts of its failures; by default `group.method`.
        is_quiet: Whether the failures of this call are of no interest to the user.
        stops: Whether a failure ends this process.
        on_complete: Called once without a failure when all ranks have replied.

    Attributes:
        replies: A rank's value, or its `Failure`, by position.
    """

    def __init__(
        self,
        group: str,
        method: str,
        refs: Sequence[Any],
        ranks: Sequence[int],
        *,
        what: str | None = None,
        is_quiet: bool = False,
        stops: bool = False,
        on_complete: Callable[[], None] | None = None,
    ) -> None:
        self.group = group
        self.name = f"{group}.{method}"
        self.refs = list(refs)
        self.ranks = list(ranks)
        self.replies: dict[int, Any] = {}
        self._number = next(_numbers)
        self._what = what or self.name
        self._is_quiet = is_quiet
        self._stops = stops and not is_quiet
        self._on_complete = on_complete
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._watched = False
        self._failures = 0
        self._is_dropped = False
        self._waits = 0
        self._told: set[int] = set()
        # The ranks that ended because this process or another one closed their group.
        self._wanted: set[int] = set()
        if self._stops:
            self.watch()
        else:
            _watch_later(self)

    # --- replies ---

    def pending(self) -> list[int]:
        """Return the positions of the ranks that have not replied."""
        return [i for i in range(len(self.refs)) if i not in self.replies]

    def failed(self) -> list[int]:
        """Return the positions of the ranks that failed, first failure first."""
        replies = list(self.replies.items())
        failures = [(r.when, i) for i, r in replies if isinstance(r, Failure)]
        return [i for _, i in sorted(failures)]

    def watch(self) -> None:
        """Receive the replies as they arrive, whether or not the call is waited for. Idempotent."""
        with self._changed:
            if self._watched:
                return
            self._watched = True
            missing = self.pending()
        for index in missing:
            self.refs[index].future().add_done_callback(partial(self._arrived, index))

    def watch_if_left_alone(self) -> None:
        """Same as `watch`, unless the call has ended or a caller waits for it."""
        if not self._waits and self.pending():
            self.watch()

    def drop(self) -> None:
        """Keep no values from now on: no code can ask for them any more."""
        with self._changed:
            self._is_dropped = True
            self.replies = {i: self._kept(reply) for i, reply in self.replies.items()}
        if not self._watched and self.pending() and not _is_ending():
            self.watch()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Leave failures to the caller of this block, who raises them; log the others afterwards."""
        with self._changed:
            self._waits += 1
        try:
            yield
        finally:
            with self._changed:
                self._waits -= 1
            for index in self.failed():
                self._tell(index, self.replies[index])

    def raised(self) -> None:
        """Note that the failures so far were raised where the call was waited for."""
        with _lock:
            for index in self.failed():
                self._told.add(index)
                _not_raised.pop((self._number, index), None)

    def take_at_once(self, seconds: float) -> None:
        """Take all replies in one step, if they arrive within this time and all ranks live.

        Not in the main thread of a driver, which must not wait inside Ray (`_ray.fetch`).
        """
        if self._watched or self.replies or waits_outside_ray():
            return
        try:
            values = runtime().get(self.refs, timeout=seconds)
        except RayError:
            return  # too early, or a rank died: `watch` receives the replies
        for index, value in enumerate(values):
            self._store(index, value)

    def take_arrived(self) -> None:
        """Take the replies that have arrived."""
        if self._watched:
            return
        by_ref = {self.refs[i]: i for i in self.pending()}
        if not by_ref:
            return
        ready, _ = runtime().wait(list(by_ref), num_returns=len(by_ref), timeout=0)
        for ref in ready:
            index = by_ref[ref]
            try:
                self._store(index, runtime().get(ref))
            except RayError as error:
                self._store_error(index, error)

    def open(self) -> None:
        """Decode the values that have arrived, in this thread; what cannot be is a failure."""
        with self._changed:  # two threads may wait for one call
            for index, reply in self.replies.items():
                if type(reply) is CallValue:
                    try:
                        self.replies[index] = reply.get()
                    except CallDecodeError as error:
                        failure = Failure.of_peer(error, self._address(index), self.ranks[index])
                        self.replies[index] = failure

    def await_end(self, failures: int, seconds: float) -> None:
        """Wait until all ranks have replied or more than `failures` failed, at most for `seconds`."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self.replies) == len(self.refs) or self._failures > failures, seconds
            )

    def add_listener(self, function: Callable[[], None]) -> None:
        """Call a function after each reply of a watched call, in the thread that received it."""
        self._listeners.append(function)

    def remove_listener(self, function: Callable[[], None]) -> None:
        """Undo `add_listener`."""
        self._listeners.remove(function)

    def _arrived(self, index: int, future: Any) -> None:
        if sys.is_finalizing() or future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._store(index, future.result())
        else:
            self._store_error(index, error)

    def _store_error(self, index: int, error: Exception) -> None:
        is_killed = isinstance(error, RayActorError) and _KILLED in str(error)
        self._store(index, self._died(index, error), is_wanted=is_killed)

    def _store(self, index: int, reply: Any, *, is_wanted: bool = False) -> None:
        is_failure = isinstance(reply, Failure)
        is_wanted = is_wanted or (is_failure and _is_ending())
        with self._changed:
            if index in self.replies:
                return
            if is_wanted:
                self._wanted.add(index)
            self.replies[index] = self._kept(reply)
            self._failures += is_failure
            is_complete = len(self.replies) == len(self.refs)
            if is_complete or is_failure:
                self._changed.notify_all()
        for listener in list(self._listeners):
            listener()
        if is_failure and not self._is_left_to_waits():
            self._tell(index, reply)
        if is_complete and self._on_complete is not None and not self.failed():
            self._on_complete()

    def _kept(self, reply: Any) -> Any:
        # A dropped call keeps its failures, which are small, and the fact of its replies.
        return None if self._is_dropped and not isinstance(reply, Failure) else reply

    def _is_left_to_waits(self) -> bool:
        """Whether failures are raised by a wait that is under way, in this process or its caller."""
        return self._waits > 0 and (not self._stops or _is_worker())

    def _address(self, index: int) -> str:
        return f"{self.group}:{self.ranks[index]}"

    def _died(self, index: int, error: Exception) -> Failure:
        rank, address = self.ranks[index], self._address(index)
        cause: Exception = error
        if isinstance(error, RayActorError) and _is_ending():
            cause = ClusterError(f"{self.name}: the cluster was shut down before the call ended")
        elif isinstance(error, RayActorError):
            reason = cause_of_death(error, _node)
            cause = PeerLostError(f"{address} died before {self.name} ended: {reason}")
        elif isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
            cause = error.cause
            cause.add_note(
                f"{self.name} on rank {rank} ({address}): what it returned cannot be pickled, or "
                "one of its arguments was not available there"
            )
        return Failure.of_peer(cause, address, rank)

    # --- failures ---

    def event(self, failures: Iterable[Failure]) -> str:
        """Say what failed: this call, or the constructors, without which it did not run."""
        built = f"constructing {self.group}"
        if self._what == built or not all(failure.is_of_constructor for failure in failures):
            return f"{self._what} failed"
        return f"{self._what}: {built} failed"

    def stop(self) -> None:
        """End this driver because the call failed, if failures do."""
        if self._stops and not _is_worker():
            for index in self.failed():
                if index not in self._wanted:
                    self._tell(index, self.replies[index])
                    self._stop(index)

    def _tell(self, index: int, failure: Failure) -> None:
        """Log a failure, with its traceback if no other line has it, and keep it for other waits."""
        if self._is_quiet or index in self._wanted:
            return
        line, job = self._line(index), _job()
        with _lock:
            if index in self._told:
                return
            self._told.add(index)
            _not_raised[self._number, index] = _Kept(self.group, line, job)
            while len(_not_raised) > _KEPT:
                _not_raised.popitem(last=False)
            detail = "" if _was_shown(failure) else f"\n{failure.traceback_text}"
        _log.error("%s%s", line, detail.rstrip())
        if self._stops:
            self._stop(index)

    def _line(self, index: int) -> str:
        failure: Failure = self.replies[index]
        where = f"on rank {failure.rank} ({failure.address})"
        return f"{self.event([failure])} {where}: {failure.summary}"

    def _stop(self, index: int) -> None:
        stop_process(self._line(index), _end_workers, is_worker=_is_worker())


class _Kept(NamedTuple):
    """A failure that was not raised: the group, the log line and the job of its call."""

    group: str
    line: str
    job: Any


_numbers = itertools.count()
# Reentrant: a result that is deleted while this thread has the lock may log its failures.
_lock = threading.RLock()
_not_raised: OrderedDict[tuple[int, int], _Kept] = OrderedDict()
_shown: deque[tuple[str, float] | str] = deque(maxlen=_KEPT)
_new: deque[GroupCall] = deque()
_wake = threading.Event()
_watcher: threading.Thread | None = None


def forget_failures(group: str) -> None:
    """Name the failures of a group no more in the log lines of waits: the group was closed."""
    with _lock:
        for key in [k for k, kept in _not_raised.items() if kept.group == group]:
            del _not_raised[key]


def _was_shown(failure: Failure) -> bool:
    # Every call on a worker whose constructor failed returns the same failure; ranks that fail
    # equally have equal tracebacks.
    keys: tuple[tuple[str, float] | str, ...] = (
        (failure.address, failure.when),
        failure.traceback_text,
    )
    known = not failure.traceback_text or any(key in _shown for key in keys)
    _shown.extend(keys)
    return known


def describe_not_raised(_: Any = None) -> str:
    """Name the failures of this job that no wait has raised so far; empty for none."""
    job = _job()
    with _lock:
        lines = [kept.line for kept in _not_raised.values() if kept.job == job]
    if not lines:
        return ""
    more = f", and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    return f"failed before, and not raised so far: {'; '.join(lines[:_NAMED])}{more}"


def _job() -> Any:
    """Return what identifies the present job."""
    local = in_process()
    # Not its id, which a later cluster may have again.
    return connection() if local is None else weakref.ref(local)


def _node(ip: str) -> str:
    """Name the node at an address, with its rank if this process knows it."""
    cluster = getattr(Cluster, "_instance", None)
    known = () if cluster is None else cluster.nodes
    ranks = [str(node.node_rank) for node in known if node.node_ip == ip]
    # In a test, several nodes may be on one machine.
    return f"node {' or '.join(ranks)} ({ip})" if ranks else ip


def _is_ending() -> bool:
    """Whether this process ends its job: what fails then is not a failure of the user's code."""
    cluster = getattr(Cluster, "_instance", None)
    return (cluster is not None and cluster.is_ending) or not runtime().is_initialized()


def _is_worker() -> bool:
    return in_process() is None and current().name != "driver"


def _end_workers() -> None:
    cluster = getattr(Cluster, "_instance", None)
    if cluster is not None and not cluster.is_ending:
        cluster.kill_workers()


def _watch_later(call: GroupCall) -> None:
    _new.append(call)
    if _watcher is None or not _watcher.is_alive():
        _start_watcher()
    if not _wake.is_set():
        _wake.set()


def _start_watcher() -> None:
    global _watcher  # noqa: PLW0603  (a process has one thread for this)
    with _lock:
        if _watcher is not None and _watcher.is_alive():
            return
        watcher = threading.Thread(target=_watch_calls, name="shoal-failures", daemon=True)
        try:
            watcher.start()
        except RuntimeError as error:  # a limit of threads; the next call tries again
            _log.debug("calls are not watched yet: %s", error)
            return
        _watcher = watcher


def _watch_calls() -> None:
    calls = _new
    while True:
        _wake.wait()
        time.sleep(timing.TIMING.watch_after_s)
        _wake.clear()
        _watch_new(calls)


def _watch_new(calls: deque[GroupCall]) -> None:
    while calls:
        _await_end()
        try:
            call = calls.popleft()
        except IndexError:  # another thread took it: this one was replaced
            return
        try:
            if not _is_ending():
                call.watch_if_left_alone()
        except Exception:  # noqa: BLE001  (Ray is being shut down; the next job needs this thread)
            _log.debug("%s: not watched", call.name, exc_info=True)
        del call  # its values must not live until the next call


def _await_end() -> None:
    """Wait until the cluster's shutdown is complete, if it is under way.

    While Ray shuts down, and says already that it is not initialised, it ends the process with exit
    code 1 if any thread calls it or drops a reference to a result.
    """
    deadline = Deadline(timing.TIMING.end_s)
    while not deadline.expired:
        cluster = getattr(Cluster, "_instance", None)
        if cluster is None or not cluster.is_ending:
            return
        time.sleep(timing.TIMING.watch_after_s)


def _forget() -> None:
    global _lock, _new, _wake, _watcher
    _lock, _new, _wake, _watcher = threading.RLock(), deque(), threading.Event(), None
    _not_raised.clear()


annotate_waits(describe_not_raised)
in_child(ChildStage.FORGET, _forget)
