"""Creates and finds a channel by its name; also handles the arguments of older callers."""

import contextlib
import logging
import time
from dataclasses import replace
from typing import Any

from shoal._backend import WorkerAddress
from shoal._ray import find_actor, in_process, is_dead, timed_out
from shoal.channel import timing
from shoal.channel.actor import ChannelWorker
from shoal.channel.actor_calls import await_abandoned, end, settings_of, start, state_of
from shoal.channel.routes import Routes
from shoal.context import current, describe_self
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelExistsError,
    ChannelNotFoundError,
    NameTakenError,
    PeerLostError,
    ShoalTimeoutError,
    ShoalValueError,
)
from shoal.integers import as_int
from shoal.manager import NodeManager, WorkerManager, too_high
from shoal.manager.base import required_namespace
from shoal.queues.settings import ChannelSettings

__all__ = [
    "check_same",
    "connect",
    "create",
    "node_of_accelerator",
    "node_of_worker",
    "not_found",
    "routes_of",
    "split_affinity",
]

_log = logging.getLogger("shoal")


def create(
    settings: ChannelSettings,
    distributed: bool,
    node_rank: int,
    deadline: Deadline,
    *,
    shared: bool = False,
    log: bool = False,
    worker_cls: type = ChannelWorker,
) -> tuple[ChannelSettings, Routes]:
    """Start a channel's actors, or connect to the channel that has the name.

    Args:
        settings: Description of the wanted channel.
        distributed: Whether every node gets an actor.
        node_rank: The node of the actor, where there is only one.
        deadline: When the actors must have answered.
        shared: Whether several processes create the channel; then finding it is not logged.
        log: Whether the output of the actors goes to the job's log folder, if it has one.
        worker_cls: The class of the actors.

    Raises:
        ChannelExistsError: The name belongs to a different channel, or is not a channel's.
        ShoalTimeoutError: An actor did not start in time.
        ShoalValueError: The node does not exist.
    """
    node = as_int(node_rank, 0)
    if node is None:
        raise ShoalValueError(
            f"channel {settings.name!r}: node_rank={node_rank!r}: expected an integer, at least 0"
        )
    num_actors = NodeManager.get_proxy().num_nodes() if distributed else 1
    wanted = replace(settings, num_actors=num_actors)
    local = in_process()
    if local is not None:
        created: tuple[ChannelSettings, Routes] = local.channels.create(wanted, node)
        return created
    nodes = range(num_actors) if distributed else [node]
    await_abandoned(settings.name, deadline)
    while (made := _join(wanted, deadline, shared=shared)) is None:
        with contextlib.suppress(NameTakenError):  # another process was faster
            started, handles = start(worker_cls, wanted, nodes, deadline, log=log)
            return started, Routes(started, required_namespace(), dict(enumerate(handles)))
    return made


def _join(
    wanted: ChannelSettings, deadline: Deadline, *, shared: bool = False
) -> tuple[ChannelSettings, Routes] | None:
    """Connect to the channel if it exists and is as wanted; return None when the name is free."""
    first, namespace = f"{wanted.name}:0", required_namespace()
    found = None
    while found is None:
        if find_actor(first, namespace) is None:
            return None
        with contextlib.suppress(PeerLostError, ChannelNotFoundError, ChannelClosed):
            # Without waiting: the actor that was found may have given up its name by now.
            found = _connect(wanted.name, Deadline(deadline.remaining), at_once=True)
        if found is not None and found[2]["ending"]:
            found = None
        if found is None:
            # The channel that has the name was closed and is about to give it up.
            if deadline.expired:
                raise timed_out(f"creating the channel {wanted.name!r}", "the one before", deadline)
            if not _free_names_of_dead(wanted.name, namespace):
                time.sleep(0.02)
    settings, routes, state = found
    check_same(settings, wanted, closed=state["closed"])
    if not shared:
        _log.warning("the channel %r exists already; connected to it", settings.name)
    return settings, routes


def check_same(settings: ChannelSettings, wanted: ChannelSettings, *, closed: bool) -> None:
    """Check that a channel that exists is the one that a caller creates.

    Raises:
        ChannelExistsError: It is another one, or it is closed.
    """
    differing = settings.differing(wanted)
    if closed:
        differing.append("it is closed and still holds items")
    if differing:
        raise ChannelExistsError(
            f"{describe_self()}: the channel {settings.name!r} exists, with {', '.join(differing)}; "
            "connect to it with Channel.connect, or choose another name"
        )


def _free_names_of_dead(name: str, namespace: str) -> bool:
    """Free the names of a channel whose first actor died: the channel is gone.

    Returns whether the names were freed.
    """
    actors: list[Any] = []
    while (actor := find_actor(f"{name}:{len(actors)}", namespace)) is not None:
        if not hasattr(actor, "shoal_channel_settings"):
            break
        actors.append(actor)
    if not actors or not is_dead(actors[0]):
        return False
    # The first actor's name goes last: a process that creates the channel takes it first, and must
    # not meet the other actors of the old one.
    for actor in reversed(actors):
        end(actor)
    return True


def connect(name: str, deadline: Deadline | None) -> tuple[ChannelSettings, Routes]:
    """Find a channel by its name.

    Args:
        name: The name.
        deadline: When to stop waiting for the channel to appear; None not to wait.

    Raises:
        ChannelNotFoundError: No channel has the name.
        ChannelExistsError: The name belongs to something that is not a channel.
    """
    local = in_process()
    if local is not None:
        found: tuple[ChannelSettings, Routes] = local.channels.connect(name, deadline)
        return found
    at_once = deadline is None
    settings, routes, _ = _connect(
        name, deadline or Deadline(timing.TIMING.describe_s), at_once=at_once
    )
    return settings, routes


def routes_of(settings: ChannelSettings, namespace: str) -> Routes:
    """Return this process's way to the actors of a channel that it received a handle of."""
    local = in_process()
    if local is not None:
        routes: Routes = local.channels.routes(settings)
        return routes
    return Routes(settings, namespace)


def _connect(
    name: str, deadline: Deadline, *, at_once: bool
) -> tuple[ChannelSettings, Routes, dict[str, Any]]:
    namespace = required_namespace()
    first = f"{name}:0"
    while (handle := find_actor(first, namespace)) is None:
        if at_once or deadline.expired:
            waited = "" if at_once else f" within {deadline.timeout:g} s"
            raise not_found(name, namespace, waited)
        # Ray does not notify when a name appears.
        time.sleep(min(0.05, deadline.remaining))
    if not hasattr(handle, "shoal_channel_settings"):
        raise ChannelExistsError(
            f"{describe_self()}: {name!r} is the name of a worker group, not of a channel"
        )
    limit = Deadline(max(1.0, deadline.remaining))
    try:
        state = state_of(handle, limit)
    except PeerLostError as error:
        raise ChannelNotFoundError(
            f"{describe_self()}: no channel {name!r} in the job {namespace!r}: its actor {first} has "
            f"ended ({error})"
        ) from None
    later = range(1, state["settings"].num_actors)
    handles = [handle, *(_found(name, index, namespace, limit) for index in later)]
    settings = settings_of(handles, limit)
    return settings, Routes(settings, namespace, dict(enumerate(handles))), state


def not_found(name: str, namespace: str, waited: str = "") -> ChannelNotFoundError:
    """Return the error for a channel that does not exist."""
    return ChannelNotFoundError(
        f"{describe_self()}: no channel {name!r} in the job {namespace!r}{waited}; it is created "
        "with Channel.create, and gone once it was closed or the job has ended"
    )


def _found(name: str, index: int, namespace: str, deadline: Deadline) -> Any:
    """Wait for an actor that may still be starting."""
    actor = f"{name}:{index}"
    while (handle := find_actor(actor, namespace)) is None:
        if find_actor(f"{name}:0", namespace) is None:
            raise not_found(name, namespace)  # the channel has ended meanwhile
        if deadline.expired:
            raise timed_out("connecting to a channel", actor, deadline)
        time.sleep(min(0.05, deadline.remaining))  # as above: Ray does not notify
    return handle


def split_affinity(
    second: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], tuple[str | None, int | None] | None]:
    """Convert the older argument order of `create_channel` to the current one.

    The current order is (name, maxsize, distributed, node_rank, local). A text or None as the
    second argument means the older order: (name, group_affinity, group_rank_affinity, maxsize).
    Keywords of the older order are removed from `kwargs`.

    Returns:
        The positional arguments after the name in the current order, and the group and rank of the
        worker whose node to use, or None.
    """
    affine = not {"group_affinity", "group_rank_affinity"}.isdisjoint(kwargs)
    group, rank = kwargs.pop("group_affinity", None), kwargs.pop("group_rank_affinity", None)
    if second is not None and not isinstance(second, str):
        return [second, *args], (group, rank) if affine else None
    rank = args[0] if args else rank
    maxsize = args[1] if len(args) > 1 else kwargs.pop("maxsize", 0)
    return [maxsize, *args[2:]], (second if group is None else group, rank)


def node_of_worker(group_name: str | None, rank: int | None, deadline: Deadline) -> int:
    """Return the node of a worker, or of this process when no group is given.

    Raises:
        ShoalTimeoutError: The worker did not register in time.
        ShoalValueError: Its group has no such rank.
    """
    if group_name is None and rank is None:
        return max(0, current().node_rank)
    if group_name is None:
        group_name = current().name.partition(":")[0]
    address = WorkerAddress(group_name, [rank or 0])
    manager = WorkerManager.get_proxy()
    while (info := manager.wait_worker_info(address, timeout=deadline.remaining)) is None:
        if ranks := too_high(address, manager.get_group_sizes()):
            raise ShoalValueError(f"{describe_self()}: no worker {address.get_name()!r}: {ranks}")
        if deadline.expired:
            raise ShoalTimeoutError(
                f"{describe_self()}: group_affinity={group_name!r}: no worker "
                f"{address.get_name()!r} registered within {deadline.timeout:g} s"
            )
    return int(info.cluster_node_rank)


def node_of_accelerator(rank: int) -> int:
    """Return the node that has the accelerator of a cluster-wide rank; 0 if there are none.

    Raises:
        ShoalValueError: The cluster has accelerators, but not that many.
    """
    counts = [node.num_accelerators for node in NodeManager.get_proxy().get_nodes()]
    if not any(counts):
        return 0
    first = 0
    for node_rank, count in enumerate(counts):
        if as_int(rank, first, first + count - 1) is not None:
            return node_rank
        first += count
    raise ShoalValueError(f"gpu_id={rank!r}: this cluster has accelerators 0 to {first - 1}")
