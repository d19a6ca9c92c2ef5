"""`shoal.testing`: programs for a cluster run on a local one, and the pytest plugin."""

import os
from pathlib import Path

import pytest

from shoal import NodePlacementStrategy, Worker, WorkerAddress

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest
from shoal import Worker

class Counter(Worker):
    def add(self, number):
        return number + self._rank

def test_the_default_has_one_node(shoal_cluster):
    assert Counter.create_group().launch(shoal_cluster, name="counter").add(1).wait() == [1]

@pytest.mark.shoal_cluster(num_nodes=2, accelerators=2)
def test_the_marker_describes_the_nodes(shoal_cluster):
    group = Counter.create_group().launch(shoal_cluster, name="counter")
    assert group.add(1).wait() == [1, 2, 3, 4]
"""


class Member(Worker):
    def share(self, item):
        members = [WorkerAddress("members", rank) for rank in range(self._world_size)]
        with self._collective.create_collective_group(members, "pair") as group:
            return group.broadcast(item if self._rank == 0 else None, members[0])


def test_a_collective_group_broadcasts(cluster):
    group = Member.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="members")
    assert group.share("item").wait() == ["item", "item"]
    assert group.share("again").wait() == ["again", "again"]


def test_the_fixture_gives_each_test_a_cluster(tmp_path, run_python):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["shoal.testing.plugin"]\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    arguments = ("-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    printed = run_python(*arguments, cwd=tmp_path, env=environment)
    assert "2 passed" in printed
