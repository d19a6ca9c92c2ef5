"""`WorkerGroup`: workers of one class, launched together and called as one."""

import inspect
import logging
import operator
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, Self, SupportsIndex

from ray.exceptions import RayActorError, RayError

from shoal._backend import Placement, WorkerAddress
from shoal._ray import find_actor, runtime
from shoal.bootstrap.host import CALL_PREFIX, public_methods
from shoal.cluster import Cluster
from shoal.context import env_value
from shoal.deadline import Deadline
from shoal.errors import (
    LaunchError,
    NameTakenError,
    PlacementError,
    ShoalError,
    ShoalValueError,
)
from shoal.manager import WorkerManager
from shoal.manager.base import find_namespace, required_namespace
from shoal.placement import NodePlacementStrategy, PackedPlacementStrategy, PlacementStrategy
from shoal.placement.environment import group_environment, process_environment
from shoal.worker.result import WorkerGroupFuncResult, log_failure

__all__ = ["WorkerGroup", "WorkerGroupFunc", "answers"]

_log = logging.getLogger("shoal")

# Methods that were added to the compatible API: a user's method with such a name hides them.
_NEW_NAMES = frozenset({"call_ranks", "close", "ready", "seconds_of"})
# Seconds for which a dying process may keep its name.
_DYING_S = 2.0
_RETRY_S = 0.02


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
        self._ready_refs: list[Any] = []
        # The ranks that `execute_on` chose, by thread: threads do not affect each other.
        self._next_ranks: dict[int, list[int]] = {}
        self._cluster: Cluster | None = None
        self._launched_at = 0.0
        self._methods = frozenset(public_methods(worker_cls))
        self._attach_methods()

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

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and "_worker_cls" in vars(self):
            cls = self._worker_cls
            if callable(getattr(cls, name, None)):
                raise ShoalValueError(
                    f"{cls.__name__}.{name} is hidden: only methods without a leading underscore "
                    "can be called on a group"
                )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

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
            disable_distributed_log: Kept for existing callers.
            wait: Whether to wait until all workers are up: `ready()`.
            timeout: Limit of that wait in seconds.

        Returns:
            The group.

        Raises:
            NameTakenError: A worker of this name is alive.
            PlacementError: The placement does not fit the cluster, or has no process.
            LaunchError: The group is launched already.
        """
        del disable_distributed_log
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
        _forget_dead(self._name, cluster.namespace)
        try:
            for placement in placements:
                self._workers.append(self._start(placement, max_concurrency, env))
        except BaseException:
            self._kill()
            raise
        self._watch_start()
        if wait:
            WorkerGroup.ready(self, timeout=timeout)
        return self

    def _start(
        self,
        placement: Placement,
        max_concurrency: int | None,
        group_env: dict[str, str],
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
            cls_args=self._args,
            cls_kwargs=self._kwargs,
        )
        deadline = Deadline(_DYING_S)
        while True:
            try:
                return WorkerGroup.WorkerRank(worker=start(), rank=placement.rank)
            except NameTakenError:
                if _is_alive(name, cluster.namespace, deadline) or deadline.expired:
                    raise
            # The previous owner is dead, and its name is free within milliseconds.
            time.sleep(_RETRY_S)

    def _watch_start(self) -> None:
        """Log a constructor's failure at once, and the group's start when all ranks are up."""
        self._ready_refs = [w.worker._shoal_ready.remote() for w in self._workers]  # noqa: SLF001  (the host's own method)
        missing = set(range(len(self._ready_refs)))
        name, start = self._name, self._launched_at

        def up(index: int, future: Any) -> None:
            if not future.cancelled() and future.exception() is None and future.result() is None:
                missing.discard(index)
                if not missing:
                    count = len(self._ready_refs) or index + 1
                    _log.info(
                        "workers: %s, %d ready, %.1f s", name, count, time.monotonic() - start
                    )

        for index, ref in enumerate(self._ready_refs):
            log_failure(ref, f"constructing {name}:{index}")
            ref.future().add_done_callback(partial(up, index))

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
        WorkerGroupFuncResult(self, self._ready_refs, "launch", self.worker_cls_name).wait(limit)
        return self

    @classmethod
    def from_group_name(cls, worker_cls: type, group_name: str) -> "WorkerGroup":
        """Return a group that another process launched.

        Args:
            worker_cls: The workers' class.
            group_name: The group's name.

        Raises:
            ShoalValueError: There is no such group.
        """
        namespace = required_namespace()
        infos = WorkerManager.get_proxy().get_group(group_name)
        size = infos[0].group_world_size if infos else 1
        found = [find_actor(f"{group_name}:{rank}", namespace) for rank in range(size)]
        if None in found:
            missing = [rank for rank, actor in enumerate(found) if actor is None]
            raise ShoalValueError(
                f"no group {group_name!r} in the job {namespace!r}"
                if not infos
                else f"the group {group_name!r} has lost its ranks {missing}"
            )
        group = cls(worker_cls)
        group._name = group_name
        group._workers = [WorkerGroup.WorkerRank(a, r) for r, a in enumerate(found)]
        group._ready_refs = [w.worker._shoal_ready.remote() for w in group._workers]  # noqa: SLF001  (the host's own method)
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
        workers = self._workers
        if not workers:
            raise LaunchError(f"the group {self._name!r} is not launched, or is closed")
        if method in self._methods:
            name = CALL_PREFIX + method
            refs = [getattr(workers[r].worker, name).remote(*args, **kwargs) for r in ranks]
        else:
            refs = [workers[r].worker._shoal_call.remote(method, *args, **kwargs) for r in ranks]  # noqa: SLF001  (the host's own method)
        return WorkerGroupFuncResult(self, refs, method, self.worker_cls_name, ranks)

    def seconds_of(self, ranks: Sequence[int], method: str) -> list[float]:
        """Return how long the last call of a method took on each of some ranks, in seconds."""
        refs = [self._workers[r].worker._shoal_duration.remote(method) for r in ranks]  # noqa: SLF001  (the host's own method)
        return WorkerGroupFuncResult(self, refs, method, self.worker_cls_name, ranks).wait()

    def _take_next_ranks(self) -> Sequence[int]:
        ranks = self._next_ranks.pop(get_ident(), None)
        return range(len(self._workers)) if ranks is None else ranks

    def _checked_ranks(self, ranks: Sequence[Any]) -> list[int]:
        size = len(self._workers)
        # Other integers, such as numpy's, are valid; a bool is a mistake.
        found = [
            operator.index(r)
            for r in ranks
            if isinstance(r, SupportsIndex) and not isinstance(r, bool)
        ]
        valid = {r for r in found if 0 <= r < size}
        if not ranks or len(valid) != len(ranks):
            raise ShoalValueError(
                f"execute_on({', '.join(map(repr, ranks))}): expected ranks 0 to {size - 1} of the "
                f"group {self._name!r}, each once"
            )
        return found

    # --- end ---

    def close(self, timeout: float | None = _DYING_S) -> None:
        """End all workers; the name is free afterwards.

        A worker class's own `_close` method is called first. Closing twice does nothing.

        Args:
            timeout: Limit in seconds for that method, and again for the end of the processes.
        """
        if not self._workers:
            return
        if not self._is_in_reach():
            # Its cluster was shut down, and the workers with it; any call would start a new Ray.
            self._workers, self._ready_refs = [], []
            return
        if inspect.isroutine(getattr(self._worker_cls, "_close", None)):
            try:
                WorkerGroup.call_ranks(self, range(len(self._workers)), "_close").wait(timeout)
            except Exception as error:  # noqa: BLE001  (a user's hook that raises must not keep the workers alive)
                _log.warning("closing %s: %s", self._name, error)
        pings = [w.worker._shoal_ping.remote() for w in self._workers]  # noqa: SLF001  (the host's own method)
        self._kill()
        # A pending ping ends when Ray has noticed the death of its worker.
        runtime().wait(pings, num_returns=len(pings), timeout=Deadline(timeout).remaining_or_none())

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
        is_ours = True
        for worker in self._workers:
            name = f"{self._name}:{worker.rank}"
            runtime().kill(worker.worker)
            holder = find_actor(name, required_namespace())
            if holder is not None and holder != worker.worker:
                is_ours = False  # this group had died, and another group has its name now
            elif self._cluster is not None:
                self._cluster.release(name)
        self._workers = []
        self._ready_refs = []
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


def _forget_dead(group_name: str, namespace: str) -> None:
    """Remove the records of a dead group of this name from the WorkerManager.

    Otherwise the new ranks would find the old ones: rank 1 would use the port of a dead rank 0.

    Raises:
        NameTakenError: A rank of the old group is alive.
    """
    manager = WorkerManager.get_proxy()
    infos = manager.get_group(group_name)
    deadline = Deadline(_DYING_S)
    for info in infos:
        name = info.address.get_name()
        if _is_alive(name, namespace, deadline):
            raise NameTakenError(
                f"the name {name!r} belongs to a worker that is alive in the job {namespace!r}; "
                "close its group first, or choose another name"
            )
    if infos:
        manager.unregister_group(group_name)


def _is_alive(name: str, namespace: str, deadline: Deadline) -> bool:
    """Whether a named actor is alive: it answers (even if its constructor failed), or is busy."""
    actor = find_actor(name, namespace)
    if actor is None:
        return False
    if not hasattr(actor, "_shoal_ping") or answers(actor, deadline):
        return True
    # Ray frees the name of an actor that died by itself only when it is killed as well.
    runtime().kill(actor)
    return False


def answers(actor: Any, deadline: Deadline) -> bool:
    """Whether a worker's actor answers, or is busy until the deadline; False if it has died."""
    ref = actor._shoal_ping.remote()  # noqa: SLF001  (the host's own method)
    answered, _ = runtime().wait([ref], timeout=deadline.remaining)
    if not answered:
        return True
    try:
        runtime().get(ref)
    except RayActorError:
        return False
    return True
