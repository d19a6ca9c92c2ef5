"""Waits of workers for each other, as another process reads them from their state pages."""

import contextlib
import math

import pytest

from shoal.errors import ShoalTimeoutError
from shoal.state import calling, hide_process, remove_dead, show_process
from support.processes import until
from support.state_pages import outline, state_of, wait_of

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def pages(crew, folder, monkeypatch):
    """The pages lie beside the memory of the crew."""
    monkeypatch.setenv("SHOAL_SHM_DIR", str(folder))
    yield
    remove_dead()


def showing(me, address, call):
    """Run a call in a worker that has a state page; return what the page shows after it."""
    show_process("job", address, 0)
    with calling("step"):
        with contextlib.suppress(ShoalTimeoutError):
            call(me)
        found = outline(state_of(address).activities)
    hide_process()
    return found


def shown(address, operation):
    until(lambda: wait_of(address))
    found = wait_of(address)
    assert found.operation == operation
    return found.peers


def test_a_receive_is_shown_with_the_sender_until_it_has_its_message(crew):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.begin(showing, "a:0", lambda me: me.recv("b", 0, timeout=60))
    assert shown("a:0", "recv") == ("b:0",)
    b.begin(showing, "b:0", lambda me: me.send(1, "a", 0, timeout=60))
    assert a.end() == b.end() == ["step"]


def test_a_send_is_shown_with_the_receiver_until_its_time_is_over(crew):
    a = crew.member("a:0")
    crew.member("b:0")
    a.begin(showing, "a:0", lambda me: [me.send(n, "b", 0, timeout=2) for n in range(17)])
    assert shown("a:0", "send") == ("b:0",)
    assert a.end() == ["step"]


def test_asynchronous_receives_are_shown_while_their_result_is_awaited(crew):
    a, b = crew.member("a:0"), crew.member("b:0")
    a.begin(showing, "a:0", lambda me: me.recv("b", 0, async_op=True, timeout=60).wait())
    until(lambda: wait_of("a:0"))
    shown = wait_of("a:0")
    assert (shown.operation, shown.peers) == ("recv", ("b:0",))
    assert math.isfinite(shown.until)
    b.begin(showing, "b:0", lambda me: me.send(1, "a", 0, timeout=60))
    assert a.end() == b.end() == ["step"]
