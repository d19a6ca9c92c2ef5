"""`WorkerGroup`: workers of one class, launched together and called as one."""

import inspect
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, Self

from ray.exceptions import RayError

from shoal._backend import Placement, WorkerAddress
from shoal._ray import find_actor, runtime
from shoal.bootstrap.call_value import CallValue, carries_unchanged, kinds_of
from shoal.bootstrap.host import CALL_PREFIX, generator_error, public_methods, without_refs
from shoal.cluster import Cluster
from shoal.cluster.launch_arguments import check_launch
from shoal.cluster.stop import stops_on_failure
from shoal.context import current, env_value
from shoal.deadline import Deadline
from shoal.errors import (
    ClusterError,
    LaunchError,
    NameTakenError,
    PlacementError,
    ShoalError,
    ShoalValueError,
)
from shoal.integers import as_ints
from shoal.job_end import tie_to_job
from shoal.manager import WorkerManager
from shoal.manager.base import find_namespace, required_namespace
from shoal.placement import NodePlacementStrategy, PackedPlacementStrategy, PlacementStrategy
from shoal.placement.environment import group_environment, process_environment
from shoal.placement.launched_placements import record_placement
from shoal.state import remove_pages
from shoal.tracing import settle
from shoal.worker import timing
from shoal.worker.failures import GroupCall, forget_failures
from shoal.worker.names import find_ranks, forget_dead, is_alive
from shoal.worker.result import WorkerGroupFuncResult

__all__ = ["WorkerGroup", "WorkerGroupFunc"]

_log = logging.getLogger("shoal")

# Methods that were added to the compatible API: a user's method with such a name hides them.
_NEW_NAMES = frozenset({"call_ranks", "close", "ready", "seconds_of"})


class WorkerGroupFunc:
    """One method of a group; calling it calls the method on all ranks at once."""

    def __init__(self, worker_group: "WorkerGroup", func_name: str) -> None:
        self.worker_group = worker_group
        self.func_name = func_name

    def __call__(self, *args: Any, **kwargs: Any) -> WorkerGroupFuncResult:
        """Call the method on all ranks, or on those that `execute_on` named."""
        group = self.worker_group
        ranks = group._take_next_ranks()  # noqa: SLF001  (two halves of one class)
        return group.call_ranks(ranks, self.func_name, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<method {self.func_name} of {self.worker_group!r}>"


class WorkerGroup:
    """Workers of one class, `<name>:0` to `<name>:<N-1>`.

    `Worker.create_group(...)` makes it, `launch` starts it; then each public method of the class
    is a method of the group that calls all ranks at once and returns a `WorkerGroupFuncResult`.

    Args:
        worker_cls: The workers' class.
        args: Positional arguments of its constructor.
        kwargs: Keyword arguments of its constructor.

    Raises:
        ShoalValueError: A public method of the class has the name of a method of the group.
    """

    @dataclass(frozen=True)
    class WorkerRank:
        """A rank and its actor handle."""

        worker: Any
        rank: int

    def __init__(
        self, worker_cls: type, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        self._worker_cls = worker_cls
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self._name = f"worker_group_{worker_cls.__name__}"
        self._workers: list[WorkerGroup.WorkerRank] = []
        self._constructors: GroupCall | None = None
        # The ranks that `execute_on` chose, by thread: threads do not affect each other.
        self._next_ranks: dict[int, list[int]] = {}
        self._cluster: Cluster | None = None
        self._job_has_ended = False
        self._launched_at = 0.0
        methods = public_methods(worker_cls)
        self._methods = frozenset(methods)
        self._generators = {
            name for name, m in methods.items() if inspect.isgeneratorfunction(inspect.unwrap(m))
        }
        self._attach_methods()

    def _end_with_job(self) -> None:
        self._job_has_ended = True

    def _check_job(self, method: str) -> None:
        if self._job_has_ended:
            raise ClusterError(
                f"{self._name}.{method}: the cluster was shut down, and the group's workers with it"
            )

    def _attach_methods(self) -> None:
        own = {name for name in dir(WorkerGroup) if not name.startswith("__")}
        for name in self._methods:
            if name in _NEW_NAMES:
                warnings.warn(
                    f"{self._worker_cls.__name__}.{name} hides WorkerGroup.{name}; "
                    f"WorkerGroup.{name}(group) still reaches it",
                    stacklevel=4,
                )
            elif name in own:
                raise ShoalValueError(
                    f"{self._worker_cls.__name__}.{name} has the name of a method of WorkerGroup; "
                    "rename it"
                )
            setattr(self, name, WorkerGroupFunc(self, name))

    def __getstate__(self) -> dict[str, Any]:
        # The process that launched the group logs the failures of its constructors.
        return vars(self) | {"_constructors": None, "_next_ranks": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        tie_to_job(self, WorkerGroup._end_with_job)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and "_worker_cls" in vars(self):
            cls = self._worker_cls
            if callable(getattr(cls, name, None)):
                raise ShoalValueError(
                    f"{cls.__name__}.{name} is hidden: only methods without a leading underscore "
                    "can be called on a group"
                )
        kind = f"{type(self).__name__!r} object"
        if "_name" in vars(self):
            kind = f"the group {self._name!r} of {self._worker_cls.__name__}"
        # With both, Python's tracebacks say "Did you mean".
        raise AttributeError(f"{kind} has no attribute {name!r}", name=name, obj=self)

    # --- identity ---

    @property
    def worker_cls_name(self) -> str:
        """The name of the workers' class."""
        return self._worker_cls.__name__

    @property
    def worker_group_name(self) -> str:
        """The group's name."""
        return self._name

    @property
    def worker_info_list(self) -> list["WorkerGroup.WorkerRank"]:
        """The ranks with their actor handles, in rank order."""
        return list(self._workers)

    @property
    def _world_size(self) -> int:
        return len(self._workers)

    def __repr__(self) -> str:
        return f"<WorkerGroup {self._name} of {self.worker_cls_name}, {self._world_size} ranks>"

    # --- launch ---

    def launch(
        self,
        cluster: Cluster,
        placement_strategy: PlacementStrategy | None = None,
        name: str | None = None,
        max_concurrency: int | bool | None = None,
        isolate_gpu: bool = True,
        catch_system_failure: bool | None = None,
        disable_distributed_log: bool = False,
        *,
        wait: bool = False,
        timeout: float | None = None,
    ) -> Self:
        """Start the workers, all at once, and return without waiting for them.

        Args:
            cluster: The cluster.
            placement_strategy: The placement of the ranks; by default one on each accelerator, or
                one on node 0 if there is no accelerator.
            name: The group's name; by default `worker_group_<class>`.
            max_concurrency: Maximum number of calls that a worker runs at once, as in Ray. A bool
                is taken as `isolate_gpu`, which older code passes in this position.
            isolate_gpu: Whether a worker sees its own accelerators only.
            catch_system_failure: Whether a crash or a signal prints all stacks; by default
                `SHOAL_CATCH_FAILURE`.
            disable_distributed_log: Whether the output of the workers is kept out of the job's
                log folder (`distributed_log_dir` of `Cluster`).
            wait: Whether to wait until all workers are up: `ready()`.
            timeout: Limit of that wait in seconds.

        Returns:
            The group.

        Raises:
            NameTakenError: A worker of this name is alive.
            PlacementError: The placement does not fit the cluster, or has no process.
            LaunchError: The group is launched already.
            ShoalTypeError: The class is abstract, or the cluster, the strategy or the name is
                something else.
        """
        check_launch(self._worker_cls, cluster, placement_strategy, name)
        if isinstance(max_concurrency, bool):
            isolate_gpu, max_concurrency = max_concurrency, None
        if self._workers:
            raise LaunchError(f"the group {self._name!r} is launched already")
        self._name = str(WorkerAddress(self._name if name is None else name))
        self._cluster = cluster
        self._launched_at = time.monotonic()
        strategy = placement_strategy or _default_strategy(cluster)
        placements = strategy.get_placement(cluster, isolate_gpu)
        if not placements:
            raise PlacementError(f"the placement of {self._name!r} has no process")
        catch = (
            env_value("CATCH_FAILURE") == "1"
            if catch_system_failure is None
            else catch_system_failure
        )
        env = group_environment(self._name, placements, cluster) | {
            "CLUSTER_NAMESPACE": cluster.namespace,
            "CATCH_SYSTEM_FAILURE": "1" if catch else "0",
        }
        forget_dead(self._name)
        self._job_has_ended = False
        close = WorkerGroup._start_close if _has_close(self._worker_cls) else None
        tie_to_job(self, WorkerGroup._end_with_job, close)
        try:
            for placement in placements:
                self._workers.append(
                    self._start(placement, max_concurrency, env, disable_distributed_log)
                )
                if len(self._workers) == 1:  # its name is this group's now
                    WorkerManager.get_proxy().announce_group(
                        self._name, len(placements), current().name
                    )
        except BaseException:
            self._kill()
            raise
        record_placement(self._name, self.worker_cls_name, placements, cluster)
        self._watch_start()
        if wait:
            WorkerGroup.ready(self, timeout=timeout)
        return self

    def _start(
        self,
        placement: Placement,
        max_concurrency: int | None,
        group_env: dict[str, str],
        disable_distributed_log: bool,
    ) -> "WorkerGroup.WorkerRank":
        cluster = self._require_cluster()
        name = f"{self._name}:{placement.rank}"
        node = cluster.get_node_info(placement.cluster_node_rank)
        start = partial(
            cluster.allocate,
            cls=self._worker_cls,
            worker_name=name,
            worker_rank=placement.rank,
            node_rank=placement.cluster_node_rank,
            max_concurrency=max_concurrency,
            env_vars=group_env | process_environment(self._name, placement, node.accelerator_model),
            node_group_label=placement.node_group_label,
            disable_distributed_log=disable_distributed_log,
            cls_args=self._args,
            cls_kwargs=self._kwargs,
        )
        deadline = Deadline(timing.TIMING.dying_s)
        while True:
            try:
                return WorkerGroup.WorkerRank(worker=start(), rank=placement.rank)
            except NameTakenError:
                if is_alive(name, cluster.namespace, deadline) or deadline.expired:
                    raise
            # The previous owner is dead, and its name is free within milliseconds.
            time.sleep(timing.TIMING.retry_s)

    def _watch_start(self) -> None:
        """Log a constructor's failure at once, and the group's start when all ranks are up."""
        name, start, size = self._name, self._launched_at, len(self._workers)

        def up() -> None:
            _log.info("workers: %s, %d ready, %.1f s", name, size, time.monotonic() - start)

        self._constructors = self._construction(up)
        self._constructors.watch()

    def _construction(
        self, on_complete: Callable[[], None] | None = None, *, is_quiet: bool = False
    ) -> GroupCall:
        """Return the call that ends when all constructors have returned."""
        return GroupCall(
            self._name,
            "launch",
            [w.worker._shoal_ready.remote() for w in self._workers],  # noqa: SLF001  (the host's own method)
            range(len(self._workers)),
            what=f"constructing {self._name}",
            is_quiet=is_quiet,
            stops=stops_on_failure(),
            on_complete=on_complete,
        )

    def ready(self, timeout: float | None = None) -> Self:
        """Wait until all constructors have returned.

        Args:
            timeout: Limit in seconds; None for the default.

        Returns:
            The group.

        Raises:
            WorkerGroupError: Constructors of a group of several ranks failed.
            Exception: The constructor of the only rank failed: its own error.
            ShoalTimeoutError: The timeout expired.
        """
        limit = Deadline(timeout).timeout
        self._check_job("launch")
        if self._constructors is None and self._workers:  # another process has launched it
            self._constructors = self._construction(is_quiet=True)
        if self._constructors is not None:
            WorkerGroupFuncResult.of(self, "launch", self.worker_cls_name, self._constructors).wait(
                limit
            )
        return self

    @classmethod
    def from_group_name(
        cls, worker_cls: type, group_name: str, *, timeout: float | None = None
    ) -> "WorkerGroup":
        """Return a group that another process launched.

        The workers may still be constructing; `ready` waits for them.

        Args:
            worker_cls: The workers' class.
            group_name: The group's name.
            timeout: Limit in seconds of the wait for the launch. With None, a group that is not
                being launched is an error at once, and one that is has the default limit.

        Raises:
            ShoalValueError: There is no such group, or ranks of it have ended.
            ShoalTimeoutError: Ranks were not launched in time.
        """
        found = find_ranks(group_name, timeout)
        group = cls(worker_cls)
        group._name = group_name
        group._workers = [WorkerGroup.WorkerRank(a, r) for r, a in enumerate(found)]
        tie_to_job(group, WorkerGroup._end_with_job)
        return group

    # --- calls ---

    def execute_on(self, *ranks: Any) -> Self:
        """Restrict the next call to some ranks: ints, or one list, tuple or range of them.

        Raises:
            ShoalValueError: A rank does not exist, or none is given.
        """
        chosen: list[Any] = (
            list(ranks[0]) if len(ranks) == 1 and isinstance(ranks[0], Iterable) else list(ranks)
        )
        self._take_next_ranks()  # drop an earlier choice even if this one is wrong
        self._next_ranks[get_ident()] = self._checked_ranks(chosen)
        return self

    def call_ranks(
        self, ranks: Sequence[int], method: str, /, *args: Any, **kwargs: Any
    ) -> WorkerGroupFuncResult:
        """Call a method on some ranks; the group's own methods call this.

        Args:
            ranks: The ranks, in the order of the results.
            method: The method's name.
            args: Its positional arguments; a Ray object reference arrives as its value.
            kwargs: Its keyword arguments.
        """
        return self._call(ranks, method, args, kwargs)

    def _call(
        self,
        ranks: Sequence[int],
        method: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        is_quiet: bool = False,
    ) -> WorkerGroupFuncResult:
        self._check_job(method)
        workers, kwargs = self._workers, kwargs or {}
        if not workers:
            raise LaunchError(f"the group {self._name!r} is not launched, or is closed")
        if method in self._generators:
            raise generator_error(f"{self.worker_cls_name}.{method}")
        given = self._carried(method, args, kwargs)
        if method in self._methods:
            name = CALL_PREFIX + method
            refs = [getattr(workers[r].worker, name).remote(*given) for r in ranks]
        else:
            refs = [workers[r].worker._shoal_call.remote(method, *given) for r in ranks]  # noqa: SLF001  (the host's own method)
        call = GroupCall(
            self._name, method, refs, ranks, is_quiet=is_quiet, stops=stops_on_failure()
        )
        return WorkerGroupFuncResult.of(self, method, self.worker_cls_name, call)

    def _carried(
        self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Sequence[Any]:
        """Return what Ray carries for the arguments of a call."""
        if not kwargs and all(map(carries_unchanged, args)):
            return args
        kinds = kinds_of(args, kwargs)
        args, kwargs, refs = without_refs(args, kwargs, runtime().ObjectRef)
        what = f"the arguments ({kinds}) of {self._name}.{method}"
        return CallValue((args, kwargs), what), *refs

    def seconds_of(self, ranks: Sequence[int], method: str) -> list[float]:
        """Return how long the last call of a method took on each of some ranks, in seconds."""
        self._check_job(method)
        refs = [self._workers[r].worker._shoal_duration.remote(method) for r in ranks]  # noqa: SLF001  (the host's own method)
        return WorkerGroupFuncResult(self, refs, method, self.worker_cls_name, ranks).wait()

    def _take_next_ranks(self) -> Sequence[int]:
        ranks = self._next_ranks.pop(get_ident(), None)
        return range(len(self._workers)) if ranks is None else ranks

    def _checked_ranks(self, ranks: Sequence[Any]) -> list[int]:
        size = len(self._workers)
        found = as_ints(ranks)
        if not found or len({r for r in found if 0 <= r < size}) != len(ranks):
            raise ShoalValueError(
                f"execute_on({', '.join(map(repr, ranks))}): expected ranks 0 to {size - 1} of the "
                f"group {self._name!r}, each once"
            )
        return found

    # --- end ---

    def close(self, timeout: float | None = timing.TIMING.dying_s) -> None:
        """End all workers; the name is free afterwards.

        A worker class's own `_close` method is called first. Closing twice does nothing.

        Args:
            timeout: Limit in seconds for that method, and again for the end of the processes.
        """
        if not self._workers:
            return
        if self._job_has_ended or not self._is_in_reach():
            # Its cluster was shut down, and the workers with it; any call would start a new Ray.
            self._workers, self._constructors = [], None
            return
        self._start_close()(Deadline(timeout, default=math.inf))
        pings = [w.worker._shoal_ping.remote() for w in self._workers]  # noqa: SLF001  (the host's own method)
        # Their last events are in the trace then.
        settle(several_nodes=self._cluster is None or len(self._cluster.nodes) > 1)
        self._kill()
        # A pending ping ends when Ray has noticed the death of its worker.
        runtime().wait(pings, num_returns=len(pings), timeout=Deadline(timeout).remaining_or_none())

    def _start_close(self) -> Callable[[Deadline], None]:
        """Call the workers' own `_close`, if they have one; return what waits for it."""
        if not self._workers or not _has_close(self._worker_cls) or not self._is_in_reach():
            return lambda _: None
        call = self._call(range(len(self._workers)), "_close", is_quiet=True)

        def finish(deadline: Deadline) -> None:
            try:
                call.wait(deadline.remaining)
            except Exception as error:  # noqa: BLE001  (a user's hook that raises must not keep the workers alive)
                _log.warning("closing %s: %s", self._name, error)

        return finish

    def _close(self) -> None:
        WorkerGroup.close(self)

    def _is_in_reach(self) -> bool:
        """Whether this process is still connected to the job of the workers."""
        connected = (
            runtime().is_initialized() if self._cluster is None else self._cluster.is_connected()
        )
        return connected and bool(find_namespace())

    def _kill(self) -> None:
        if not self._workers:
            return  # nothing was started: the records of this name are another group's
        is_ours, ended = True, []
        for worker in self._workers:
            name = f"{self._name}:{worker.rank}"
            runtime().kill(worker.worker)
            holder = find_actor(name, required_namespace())
            if holder is not None and holder != worker.worker:
                is_ours = False  # this group had died, and another group has its name now
                continue
            ended.append(name)
            if self._cluster is not None:
                self._cluster.release(name)
        remove_pages(ended)
        self._workers = []
        self._constructors = None
        forget_failures(self._name)
        if is_ours:
            with suppress(RayError, ShoalError):
                WorkerManager.get_proxy().unregister_group(self._name)

    def _require_cluster(self) -> Cluster:
        if self._cluster is None:
            raise LaunchError(f"the group {self._name!r} is not launched by this process")
        return self._cluster


def _default_strategy(cluster: Cluster) -> PlacementStrategy:
    if cluster.num_accelerators:
        return PackedPlacementStrategy(0, cluster.num_accelerators - 1)
    return NodePlacementStrategy([0])


def _has_close(cls: type) -> bool:
    """Whether workers of a class have something to do before they end."""
    return inspect.isroutine(getattr(cls, "_close", None))
