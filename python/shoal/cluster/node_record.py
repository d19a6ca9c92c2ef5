"""The record of a job's nodes in Ray's control service, for commands that look at the job.

It answers while the driver and all processes of the job are stopped, and names nodes that died.
"""

import contextlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

from shoal.topology import NodeInfo

__all__ = ["NotedNode", "forget_nodes", "note_nodes", "noted_nodes"]

_STORE = "shoal-nodes"


class NotedNode(NamedTuple):
    """A node of a job.

    Attributes:
        ray_id: Ray's name of it.
        address: Its IP address.
    """

    ray_id: str
    address: str


def note_nodes(namespace: str, nodes: Sequence[NodeInfo]) -> None:
    """Note the nodes of a job, in rank order."""
    text = json.dumps([(node.ray_id, node.node_ip) for node in nodes])
    _internal_kv_put(namespace, text, overwrite=True, namespace=_STORE)


def noted_nodes(namespace: str) -> list[NotedNode] | None:
    """Return the nodes of a job, in rank order; None if the Ray of this process has no such job."""
    text = _internal_kv_get(namespace, namespace=_STORE)
    return [NotedNode(*node) for node in json.loads(text)] if text else None


def forget_nodes(namespace: str) -> None:
    """Remove the record of a job that ends."""
    with contextlib.suppress(Exception):  # Ray may end with the job
        _internal_kv_del(namespace, namespace=_STORE)
