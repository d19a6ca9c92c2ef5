"""`shoal.testing.plugin`: the fixture and its marker, in a pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

PYTHON = Path(__file__).parents[2] / "python"

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


def test_the_fixture_gives_each_test_a_cluster(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["shoal.testing.plugin"]\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "2 passed" in result.stdout, result.stdout + result.stderr
