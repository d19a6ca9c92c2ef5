"""Waiting for objects of a lost node: shoal's own error, which names the lost peer."""

import asyncio
import concurrent.futures
from types import SimpleNamespace

import pytest
from ray.exceptions import NodeDiedError, TaskUnschedulableError, WorkerCrashedError

from shoal import _ray
from shoal.deadline import Deadline
from shoal.errors import PeerLostError

LOST = [NodeDiedError("gone"), TaskUnschedulableError("no such node"), WorkerCrashedError()]


@pytest.mark.parametrize("error", LOST, ids=lambda e: type(e).__name__)
def test_waiting_for_a_lost_node_raises_peer_lost(error):
    failed = concurrent.futures.Future()
    failed.set_exception(error)
    reference = SimpleNamespace(future=lambda: failed)
    with pytest.raises(PeerLostError, match=r"probing: node 1 died or cannot be reached"):
        _ray.get(reference, Deadline(5), lambda: "probing", "node 1")

    async def scenario():
        future = asyncio.get_running_loop().create_future()
        future.set_exception(error)
        await _ray.aget(future, Deadline(5), lambda: "probing", "node 1")

    with pytest.raises(PeerLostError, match=r"probing: node 1 died or cannot be reached"):
        asyncio.run(scenario())
