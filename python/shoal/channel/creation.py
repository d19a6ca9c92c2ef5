"""Making and finding the hosts of a channel, and the arguments that older callers use."""

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

import ray

from shoal._backend import WorkerAddress
from shoal._ray import find_actor, get, is_dead, timed_out
from shoal.channel.host import ChannelWorker
from shoal.channel.remote import RemoteQueues
from shoal.context import current, describe_self
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelClosed,
    ChannelExistsError,
    ChannelNotFoundError,
    NameTakenError,
    PeerLostError,
    ShoalError,
    ShoalTimeoutError,
    ShoalValueError,
)
from shoal.manager import NodeManager, WorkerManager
from shoal.manager.base import required_namespace
from shoal.transport.queues import CAPACITY

__all__ = [
    "Plan",
    "connect",
    "create",
    "node_of_accelerator",
    "node_of_worker",
    "split_affinity",
]

_log = logging.getLogger("shoal")


@dataclass(frozen=True)
class Plan:
    """What a channel shall be.

    Attributes:
        name: Its name.
        maxsize: Items per key, 0 for `capacity`.
        capacity: The bound of a key without `maxsize`.
        distributed: Whether every node has a host.
        node_rank: The node of the host, where there is one.

    Raises:
        ShoalValueError: A value cannot be.
    """

    name: Any
    maxsize: int = 0
    capacity: int = CAPACITY
    distributed: bool = False
    node_rank: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or ":" in self.name:
            raise ShoalValueError(
                f"channel name {self.name!r}: expected a text that is not empty and has no ':'"
            )
        for name, low in (("maxsize", 0), ("capacity", 1), ("node_rank", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ShoalValueError(
                    f"channel {self.name!r}: {name}={value!r}: expected an integer, at least {low}"
                )


def create(plan: Plan, deadline: Deadline) -> tuple[RemoteQueues, dict[str, Any]]:
    """Start a channel's hosts, or connect to the channel that has the name.

    Raises:
        ChannelExistsError: The name belongs to another kind of channel, or to no channel.
        ShoalTimeoutError: A host did not start in time.
        ShoalValueError: There is no such node.
    """
    while True:
        joined = _join(plan, deadline)
        if joined is not None:
            return joined
        try:
            return _start(plan, deadline)
        except NameTakenError:  # somebody was faster
            continue


def _start(plan: Plan, deadline: Deadline) -> tuple[RemoteQueues, dict[str, Any]]:
    proxy = NodeManager.get_proxy()
    hosts = proxy.num_nodes() if plan.distributed else 1
    nodes = range(hosts) if plan.distributed else [plan.node_rank]
    args = (plan.maxsize, plan.capacity, hosts)
    first = f"{plan.name}:0"
    handles = {
        0: proxy.start_host(
            first, ChannelWorker, (first, *args), {}, nodes[0], timeout=deadline.remaining
        )
    }
    starting = {}
    for index in range(1, hosts):
        name = f"{plan.name}:{index}"
        starting[index] = proxy.actor.start_host.remote(
            name, ChannelWorker, (name, *args), {}, nodes[index], timeout=deadline.remaining
        )
    what = f"starting the channel {plan.name!r}"
    errors: list[ShoalError] = []
    for index, ref in starting.items():
        try:
            handles[index] = get(ref, deadline, lambda: what, f"node {nodes[index]}")
        except ShoalError as error:
            errors.append(error)
    if errors:
        for handle in handles.values():  # half a channel is none
            ray.kill(handle)
        if isinstance(errors[0], NameTakenError):
            raise ChannelExistsError(
                f"{describe_self()}: the channel {plan.name!r} needs the names {plan.name}:0 to "
                f"{plan.name}:{hosts - 1}: {errors[0]}; choose another name"
            ) from errors[0]
        raise errors[0]
    queues = RemoteQueues(plan.name, required_namespace(), hosts, handles)
    return queues, {"maxsize": plan.maxsize, "capacity": plan.capacity, "hosts": hosts}


def _join(plan: Plan, deadline: Deadline) -> tuple[RemoteQueues, dict[str, Any]] | None:
    """Connect to a channel that exists and is as planned; None when the name is free."""
    first, namespace = f"{plan.name}:0", required_namespace()
    found = None
    while found is None:
        if find_actor(first, namespace) is None:
            return None
        with contextlib.suppress(PeerLostError, ChannelNotFoundError, ChannelClosed):
            found = connect(plan.name, Deadline(deadline.remaining))
        if found is not None and found[1]["ending"]:
            found = None
        if found is None:
            # A channel that was closed is about to give its name up.
            if deadline.expired:
                raise timed_out(f"creating the channel {plan.name!r}", "the one before", deadline)
            if not _free_names_of_dead(plan.name, namespace):
                time.sleep(0.02)
    queues, facts = found
    differing = [
        f"{name}={facts[name]} (asked for: {wanted})"
        for name, wanted in (("maxsize", plan.maxsize), ("capacity", plan.capacity))
        if facts[name] != wanted
    ]
    if facts["closed"]:
        differing.append("it is closed and still holds items")
    if differing:
        raise ChannelExistsError(
            f"{describe_self()}: the channel {plan.name!r} exists, with {', '.join(differing)}; "
            "connect to it with Channel.connect, or choose another name"
        )
    _log.warning("the channel %r exists already; connected to it", plan.name)
    return queues, facts


def _free_names_of_dead(name: str, namespace: str) -> bool:
    """Free the names of a channel whose first host died by itself: it is gone."""
    hosts: list[Any] = []
    while (host := find_actor(f"{name}:{len(hosts)}", namespace)) is not None:
        if not hasattr(host, "shoal_channel_facts"):
            break
        hosts.append(host)
    if not hosts or not is_dead(hosts[0]):
        return False
    for host in reversed(hosts):  # the first last: then nobody starts anew among the others
        ray.kill(host)
    return True


def connect(name: str, deadline: Deadline | None) -> tuple[RemoteQueues, dict[str, Any]]:
    """Find a channel by its name.

    Args:
        name: The name.
        deadline: Until when to wait for it to appear; None not to wait.

    Raises:
        ChannelNotFoundError: There is none.
        ChannelExistsError: The name belongs to something that is no channel.
    """
    namespace = required_namespace()
    first = f"{name}:0"
    handle = find_actor(first, namespace)
    while handle is None:
        if deadline is None or deadline.expired:
            waited = "" if deadline is None else f" within {deadline.timeout:g} s"
            raise ChannelNotFoundError(
                f"{describe_self()}: no channel {name!r} in the job {namespace!r}{waited}; it is "
                "created with Channel.create, and gone once it was closed or the job has ended"
            )
        time.sleep(min(0.05, deadline.remaining))
        handle = find_actor(first, namespace)
    facts_of = getattr(handle, "shoal_channel_facts", None)
    if facts_of is None:
        raise ChannelExistsError(
            f"{describe_self()}: {name!r} is the name of a worker group, not of a channel"
        )
    limit = Deadline(60.0) if deadline is None else Deadline(max(1.0, deadline.remaining))
    what = f"connecting to the channel {name!r}"
    facts = dict(get(facts_of.remote(), limit, lambda: what, first))
    queues = RemoteQueues(name, namespace, facts["hosts"])
    queues.find_all(limit)
    return queues, facts


def split_affinity(
    second: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], tuple[str | None, int | None] | None]:
    """Tell the two orders of arguments of `create_channel` apart.

    Today's is (name, maxsize, distributed, node_rank, local); a text or None as the second one is
    the older (name, group_affinity, group_rank_affinity, maxsize), whose keywords are taken out of
    `kwargs`.

    Returns:
        Today's positional arguments after the name, and the group and rank to be near, or None.
    """
    affine = not {"group_affinity", "group_rank_affinity"}.isdisjoint(kwargs)
    group, rank = kwargs.pop("group_affinity", None), kwargs.pop("group_rank_affinity", None)
    if second is not None and not isinstance(second, str):
        return [second, *args], (group, rank) if affine else None
    rank = args[0] if args else rank
    maxsize = args[1] if len(args) > 1 else kwargs.pop("maxsize", 0)
    return [maxsize, *args[2:]], (second if group is None else group, rank)


def node_of_worker(group_name: str | None, rank: int | None, deadline: Deadline) -> int:
    """Return the node of a worker, of this process when no group is named.

    Raises:
        ShoalTimeoutError: The worker did not register in time.
    """
    if group_name is None and rank is None:
        return max(0, current().node_rank)
    if group_name is None:
        group_name = current().name.partition(":")[0]
    address = WorkerAddress(group_name, [rank or 0])
    info = WorkerManager.get_proxy().wait_worker_info(address, timeout=deadline.remaining)
    if info is None:
        raise ShoalTimeoutError(
            f"{describe_self()}: group_affinity={group_name!r}: no worker {address.get_name()!r} "
            f"registered within {deadline.timeout:g} s"
        )
    return int(info.cluster_node_rank)


def node_of_accelerator(rank: int) -> int:
    """Return the node that has the accelerator of a cluster-wide rank; 0 where there are none.

    Raises:
        ShoalValueError: There are accelerators, but not that many.
    """
    counts = [node.num_accelerators for node in NodeManager.get_proxy().get_nodes()]
    if not any(counts):
        return 0
    first = 0
    for node_rank, count in enumerate(counts):
        if first <= rank < first + count:
            return node_rank
        first += count
    raise ShoalValueError(f"gpu_id={rank!r}: this cluster has accelerators 0 to {first - 1}")
