"""The result of a call on a group: values, or the failures of the ranks that failed."""

import asyncio
import importlib
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError

from shoal._ray import keeps_exit_code, runtime, timed_out
from shoal.bootstrap.failure import Failure
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import ClusterError, PeerLostError, ShoalValueError, WorkerGroupError

__all__ = ["WorkerGroupFuncResult", "log_failure"]

_log = logging.getLogger("shoal")

# Seconds that the other ranks get after the first failure, so that one error can name them all.
_GRACE_S = 2.0
# Seconds within which one `ray.get` waits for all ranks; then each rank is watched by itself.
_FIRST_LOOK_S = 0.05
# Part of Ray's message about an actor that was killed with this function.
_KILLED = "ray.kill"


class WorkerGroupFuncResult:
    """The result of a call on a group, returned at once; `wait` returns the values in rank order.

    A result that is deleted before it was waited for logs its failures.

    Args:
        worker_group: The group that was called.
        results: One Ray reference for each rank that was called, in rank order.
        func_name: The method.
        cls_name: The workers' class.
        ranks: The ranks that were called.
    """

    def __init__(
        self,
        worker_group: Any,
        results: Sequence[Any],
        func_name: str,
        cls_name: str,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._group = worker_group
        self._refs = list(results)
        self._func_name = func_name
        self._cls_name = cls_name
        self._ranks = list(range(len(self._refs))) if ranks is None else list(ranks)
        # A rank's value, or its Failure, by position.
        self._replies: dict[int, Any] = {}
        self._grace: Deadline | None = None
        self._waited = False

    # --- waiting ---

    @keeps_exit_code
    def wait(self, timeout: float | None = math.inf, *, all: bool = False) -> list[Any]:  # noqa: A002  (part of the API)
        """Wait for all ranks and return their values, in rank order.

        Args:
            timeout: Limit in seconds; by default none: a call ends when its ranks end or die.
            all: Whether to wait for all ranks even after one has failed; otherwise the others get
                2 s, and the error names those that still run.

        Raises:
            WorkerGroupError: Ranks of a call on several ranks failed; first cause first.
            Exception: The only rank that was called failed: its own error, with a note that has
                rank, address and the remote traceback.
            ShoalTimeoutError: The timeout expired, and no rank had failed.
            ClusterError: The cluster was shut down before the wait.
        """
        self._waited = True
        self._check_ray()
        deadline = Deadline(timeout, default=math.inf)
        log = LongWait(self._describe_wait, deadline)
        self._look_first(min(_FIRST_LOOK_S, deadline.remaining))
        while pending := self._pending():
            at_most = math.inf if all else self._grace_left()
            if at_most <= 0 or (deadline.expired and self._failed()):
                break
            if deadline.expired:
                raise timed_out(self._call, self._peers(pending), deadline)
            self._look(log.step(at_most), at_least=1)
            if math.isinf(at_most):  # otherwise it ends within the grace
                log.tick()
        return self._values(deadline)

    async def async_wait(self, timeout: float | None = math.inf, *, all: bool = False) -> list[Any]:  # noqa: A002, ASYNC109  (same as `wait`)
        """Same as `wait`, in an event loop."""
        self._waited = True
        self._check_ray()
        deadline = Deadline(timeout, default=math.inf)
        log = LongWait(self._describe_wait, deadline)
        tasks = {asyncio.ensure_future(self._receive(i)) for i in self._pending()}
        try:
            while tasks:
                at_most = math.inf if all else self._grace_left()
                if at_most <= 0 or (deadline.expired and self._failed()):
                    break
                if deadline.expired:
                    raise timed_out(self._call, self._peers(self._pending()), deadline)
                step = log.step(at_most)
                _, tasks = await asyncio.wait(
                    tasks,
                    timeout=None if math.isinf(step) else step,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                log.tick()
        finally:
            for task in tasks:
                task.cancel()
        return self._values(deadline)

    def done(self) -> bool:
        """Whether `wait` returns at once: all ranks have ended, or one failed at least 2 s ago."""
        self._look(0.0)
        return not self._pending() or self._grace_left() <= 0

    def __await__(self) -> Any:
        return self.async_wait().__await__()

    # --- durations ---

    def consume_duration(self, reduction_type: str = "max") -> float:
        """Return how long the call took: the ranks' durations, reduced.

        Args:
            reduction_type: The name of a numpy reduction: `max`, `min`, `mean`, `sum`, …

        Returns:
            Seconds: the worker's timer with the name of the method, which is then removed; if
            there is none, the time that the method ran.
        """
        return float(_reduction(reduction_type)(self._durations(self._func_name)))

    def consume_durations(
        self, reduction_type: str = "max", return_per_rank: bool = False
    ) -> dict[str, Any]:
        """Return all timers of the ranks, reduced, and remove them from the workers.

        Args:
            reduction_type: The name of a numpy reduction.
            return_per_rank: Whether to return each rank's values as well.

        Returns:
            Seconds by timer, including the call itself under its method's name; with
            `return_per_rank` a pair of this dict and a list of each rank's timers.
        """
        reduce = _reduction(reduction_type)
        self.wait()
        per_rank = self._group.call_ranks(self._ranks, "pop_execution_times").wait()
        for timers, seconds in zip(per_rank, self._call_seconds(), strict=True):
            timers.setdefault(self._func_name, seconds)
        names = sorted({name for timers in per_rank for name in timers})
        reduced = {n: float(reduce([t[n] for t in per_rank if n in t])) for n in names}
        return (reduced, per_rank) if return_per_rank else reduced  # type: ignore[return-value]  # the contract's two shapes

    def _durations(self, tag: str) -> list[float]:
        self.wait()
        timers = self._group.call_ranks(self._ranks, "_pop_timer", tag).wait()
        if None not in timers:
            return list(map(float, timers))
        pairs = zip(timers, self._call_seconds(), strict=True)
        return [seconds if timer is None else timer for timer, seconds in pairs]

    def _call_seconds(self) -> list[float]:
        return self._group.seconds_of(self._ranks, self._func_name)  # type: ignore[no-any-return]  # the group is Any here: importing its class would break the layers

    # --- inside ---

    @property
    def _call(self) -> str:
        return f"{self._group.worker_group_name}.{self._func_name}"

    def _check_ray(self) -> None:
        # Without this check, Ray would start a new cluster and wait for results that it lacks.
        if self._pending() and not runtime().is_initialized():
            raise ClusterError(
                f"{self._call}: the cluster was shut down before the call was waited for"
            )

    def _pending(self) -> list[int]:
        return [i for i in range(len(self._refs)) if i not in self._replies]

    def _failed(self) -> list[int]:
        return [i for i, reply in self._replies.items() if isinstance(reply, Failure)]

    def _peers(self, indices: Iterable[int]) -> str:
        ranks = ", ".join(str(self._ranks[i]) for i in indices)
        return f"{self._group.worker_group_name} rank{'s' if ',' in ranks else ''} {ranks}"

    def _grace_left(self) -> float:
        """Return the seconds that the other ranks have left after the first failure."""
        if self._grace is None and self._failed():
            self._grace = Deadline(_GRACE_S)
        return math.inf if self._grace is None else self._grace.remaining

    def _describe_wait(self) -> str:
        return f"{describe_self()}: {self._call} waits for {self._peers(self._pending())}"

    def _look_first(self, seconds: float) -> None:
        """Take all replies in one step, if they arrive within this time and all ranks live."""
        if self._replies:
            return
        try:
            self._replies.update(enumerate(runtime().get(self._refs, timeout=seconds)))
        except RayError:
            # Too early, or a rank died: `_look` finds out which replies have arrived.
            return

    def _look(self, seconds: float, *, at_least: int | None = None) -> None:
        """Wait for replies at most this long, and take those that have arrived."""
        by_ref = {self._refs[i]: i for i in self._pending()}
        if not by_ref:
            return
        timeout = None if math.isinf(seconds) else seconds
        ready, _ = runtime().wait(
            list(by_ref), num_returns=at_least or len(by_ref), timeout=timeout
        )
        if at_least and ready:
            # More may have arrived with the first one.
            ready, _ = runtime().wait(list(by_ref), num_returns=len(by_ref), timeout=0)
        for ref in ready:
            self._take(by_ref[ref])

    def _take(self, index: int) -> None:
        try:
            self._replies[index] = runtime().get(self._refs[index])
        except RayError as error:
            self._replies[index] = self._died(index, error)

    async def _receive(self, index: int) -> None:
        try:
            self._replies[index] = await self._refs[index]
        except RayError as error:
            self._replies[index] = self._died(index, error)

    def _died(self, index: int, error: RayError) -> Failure:
        rank = self._ranks[index]
        address = f"{self._group.worker_group_name}:{rank}"
        cause: Exception = error
        if isinstance(error, RayActorError):
            reason = next(iter(str(error).splitlines()), "")
            cause = PeerLostError(f"{address} died while it ran {self._call}: {reason}")
        elif isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
            cause = error.cause
            cause.add_note(
                f"{self._call} on rank {rank} ({address}): what it returned cannot be pickled, or "
                "one of its arguments was not available there"
            )
        return Failure.of_peer(cause, address, rank)

    def _values(self, deadline: Deadline) -> list[Any]:
        failed = sorted(self._failed(), key=lambda i: self._replies[i].when)
        if not failed:
            return [self._replies[i] for i in range(len(self._refs))]
        errors = [self._replies[i].rebuild() for i in failed]
        if len(self._refs) == 1:
            raise errors[0]
        first = self._replies[failed[0]]
        running = self._pending()
        tail = f"; {self._peers(running)} still ran" if running else ""
        raise WorkerGroupError(
            f"{self._call} failed on {len(failed)} of {len(self._refs)} ranks after "
            f"{deadline.elapsed:.1f} s, first on rank {first.rank}: {first.type_name}: "
            f"{first.text}{tail}",
            errors,
            ranks=[self._ranks[i] for i in failed],
        )

    def __del__(self) -> None:
        if getattr(self, "_waited", True) or sys.is_finalizing() or not runtime().is_initialized():
            return
        what = f"{self._call} (not waited for)"
        for index in self._pending():
            log_failure(self._refs[index], what)
        for index in self._failed():
            _log_failed(what, self._replies[index])


def log_failure(ref: Any, what: str) -> None:
    """If a Ray reference becomes a failure, log it as soon as it arrives."""

    def look(future: Any) -> None:
        if sys.is_finalizing() or future.cancelled():
            return
        error = future.exception()
        if error is not None:
            # Do not log an actor that was killed on purpose, by a group's `close` for example.
            if not isinstance(error, RayActorError) or _KILLED not in str(error):
                _log.error("%s: %s", what, error)
        elif isinstance(failure := future.result(), Failure):
            _log_failed(what, failure)

    ref.future().add_done_callback(look)


def _log_failed(what: str, failure: Failure) -> None:
    detail = failure.traceback_text or f"{failure.type_name}: {failure.text}"
    _log.error("%s failed on rank %d:\n%s", what, failure.rank, detail)


def _reduction(name: str) -> Any:
    # Imported here: every worker loads this module, and few need numpy for it.
    function = getattr(importlib.import_module("numpy"), name, None)
    if not callable(function) or name.startswith("_"):
        raise ShoalValueError(
            f"reduction_type={name!r} is not a numpy reduction; expected max, min, mean, sum, …"
        )
    return function
