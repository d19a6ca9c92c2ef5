"""The CollectiveManager on a cluster: started on first use, also by several workers at once."""

import os
import signal
import time

import pytest
import ray

from shoal import Worker, WorkerAddress
from shoal._ray import find_actor, is_dead
from shoal.errors import ClusterNotFoundError
from shoal.manager import CollectiveManager

pytestmark = pytest.mark.ray


class Member(Worker):
    """Makes a group with the other rank, and sends it something."""

    def exchange(self, value):
        members = [WorkerAddress(self._group_name, [rank]) for rank in range(2)]
        group = self._collective.create_collective_group(members, "exchange", timeout=60)
        received = group.send(value) if self._rank == 0 else group.recv(timeout=60)
        proxy = self._collective_manager.get_proxy(timeout=60)
        return group.group_info, received, ray.get(proxy.actor.__ray_call__.remote(_pid))


def _pid(_):
    return os.getpid()


def manager():
    return find_actor(CollectiveManager.MANAGER_NAME, "shoal")


@pytest.fixture
def no_manager(cluster, monkeypatch):
    """A job whose manager has not started; stops the manager that other tests may have started."""
    monkeypatch.setattr(CollectiveManager, "proxy", None)
    while (actor := manager()) is not None:
        ray.kill(actor)
        time.sleep(0.02)
    yield
    CollectiveManager.proxy = None  # forget the manager of this test


def test_the_manager_is_started_when_a_group_is_made_and_forgets_it(no_manager, launch):
    group = launch(Member, ranks=2, name="members")
    with pytest.raises(ClusterNotFoundError):
        CollectiveManager.get_proxy(no_wait=True)
    assert manager() is None
    first, second = group.exchange("v").wait()  # both need the manager at the same time
    assert second == (first[0], "v", first[2])
    proxy = CollectiveManager.get_proxy()
    assert ray.get(proxy.actor.__ray_call__.remote(_pid)) == first[2]
    assert proxy.get_collective_group("exchange") == first[0]
    group._close()
    assert proxy.get_collective_group("exchange") is None


def test_a_manager_that_died_is_started_again(no_manager):
    actor = CollectiveManager.get_proxy().actor
    pid = ray.get(actor.__ray_call__.remote(_pid), timeout=60)
    os.kill(pid, signal.SIGKILL)
    while not is_dead(actor):
        time.sleep(0.05)
    CollectiveManager.proxy = None  # as in a process that has not asked before
    again = CollectiveManager.get_proxy()
    assert again.get_collective_group("nothing") is None
    assert ray.get(again.actor.__ray_call__.remote(_pid), timeout=60) != pid
