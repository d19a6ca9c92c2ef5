"""The order of the hooks that a forked child runs first."""

import pytest

from shoal import fork
from shoal.fork import ChildStage, in_child
from support.channel_peers import in_a_child

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_functions(monkeypatch):
    monkeypatch.setattr(fork, "_functions", {stage: [] for stage in ChildStage})


def test_functions_run_in_the_order_of_their_stages():
    ran = []
    for stage in reversed(ChildStage):
        in_child(stage, lambda stage=stage: ran.append(stage.name))
    in_child(ChildStage.KEEP, lambda: ran.append("second"))
    assert in_a_child(lambda: ran) == "['KEEP', 'second', 'RENEW', 'FORGET']"
    assert ran == []


def test_a_function_that_fails_does_not_stop_the_others(caplog):
    ran = []
    in_child(ChildStage.KEEP, lambda: 1 / 0)
    in_child(ChildStage.FORGET, lambda: ran.append("ran"))
    text = in_a_child(lambda: (ran, caplog.text))
    assert text.startswith("(['ran'], ")
    assert "ZeroDivisionError" in text
