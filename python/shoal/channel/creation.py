"""Making and finding the hosts of a channel, and the arguments that older callers use."""

import logging
import time
from dataclasses import dataclass
from typing import Any

from shoal._backend import WorkerAddress
from shoal._ray import find_actor, get
from shoal.channel.host import ChannelWorker
from shoal.channel.remote import RemoteQueues
from shoal.context import current, describe_self
from shoal.deadline import Deadline
from shoal.errors import (
    ChannelExistsError,
    ChannelNotFoundError,
    NameTakenError,
    ShoalTimeoutError,
    ShoalValueError,
)
from shoal.manager import NodeManager, WorkerManager
from shoal.manager.base import required_namespace
from shoal.transport.queues import CAPACITY

__all__ = ["Plan", "connect", "create", "node_of_accelerator", "node_of_worker"]

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

    name: str
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
    namespace = required_namespace()
    first = f"{plan.name}:0"
    if find_actor(first, namespace) is not None:
        return _join(plan, deadline)
    proxy = NodeManager.get_proxy()
    hosts = proxy.num_nodes() if plan.distributed else 1
    nodes = range(hosts) if plan.distributed else [plan.node_rank]
    args = (plan.maxsize, plan.capacity, hosts)
    try:
        handles = {
            0: proxy.start_host(
                first, ChannelWorker, (first, *args), {}, nodes[0], timeout=deadline.remaining
            )
        }
    except NameTakenError:  # somebody was faster
        return _join(plan, deadline)
    starting = {}
    for index in range(1, hosts):
        name = f"{plan.name}:{index}"
        starting[index] = proxy.actor.start_host.remote(
            name, ChannelWorker, (name, *args), {}, nodes[index], timeout=deadline.remaining
        )
    for index, ref in starting.items():
        what = f"starting the channel {plan.name!r}"
        handles[index] = get(ref, deadline, lambda what=what: what, f"node {nodes[index]}")  # type: ignore[misc]  # a bound argument
    queues = RemoteQueues(plan.name, namespace, hosts, handles)
    return queues, {"maxsize": plan.maxsize, "capacity": plan.capacity, "hosts": hosts}


def _join(plan: Plan, deadline: Deadline) -> tuple[RemoteQueues, dict[str, Any]]:
    queues, facts = connect(plan.name, Deadline(deadline.remaining))
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
