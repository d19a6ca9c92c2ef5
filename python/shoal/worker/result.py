"""The result of a call on a group: values, or the failures of the ranks that failed."""

import asyncio
import importlib
import math
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn, Self

from shoal._ray import runtime, timed_out
from shoal.cluster.stop import stops_on_failure
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import (
    ClusterError,
    ShoalTimeoutError,
    ShoalTypeError,
    ShoalValueError,
    WorkerGroupError,
)
from shoal.long_wait_hooks import remarks_on
from shoal.worker import timing
from shoal.worker.failures import GroupCall, describe_not_raised

__all__ = ["WorkerGroupFuncResult"]


class WorkerGroupFuncResult:
    """The result of a call on a group, returned at once; `wait` returns the values in rank order.

    A failure is logged when it arrives, unless a caller waits for the result at that moment: then
    `wait` raises it.

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
        ranks = range(len(results)) if ranks is None else ranks
        self._init(
            worker_group, func_name, cls_name,
            GroupCall(
                worker_group.worker_group_name, func_name, results, ranks,
                stops=stops_on_failure(),
            ),
        )  # fmt: skip

    def _init(self, worker_group: Any, func_name: str, cls_name: str, call: GroupCall) -> None:
        self._group = worker_group
        self._func_name = func_name
        self._cls_name = cls_name
        self._call = call
        self._grace: Deadline | None = None

    @classmethod
    def of(cls, worker_group: Any, func_name: str, cls_name: str, call: GroupCall) -> Self:
        """Return another result of a call."""
        self = cls.__new__(cls)
        self._init(worker_group, func_name, cls_name, call)
        return self

    # --- waiting ---

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
        self._check_ray()
        call = self._call
        deadline = Deadline(timeout, default=math.inf)
        log = self._long_wait(deadline)
        with log, nullcontext() if all else call.waiting():
            call.take_at_once(min(timing.TIMING.first_get_s, deadline.remaining))
            while pending := call.pending():
                call.watch()
                failures = len(call.failed())
                at_most = math.inf if all else self._grace_left()
                if at_most <= 0 or (deadline.expired and call.failed()):
                    break
                if deadline.expired:
                    raise self._timed_out(pending, log)
                self._check_ray()
                # Within the grace, which ends by itself, no line is due.
                step = log.step() if math.isinf(at_most) else min(at_most, deadline.remaining)
                call.await_end(failures, min(step, timing.TIMING.recheck_s))
                if math.isinf(at_most):
                    log.tick()
            return self._values(deadline)

    async def async_wait(self, timeout: float | None = math.inf, *, all: bool = False) -> list[Any]:  # noqa: A002, ASYNC109  (same as `wait`)
        """Same as `wait`, in an event loop."""
        self._check_ray()
        call = self._call
        deadline = Deadline(timeout, default=math.inf)
        log = self._long_wait(deadline)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changed.set)

        call.add_listener(notify)
        try:
            with log, nullcontext() if all else call.waiting():
                call.watch()
                while pending := call.pending():
                    at_most = math.inf if all else self._grace_left()
                    if at_most <= 0 or (deadline.expired and call.failed()):
                        break
                    if deadline.expired:
                        raise self._timed_out(pending, log)
                    self._check_ray()
                    step = min(log.step(at_most), timing.TIMING.recheck_s)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), step)
                    changed.clear()
                    log.tick()
                return self._values(deadline)
        finally:
            call.remove_listener(notify)

    def done(self) -> bool:
        """Whether `wait` returns at once: all ranks have ended, or one failed at least 2 s ago."""
        self._call.take_arrived()
        return not self._call.pending() or self._grace_left() <= 0

    def __await__(self) -> Any:
        return self.async_wait().__await__()

    def __getitem__(self, index: object) -> NoReturn:
        # Also called by `for`, `list` and unpacking, as there is no `__iter__`: with one, checks
        # for an `Iterable` would take the handle for the values.
        raise ShoalTypeError(
            f"{self._call.name}: the call returned a handle, not its values; call .wait() first: it "
            "returns a list with one value for each rank"
        )

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
            Seconds by timer; with `return_per_rank` a pair of this dict and a list of each rank's
            timers. The method itself is among them only if the worker times it, for example with
            `@Worker.timer()`.
        """
        reduce = _reduction(reduction_type)
        self.wait()
        per_rank = self._group.call_ranks(self._call.ranks, "pop_execution_times").wait()
        names = sorted({name for timers in per_rank for name in timers})
        reduced = {n: float(reduce([t[n] for t in per_rank if n in t])) for n in names}
        return (reduced, per_rank) if return_per_rank else reduced  # type: ignore[return-value]  # the contract's two shapes

    def _durations(self, tag: str) -> list[float]:
        self.wait()
        timers = self._group.call_ranks(self._call.ranks, "_pop_timer", tag).wait()
        if None not in timers:
            return list(map(float, timers))
        pairs = zip(timers, self._call_seconds(), strict=True)
        return [seconds if timer is None else timer for timer, seconds in pairs]

    def _call_seconds(self) -> list[float]:
        return self._group.seconds_of(self._call.ranks, self._func_name)  # type: ignore[no-any-return]  # the group is Any here: importing its class would break the layers

    # --- inside ---

    def _check_ray(self) -> None:
        # Without this check, Ray would start a new cluster and wait for results that it lacks.
        if self._call.pending() and not runtime().is_initialized():
            raise ClusterError(
                f"{self._call.name}: the cluster was shut down before the call was waited for"
            )

    def _peers(self, indices: Iterable[int]) -> str:
        ranks = ", ".join(str(self._call.ranks[i]) for i in indices)
        return f"{self._call.group} rank{'s' if ',' in ranks else ''} {ranks}"

    def _timed_out(self, pending: Iterable[int], log: LongWait) -> ShoalTimeoutError:
        deadline = log.deadline
        polls = deadline.timeout < timing.TIMING.polls_s
        remarks = [describe_not_raised()] if polls else remarks_on(log)
        causes = "; ".join(filter(None, remarks))
        return timed_out(self._call.name, self._peers(pending), deadline, causes)

    def _grace_left(self) -> float:
        """Return the seconds that the other ranks have left after the first failure."""
        if self._grace is None and self._call.failed():
            self._grace = Deadline(timing.TIMING.grace_s)
        return math.inf if self._grace is None else self._grace.remaining

    def _long_wait(self, deadline: Deadline) -> LongWait:
        call = self._call
        return LongWait(
            lambda: f"{describe_self()}: {call.name} waits for {self._peers(call.pending())}",
            deadline,
            on=call.name,
            peers=lambda: [f"{call.group}:{call.ranks[i]}" for i in call.pending()],
        )

    def _values(self, deadline: Deadline) -> list[Any]:
        call = self._call
        call.open()
        failed = call.failed()
        if not failed:
            return [call.replies[i] for i in range(len(call.refs))]
        call.stop()
        call.raised()
        failures = [call.replies[i] for i in failed]
        first = failures[0]
        if len(call.refs) == 1:
            raise first.rebuild()  # not a variable: its frames would keep it, and those of callers
        running = call.pending()
        tail = f"; {self._peers(running)} still ran" if running else ""
        raise WorkerGroupError(
            f"{call.event(failures)} on {len(failed)} of {len(call.refs)} ranks after "
            f"{deadline.elapsed:.1f} s, first on rank {first.rank}: {first.type_name}: "
            f"{first.text}{tail}",
            [failure.rebuild() for failure in failures],
            ranks=[call.ranks[i] for i in failed],
        )

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None and not sys.is_finalizing():
            call.drop()


def _reduction(name: str) -> Any:
    # Imported here: every worker loads this module, and few need numpy for it.
    function = getattr(importlib.import_module("numpy"), name, None)
    if not callable(function) or name.startswith("_"):
        raise ShoalValueError(
            f"reduction_type={name!r} is not a numpy reduction; expected max, min, mean, sum, …"
        )
    return function
