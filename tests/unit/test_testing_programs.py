"""`shoal.testing`: programs that were written for a cluster run on a local one."""

import re
from pathlib import Path

import pytest

from shoal import NodePlacementStrategy, Worker, WorkerAddress
from shoal.testing import local_cluster

ROUTING = Path(__file__).parents[2] / "docs" / "routing.md"


class Member(Worker):
    def share(self, item):
        members = [WorkerAddress("members", rank) for rank in range(self._world_size)]
        with self._collective.create_collective_group(members, "pair") as group:
            return group.broadcast(item if self._rank == 0 else None, members[0])


@pytest.fixture
def cluster():
    with local_cluster() as made:
        yield made


def test_the_program_of_the_routing_page_runs(cluster, capsys):
    text = ROUTING.read_text(encoding="utf-8")
    program = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    assert "Cluster(num_nodes=1)" in program
    exec(compile(program, "routing.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "[[0, 1, 10, 11], [20, 21, 30, 31]]" in printed
    assert "[[0, -1], [-10, -11], [-20, -21], [-30, -31]]" in printed


def test_a_collective_group_broadcasts(cluster):
    group = Member.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="members")
    assert group.share("item").wait() == ["item", "item"]
    assert group.share("again").wait() == ["again", "again"]
