"""docs/testing.md says what the code does: its programs run, its error is the one that is raised."""

import inspect
import os
import re
import subprocess
import sys

import pytest

from shoal import NodePlacementStrategy, Worker
from shoal.errors import WorkerGroupError
from shoal.testing import local_cluster
from support.documents import ROOT, blocks, page, run

pytestmark = pytest.mark.nightly

TEXT = page("docs/testing.md")
PROGRAM, CONFTEST, TESTS = blocks(TEXT, "python")
(STALL,) = blocks(TEXT, "text")


class Peer(Worker):
    def receive(self):
        return self.recv("peers", 1 - self._rank)


def test_the_program_runs(capsys):
    run(PROGRAM, "testing_document")
    assert capsys.readouterr().out.endswith("[11, 11]\n")


def test_the_fixture_runs(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_document.py").write_text(TESTS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_the_arguments_are_all_there_are():
    table = TEXT.split("## Arguments of `local_cluster`")[1].split("##")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(inspect.signature(local_cluster).parameters)


def test_the_error_is_the_one_that_is_raised():
    with local_cluster() as cluster:
        group = Peer.create_group().launch(cluster, NodePlacementStrategy([0, 0]), name="peers")
        with pytest.raises(WorkerGroupError) as caught:
            group.receive().wait()
    texts = {str(error) + "\n" for error in caught.value.exceptions}
    assert texts == {STALL}
