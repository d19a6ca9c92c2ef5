"""Waiting for objects of a lost node: shoal's own error, which names the lost peer."""

import asyncio

import pytest
import ray
from ray.exceptions import NodeDiedError, TaskUnschedulableError, WorkerCrashedError

from shoal import _ray
from shoal.deadline import Deadline
from shoal.errors import PeerLostError

LOST = [NodeDiedError("gone"), TaskUnschedulableError("no such node"), WorkerCrashedError()]


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_waiting_for_a_lost_node_raises_peer_lost(monkeypatch, error):
    def raises(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(ray, "get", raises)
    with pytest.raises(PeerLostError, match=r"probing: node 1 died or cannot be reached"):
        _ray.get(object(), Deadline(5), lambda: "probing", "node 1")

    async def scenario():
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        await _ray.aget(future, Deadline(5), lambda: "probing", "node 1")

    with pytest.raises(PeerLostError, match=r"probing: node 1 died or cannot be reached"):
        asyncio.run(scenario())
