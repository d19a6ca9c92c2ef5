"""The names of workers and groups: which process has one, and whether that process is alive."""

import time
from collections.abc import Sequence
from typing import Any

from ray.exceptions import GetTimeoutError, RayActorError

from shoal._ray import fetch, find_actor, runtime
from shoal.cluster.allocate import name_taken
from shoal.context import describe_self
from shoal.deadline import Deadline, LongWait
from shoal.errors import NameTakenError, ShoalTimeoutError, ShoalValueError
from shoal.manager import WorkerInfo, WorkerManager, other_groups
from shoal.manager.base import required_namespace
from shoal.process import is_running, own_process
from shoal.worker import timing

__all__ = [
    "answers",
    "claim_address",
    "find_ranks",
    "forget_dead",
    "is_alive",
]


def claim_address(info: WorkerInfo) -> None:
    """Register this worker under an address that another group may have.

    Two groups with the same `parent_address` have the same addresses.

    Raises:
        NameTakenError: A worker of another group has the address, and is alive.
    """
    manager = WorkerManager.get_proxy()
    holder: WorkerInfo | None = manager.claim_worker(info.address, info)
    while holder is not None:
        if _is_holder_alive(holder):
            owner = f"{holder.group}:{holder.rank}" if holder.group else f"process {holder.pid}"
            raise NameTakenError(
                f"the address {info.address.get_name()!r} belongs to {owner}, which is alive: two "
                "groups with the same parent_address would have the same addresses; close the "
                "other group first, or leave parent_address out, so that the addresses of the "
                f"workers are {info.group or 'GROUP'}:0, {info.group or 'GROUP'}:1, …"
            )
        holder = manager.claim_worker(info.address, info, holder)


def _is_holder_alive(holder: WorkerInfo) -> bool:
    if holder.group:
        name = f"{holder.group}:{holder.rank}"
        return is_alive(name, required_namespace(), Deadline(timing.TIMING.dying_s))
    return holder.process.host == own_process().host and is_running(holder.process)


def find_ranks(group_name: str, timeout: float | None) -> list[Any]:
    """Return the actor handles of a group's ranks, and wait for those that are being launched.

    Args:
        group_name: The group.
        timeout: Limit in seconds; None for the default, or for no wait if no such group is being
            launched.

    Raises:
        ShoalValueError: There is no such group, or ranks of it have ended.
        ShoalTimeoutError: Ranks were not launched in time.
    """
    namespace, manager = required_namespace(), WorkerManager.get_proxy()
    for_launch, for_ranks = Deadline(timeout, default=0.0), Deadline(timeout)
    size: int | None = None
    missing: Sequence[int] = ()

    def describe() -> str:
        what = "its launch" if size is None else f"its ranks {missing} of {size}"
        return f"{describe_self()}: from_group_name({group_name!r}) waits for {what}"

    with LongWait(describe, for_ranks) as wait:
        while True:
            size = manager.get_group_size(group_name)
            # Asked before: a rank that registers after its actor was not found is not lost.
            registered = {info.rank for info in manager.get_group(group_name)}
            found = [find_actor(f"{group_name}:{rank}", namespace) for rank in range(size or 0)]
            missing = [rank for rank, actor in enumerate(found) if actor is None]
            if size is not None and not missing:
                return found
            if size is None and for_launch.expired:
                waited = f" within {for_launch.timeout:g} s" if for_launch.timeout else ""
                others = other_groups(group_name, manager.get_group_sizes())
                raise ShoalValueError(
                    f"no group {group_name!r} in the job {namespace!r}{waited}{others}"
                )
            if lost := [rank for rank in missing if rank in registered]:
                raise ShoalValueError(f"the group {group_name!r} has lost its ranks {lost}")
            if for_ranks.expired:
                raise ShoalTimeoutError(
                    f"the group {group_name!r} has {size} ranks, and its ranks {missing} were not "
                    f"launched within {for_ranks.timeout:g} s"
                )
            time.sleep(wait.step(timing.TIMING.retry_s))
            wait.tick()


def forget_dead(group_name: str) -> None:
    """Remove the records of a dead group of this name from the WorkerManager.

    Otherwise the new ranks would find the old ones: rank 1 would use the port of a dead rank 0.

    Raises:
        NameTakenError: A rank of the old group is alive.
    """
    manager, namespace = WorkerManager.get_proxy(), required_namespace()
    infos = manager.get_group(group_name)
    deadline = Deadline(timing.TIMING.dying_s)
    for info in infos:
        name = f"{group_name}:{info.rank}"
        if is_alive(name, namespace, deadline):
            raise name_taken(name, namespace)
    if infos:
        manager.unregister_group(group_name)


def is_alive(name: str, namespace: str, deadline: Deadline) -> bool:
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
    try:
        fetch(ref, deadline.remaining)
    except GetTimeoutError:
        return True
    except RayActorError:
        return False
    return True
