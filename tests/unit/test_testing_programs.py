"""`shoal.testing`: programs that were written for a cluster run on a local one."""

import pytest

from shoal import NodePlacementStrategy, Worker, WorkerAddress
from shoal.testing import local_cluster


class Member(Worker):
    def share(self, item):
        members = [WorkerAddress("members", rank) for rank in range(self._world_size)]
        with self._collective.create_collective_group(members, "pair") as group:
            return group.broadcast(item if self._rank == 0 else None, members[0])


@pytest.fixture
def cluster():
    with local_cluster() as made:
        yield made


def test_a_collective_group_broadcasts(cluster):
    group = Member.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="members")
    assert group.share("item").wait() == ["item", "item"]
    assert group.share("again").wait() == ["again", "again"]
