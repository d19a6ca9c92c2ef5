"""Collective groups on a cluster: the job's CollectiveManager knows them until they are closed."""

import pytest

from shoal import Worker, WorkerAddress
from shoal.manager import CollectiveManager

pytestmark = pytest.mark.ray


class Member(Worker):
    """Makes a group with the other rank, and sends it something."""

    def exchange(self, value):
        members = [WorkerAddress(self._group_name, [rank]) for rank in range(2)]
        group = self._collective.create_collective_group(members, "exchange", timeout=60)
        received = group.send(value) if self._rank == 0 else group.recv(timeout=60)
        return group.group_info, received


def test_the_manager_knows_a_group_until_its_workers_are_closed(launch):
    group = launch(Member, ranks=2, name="members")
    first, second = group.exchange("v").wait()
    assert second == (first[0], "v")
    manager = CollectiveManager.get_proxy()
    assert manager.get_collective_group("exchange") == first[0]
    group._close()
    assert manager.get_collective_group("exchange") is None
